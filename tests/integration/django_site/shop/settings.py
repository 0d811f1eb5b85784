"""A project with the usual Celery settings."""

import os

SECRET_KEY = "only for tests"
USE_TZ = True
INSTALLED_APPS = ["images"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}

CELERY_BROKER_URL = os.environ["SHOP_REDIS_URL"]
CELERY_RESULT_BACKEND = os.environ["SHOP_REDIS_URL"]
CELERY_TASK_ROUTES = {"images.tasks.report": {"queue": "reports"}}

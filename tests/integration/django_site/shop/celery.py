"""As in Celery's guide for Django; the balancer is one more line."""

import os

from celery import Celery

from fairlead.celery import LoadBalancer

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")

app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()

balancer = LoadBalancer(app, queues=5, user_of="user_id")

"""Services that are Celery tasks: Fairlead queues the jobs, Celery's workers run them (docs/celery.md)."""

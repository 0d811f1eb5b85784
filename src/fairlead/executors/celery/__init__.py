"""Services that are Celery tasks: Fairlead keeps the line, Celery's workers do the work (docs/celery.md)."""

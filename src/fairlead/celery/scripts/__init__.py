"""The scripts of the load balancer: one operation each. They reach keys that they make from the queues' names, so they
are for one server (or a master behind Sentinels), not for a Cluster, which Celery's broker is not either."""

"""The Lua scripts of the load balancer, one per operation. The scripts build keys from the names of the queues, so they
need a single Redis server, or a master behind Sentinels. Redis Cluster is not supported; Celery does not support it as
a broker either."""

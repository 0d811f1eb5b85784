"""`LoadBalancer`, the public class, and functions of the module that call its methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from celery import Celery
from celery.local import Proxy
from kombu import Queue

from fairlead.celery.broker import redis_of_broker
from fairlead.celery.consumption import unconsumed
from fairlead.celery.publishing import Publisher, leave_groups_of, spread_groups_of
from fairlead.celery.reconcile import Reconciler, Reconciliation
from fairlead.celery.redis_link import RedisLink
from fairlead.celery.strategies import (
    DEFAULT_SHUFFLE_SIZE,
    DEFAULT_STRATEGY,
    STRATEGIES,
    Strategy,
    candidates_of,
    queue_of_user,
)
from fairlead.celery.task_counts import MOST_QUEUES, CeleryWorker, Load, State, TaskCounts
from fairlead.celery.user_extraction import AUTO, UserExtractor, UserOf
from fairlead.celery.worker import BEATS, SignalHandlers, WorkerThreads
from fairlead.errors import ConfigError, NotFound, Unavailable
from fairlead.urls import redis_problem


class LoadBalancer:
    """Spreads the tasks of a Celery app over several queues, the balanced queues. A task goes to the queue with the
    least load: the number of its pending and running tasks, which the balancer counts exactly, in Redis.

    `redis_url` is the Redis that holds the counts, by default the app's broker. `user_of` determines the user of a
    call: the name of an argument, or a function of the task's name, arguments and keyword arguments. By default, the
    user is an argument with a usual name, such as `user_id`. With None, calls have no users.

    Times are in seconds. A worker that sends no heartbeat for `worker_ttl` counts as gone. Every `reconcile_every`, one
    of the workers reconciles: it compares the counts with the broker and the workers, and repairs them. With 0, workers
    never reconcile.
    """

    def __init__(
        self,
        app: Any,
        queues: int = 20,
        prefix: str = "queue_",
        *,
        redis_url: str | None = None,
        strategy: Strategy = DEFAULT_STRATEGY,
        user_of: UserOf | None = AUTO,
        shuffle_size: int = DEFAULT_SHUFFLE_SIZE,
        worker_ttl: float = 15.0,
        reconcile_every: float = 30.0,
    ) -> None:
        _check(
            queues=queues,
            prefix=prefix,
            redis_url=redis_url,
            strategy=strategy,
            user_of=user_of,
            shuffle_size=shuffle_size,
            worker_ttl=worker_ttl,
            reconcile_every=reconcile_every,
        )
        app = self.app = _app_of(app)
        self._worker_ttl = worker_ttl
        self._redis_url = redis_url
        self._link = RedisLink(lambda: redis_url or redis_of_broker(app))
        candidates = candidates_of(strategy, queues, shuffle_size)
        self._counts = TaskCounts(self._link, prefix, queues)
        users = UserExtractor(app, None if strategy == "least_loaded" else user_of)
        self._publisher = Publisher(app, self._counts, candidates, users, own_redis=redis_url is None)
        self._signals = SignalHandlers(app, self._counts)
        self._reconciler = Reconciler(app, self._counts, worker_ttl, worker_ttl / BEATS)
        self._heartbeat = WorkerThreads(app, self._counts, self._reconciler.run, worker_ttl, reconcile_every)
        self._connect()

    # -- enqueueing ------------------------------------------------------------------------------------------------

    def enqueue_task_with_load_balancing(self, task: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Send a task like `task.delay(*args, **kwargs)`, but always to a balanced queue, even if the task or a route
        declares another queue."""
        return self._publisher.enqueue(task, args, kwargs)

    def enqueue_task_to_user_queue(self, task: Any, user_id: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Send a task like `task.delay(*args, **kwargs)`, but always to the same queue for the same user."""
        queue = self._counts.names[queue_of_user(str(user_id), len(self._counts.names))]
        return task.apply_async(args=args, kwargs=kwargs, queue=queue)

    def select_best_queue(self) -> str:
        """Return the queue with the least load. Nothing is reserved there, so concurrent callers may get the same
        queue."""
        try:
            loads = self._counts.loads()
        except Unavailable:
            return self._publisher.next_in_turn("", (), {})
        return min(loads, key=lambda name: loads[name].total)

    # -- loads -----------------------------------------------------------------------------------------------------

    @property
    def prefix(self) -> str:
        return self._counts.prefix

    @property
    def queue_names(self) -> tuple[str, ...]:
        return self._counts.names

    def get_all_queue_loads(self) -> dict[str, Load]:
        """Return the numbers of pending and running tasks of every queue, as one consistent snapshot."""
        return self._counts.loads()

    def get_queue_load(self, queue_name: str) -> Load:
        return self._counts.loads()[self._known(queue_name)]

    def reset_queue_counters(self, queue_name: str | None = None) -> None:
        """Set the counters of a queue, by default of all queues, to zero. Later reconcile passes restore the counts of
        the tasks that really are pending or running."""
        self._counts.reset(self._counts.names if queue_name is None else [self._known(queue_name)])

    def increment_pending(self, queue_name: str) -> int:
        """Count one pending task of a queue by hand, and return the new number of pending tasks. The next task that is
        sent to this queue by name is not counted again: it takes over this count."""
        return self._adjust(queue_name, "pending", 1)

    def decrement_pending(self, queue_name: str) -> int:
        return self._adjust_unless_counted(queue_name, "pending", -1)

    def increment_running(self, queue_name: str) -> int:
        return self._adjust_unless_counted(queue_name, "running", 1)

    def decrement_running(self, queue_name: str) -> int:
        return self._adjust_unless_counted(queue_name, "running", -1)

    def reconcile(self) -> Reconciliation:
        """Compare the counts with the broker and the workers, and repair them. Workers also do this periodically."""
        return self._reconciler.run()

    def repairs(self) -> dict[str, int]:
        """Return how many repairs of each kind all processes have made."""
        return self._counts.repairs()

    def workers(self) -> list[CeleryWorker]:
        """Return the workers that report their tasks and have sent a heartbeat within `worker_ttl`."""
        return self._counts.live_workers(self._worker_ttl)

    def unconsumed_queues(self) -> tuple[str, ...]:
        """Return the queues that no live worker consumes. Tasks that are sent to them wait."""
        return unconsumed(self._counts.names, self.workers())

    # -- wiring ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Undo what the balancer has changed in the app, except that the app still declares the balanced queues."""
        for part in (self._publisher, self._signals, self._heartbeat):
            part.disconnect()
        leave_groups_of(self.app)
        if self.app.configured:
            routes = [route for route in _listed(self.app.conf.task_routes) if route != self._publisher.route]
            self.app.conf.update(task_routes=routes)
        self._link.close()
        _balancers.pop(self.app, None)

    def _connect(self) -> None:
        global _last
        _last = self
        if (former := _balancers.get(self.app)) is not None:
            former.close()
        _balancers[self.app] = self
        for part in (self._publisher, self._signals, self._heartbeat):
            part.connect()
        spread_groups_of(self.app, self._publisher)
        # Reading the configuration makes Celery load it, and Django's settings may not be available yet.
        if self.app.configured:
            self._configure()
        else:
            self.app.on_after_configure.connect(self._configure, weak=False, dispatch_uid=(id(self), "configure"))

    def _configure(self, **_: Any) -> None:
        if _balancers.get(self.app) is not self:
            return
        conf = self.app.conf
        # If the app declares no queues, `declared` is Celery's default queue, which workers must still consume.
        declared = self.app.amqp.Queues(conf.task_queues)
        ours = [Queue(name, routing_key=name) for name in self._counts.names if name not in declared]
        routes = [*_listed(conf.task_routes), self._publisher.route]
        conf.update(task_queues=[*declared.values(), *ours], task_routes=routes)
        if (amqp := self.app.__dict__.get("amqp")) is not None and "queues" in amqp.__dict__:
            for queue in ours:
                amqp.queues.select_add(queue)

    def _known(self, queue_name: str) -> str:
        if queue_name not in self._counts.names:
            raise NotFound(
                f"no queue {queue_name!r}: the queues are {self._counts.names[0]} to {self._counts.names[-1]}"
            )
        return queue_name

    def _adjust_unless_counted(self, queue_name: str, state: State, by: int) -> int:
        """Change a counter by hand, and return its new value. Inside a task of this queue, the counter is not
        changed: the balancer has already counted the task, and the caller is an older signal handler that would
        count it twice."""
        task = self.app.current_worker_task
        if task is not None and (task.request.delivery_info or {}).get("routing_key") == queue_name:
            load = self.get_queue_load(queue_name)
            return load.pending if state == "pending" else load.running
        return self._adjust(queue_name, state, by)

    def _adjust(self, queue_name: str, state: State, by: int) -> int:
        return self._counts.adjust(self._known(queue_name), state, by)


_balancers: WeakKeyDictionary[Any, LoadBalancer] = WeakKeyDictionary()
_last: LoadBalancer | None = None


def balancer_of(app: Any) -> LoadBalancer | None:
    return _balancers.get(app)


def redis_of_counts(app: Any) -> str:
    """Return the URL of the Redis that holds the counts of an app's balancer: the `redis_url` of the app's balancer in
    this process, if it has one, otherwise the broker. Raises `ConfigError` if the broker is not Redis."""
    balancer = balancer_of(app)
    return (balancer and balancer._redis_url) or redis_of_broker(app)


def default_balancer() -> LoadBalancer:
    """Return the balancer that was created last."""
    if _last is None:
        raise NotFound("no load balancer: create one with LoadBalancer(app) where the Celery app is created")
    return _last


# -- functions -------------------------------------------------------------------------------------------------------
#
# For code that has no reference to a balancer: these functions use the balancer that was created last.


def enqueue_task_with_load_balancing(task: Any, /, *args: Any, **kwargs: Any) -> Any:
    return default_balancer().enqueue_task_with_load_balancing(task, *args, **kwargs)


def enqueue_task_to_user_queue(task: Any, user_id: Any, /, *args: Any, **kwargs: Any) -> Any:
    return default_balancer().enqueue_task_to_user_queue(task, user_id, *args, **kwargs)


def select_best_queue() -> str:
    return default_balancer().select_best_queue()


def get_all_queue_loads() -> dict[str, Load]:
    return default_balancer().get_all_queue_loads()


def get_queue_load(queue_name: str) -> Load:
    return default_balancer().get_queue_load(queue_name)


def reset_queue_counters(queue_name: str | None = None) -> None:
    default_balancer().reset_queue_counters(queue_name)


def increment_pending(queue_name: str) -> int:
    return default_balancer().increment_pending(queue_name)


def decrement_pending(queue_name: str) -> int:
    return default_balancer().decrement_pending(queue_name)


def increment_running(queue_name: str) -> int:
    return default_balancer().increment_running(queue_name)


def decrement_running(queue_name: str) -> int:
    return default_balancer().decrement_running(queue_name)


def _listed(routes: Any) -> list[Any]:
    """Return the routes as a list. The setting `task_routes` may be one route or a list of routes."""
    if routes is None:
        return []
    return list(routes) if isinstance(routes, (list, tuple)) else [routes]


# -- settings ---------------------------------------------------------------------------------------------------------

_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "queues": (lambda value: _is_number(value, int) and 1 <= value <= MOST_QUEUES, f"1 to {MOST_QUEUES}"),
    "prefix": (lambda value: isinstance(value, str) and value != "", "text"),
    "strategy": (lambda value: value in STRATEGIES, f"one of {', '.join(STRATEGIES)}"),
    "user_of": (lambda value: value is None or isinstance(value, str) or callable(value), "a name or a function"),
    "shuffle_size": (lambda value: _is_number(value, int) and value >= 1, "at least 1"),
    "worker_ttl": (lambda value: _is_number(value, int, float) and value > 0, "more than 0"),
    "reconcile_every": (lambda value: _is_number(value, int, float) and value >= 0, "0 or more"),
}


def _check(redis_url: Any, **settings: Any) -> None:
    """Raise a `ConfigError` that lists all invalid arguments."""
    problems = [
        f"{name}: should be {what}, not {settings[name]!r}"
        for name, (is_right, what) in _RULES.items()
        if not is_right(settings[name])
    ]
    if redis_url is not None and (wrong := _url_problem(redis_url)):
        problems.append(f"redis_url: {wrong}")
    if problems:
        raise ConfigError(problems)


def _url_problem(url: Any) -> str | None:
    """Return what is wrong with a URL, or None. The text does not contain the URL itself, which may have a password."""
    if not isinstance(url, str):
        return "should be text"
    if "+cluster://" in url:
        return "should be one Redis, or a master behind Sentinels: a Cluster spreads the queues over several servers"
    return redis_problem(url)


def _is_number(value: Any, *kinds: type) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def _app_of(app_or_proxy: Any) -> Any:
    """Return the Celery app itself, even if the argument is a proxy such as `celery.current_app`."""
    app = app_or_proxy._get_current_object() if isinstance(app_or_proxy, Proxy) else app_or_proxy
    if not isinstance(app, Celery):
        raise ConfigError([f"app: a Celery app is needed, not {type(app).__name__}"])
    return app

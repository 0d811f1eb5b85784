"""LoadBalancer: the public object, put together."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from kombu import Queue

from fairlead.celery.address import redis_of_broker
from fairlead.celery.groups import leave_groups_of, spread_groups_of
from fairlead.celery.keeper import Keeper
from fairlead.celery.ledger import Ledger, Load, State, Worker
from fairlead.celery.link import Link
from fairlead.celery.publishing import Publishing
from fairlead.celery.reconcile import Reconciler, Reconciliation
from fairlead.celery.settings import app_of, check
from fairlead.celery.strategies import DEFAULT_SHUFFLE_SIZE, DEFAULT_STRATEGY, Strategy, candidates_of, queue_of_user
from fairlead.celery.tracking import Tracking
from fairlead.celery.users import UserOf, Users
from fairlead.errors import NotFound, Unavailable

BEATS = 5
"""How many heartbeats of a worker may be lost before it counts as gone."""


class LoadBalancer:
    """Spreads the tasks of a Celery app over queues by their load, and knows the load exactly.

    `redis_url` is where the counts are, the app's broker if not given. `user_of` finds the user of a call: the name of
    an argument, or a function of the task's name, its arguments and keyword arguments. Times are in seconds: a worker
    not heard of for `worker_ttl` is gone; one of the workers reconciles every `reconcile_every` (0: never).
    """

    def __init__(
        self,
        app: Any,
        queues: int = 20,
        prefix: str = "queue_",
        *,
        redis_url: str | None = None,
        strategy: Strategy = DEFAULT_STRATEGY,
        user_of: UserOf | None = None,
        shuffle_size: int = DEFAULT_SHUFFLE_SIZE,
        worker_ttl: float = 15.0,
        reconcile_every: float = 30.0,
    ) -> None:
        check(
            queues=queues,
            prefix=prefix,
            redis_url=redis_url,
            strategy=strategy,
            user_of=user_of,
            shuffle_size=shuffle_size,
            worker_ttl=worker_ttl,
            reconcile_every=reconcile_every,
        )
        app = self.app = app_of(app)
        self._worker_ttl = worker_ttl
        self._link = Link(lambda: redis_url or redis_of_broker(app))
        candidates = candidates_of(strategy, queues, shuffle_size)
        self._ledger = Ledger(self._link, prefix, queues)
        users = Users(user_of, lambda name: app.tasks.get(name))
        self._publishing = Publishing(app, self._ledger, candidates, users, own_redis=redis_url is None)
        self._tracking = Tracking(app, self._ledger)
        self._reconciler = Reconciler(app, self._ledger, worker_ttl, worker_ttl / BEATS)
        self._keeper = Keeper(app, self._ledger, self._reconciler.run, worker_ttl / BEATS, reconcile_every)
        self._connect()

    # -- enqueueing ------------------------------------------------------------------------------------------------

    def enqueue_task_with_load_balancing(self, task: Any, /, *args: Any, **kwargs: Any) -> Any:
        """As `task.delay(*args, **kwargs)`, to a balanced queue even if other routes or the task name another."""
        return self._publishing.enqueue(task, args, kwargs)

    def enqueue_task_to_user_queue(self, task: Any, user_id: Any, /, *args: Any, **kwargs: Any) -> Any:
        """As `task.delay(*args, **kwargs)`, to the one queue that is this user's at all times."""
        queue = self._ledger.names[queue_of_user(str(user_id), len(self._ledger.names))]
        return task.apply_async(args=args, kwargs=kwargs, queue=queue)

    def select_best_queue(self) -> str:
        """The least loaded now. Nothing is reserved: another caller may be told the same."""
        try:
            loads = self._ledger.loads()
        except Unavailable:
            return self._publishing.next_in_turn("", (), {})
        return min(loads, key=lambda name: loads[name].total)

    # -- loads -----------------------------------------------------------------------------------------------------

    @property
    def queue_names(self) -> tuple[str, ...]:
        return self._ledger.names

    def get_all_queue_loads(self) -> dict[str, Load]:
        """(pending, running) of every queue, at one moment."""
        return self._ledger.loads()

    def get_queue_load(self, queue_name: str) -> Load:
        return self._ledger.loads()[self._known(queue_name)]

    def reset_queue_counters(self, queue_name: str | None = None) -> None:
        """Forgets what is pending and running. Reconcile passes find again what is really there."""
        self._ledger.reset(self._ledger.names if queue_name is None else [self._known(queue_name)])

    def increment_pending(self, queue_name: str) -> int:
        """Counts one more by hand. The next task sent to this queue by name takes the count over."""
        return self._adjust(queue_name, "pending", 1)

    def decrement_pending(self, queue_name: str) -> int:
        return self._adjust(queue_name, "pending", -1)

    def increment_running(self, queue_name: str) -> int:
        return self._adjust(queue_name, "running", 1)

    def decrement_running(self, queue_name: str) -> int:
        return self._adjust(queue_name, "running", -1)

    def reconcile(self) -> Reconciliation:
        """Compares with the broker and the workers now, and repairs. Workers do it by themselves, too."""
        return self._reconciler.run()

    def repairs(self) -> dict[str, int]:
        """How many repairs there were of each kind, by all processes."""
        return self._ledger.repairs()

    def workers(self) -> list[Worker]:
        """The workers that count their tasks and were heard of lately."""
        oldest = self._ledger.now() - int(self._worker_ttl * 1_000_000)
        return [worker for worker in self._ledger.workers() if worker.heard > oldest]

    # -- wiring ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leaves the app as it was, but for the queues that it declares."""
        for part in (self._publishing, self._tracking, self._keeper):
            part.disconnect()
        leave_groups_of(self.app)
        if self.app.configured:
            routes = [route for route in _listed(self.app.conf.task_routes) if route != self._publishing.route]
            self.app.conf.update(task_routes=routes)
        self._link.close()
        _balancers.pop(self.app, None)

    def _connect(self) -> None:
        global _last
        _last = self
        if (former := _balancers.get(self.app)) is not None:
            former.close()
        _balancers[self.app] = self
        for part in (self._publishing, self._tracking, self._keeper):
            part.connect()
        spread_groups_of(self.app, self._publishing)
        # Reading the configuration makes Celery load it, and its settings may not be there yet (Django).
        if self.app.configured:
            self._configure()
        else:
            self.app.on_after_configure.connect(self._configure, weak=False, dispatch_uid=(id(self), "configure"))

    def _configure(self, **_: Any) -> None:
        if _balancers.get(self.app) is not self:
            return
        conf = self.app.conf
        # Where none are declared this is Celery's default queue; what is or comes there must still be consumed.
        declared = self.app.amqp.Queues(conf.task_queues)
        ours = [Queue(name, routing_key=name) for name in self._ledger.names if name not in declared]
        routes = [*_listed(conf.task_routes), self._publishing.route]
        conf.update(task_queues=[*declared.values(), *ours], task_routes=routes)
        if (amqp := self.app.__dict__.get("amqp")) is not None and "queues" in amqp.__dict__:
            for queue in ours:
                amqp.queues.select_add(queue)

    def _known(self, queue_name: str) -> str:
        if queue_name not in self._ledger.names:
            raise NotFound(f"no queue {queue_name!r}: there are {self._ledger.names[0]} to {self._ledger.names[-1]}")
        return queue_name

    def _adjust(self, queue_name: str, state: State, by: int) -> int:
        return self._ledger.adjust(self._known(queue_name), state, by)


_balancers: WeakKeyDictionary[Any, LoadBalancer] = WeakKeyDictionary()
_last: LoadBalancer | None = None


def balancer_of(app: Any) -> LoadBalancer | None:
    return _balancers.get(app)


def default_balancer() -> LoadBalancer:
    """The one that was made last."""
    if _last is None:
        raise NotFound("no load balancer: make one first, LoadBalancer(app), where the Celery app is made")
    return _last


def _listed(routes: Any) -> list[Any]:
    """`task_routes` may be one route or a list of them."""
    if routes is None:
        return []
    return list(routes) if isinstance(routes, (list, tuple)) else [routes]

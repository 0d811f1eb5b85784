"""The queues of one service: one per band, lane and user, and the order of the users.

A band is either fair (users ordered by virtual time) or FIFO (users ordered by the lowest `seq` of their steps). Both
have the same methods, so a service need not know which kind it has:

    join, leave     add a step, or remove it from anywhere in its queue
    head            the user that is next in a lane
    take            remove that user's first step, because it is granted
    charge, settle  move the user's virtual time

Each lane orders its users in a heap whose keys may be out of date (`Ranking`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from sortedcontainers import SortedList

from fairlead.dispatch.memory.costs import LaneCosts
from fairlead.dispatch.memory.ranking import Node, Ranking
from fairlead.domain.fair_share import charge

if TYPE_CHECKING:
    from fairlead.dispatch.memory.groups import Group
    from fairlead.domain.rates import Window

Entry: TypeAlias = tuple[int, str, str, str, int, int, int, int, int | None, str | None, str | None]
"""A waiting step, sorted by its order key and then by job id.

A plain tuple of strings and numbers: the garbage collector does not track such tuples, so a million entries do not slow
it down.
"""
KEY: Final = 0
JOB: Final = 1
USER: Final = 2
SERVICE: Final = 3
BAND: Final = 4
RANK: Final = 5
STEP: Final = 6
RUN: Final = 7
COST: Final = 8
REGION: Final = 9
PLAN: Final = 10

Queue: TypeAlias = "list[Entry] | SortedList"
"""One user's steps in one lane, sorted. Short queues are plain lists, because most are short and an empty `SortedList`
takes 500 bytes."""

SortKey: TypeAlias = tuple[int, str]
"""The key by which the users of a lane are sorted, as (number, user id). The number is the virtual time, for a newcomer
the order of arrival, and in FIFO lanes the lowest `seq`."""

LONG = 1024
_RANK_SHIFT = 56
_SEQ = (1 << _RANK_SHIFT) - 1
NEWCOMERS = -(1 << 52)
"""Added to a newcomer's number, so that newcomers sort before every virtual time, in order of arrival."""


def order_key(rank: int, seq: int, *, fifo: bool) -> int:
    """The sort key of a step among the steps of one user: retries go first, then later steps of running jobs, then new
    jobs, each by `seq`. In FIFO lanes the key is `seq` alone."""
    return seq if fifo else rank << _RANK_SHIFT | seq


def rekeyed(entry: Entry, *, fifo: bool) -> Entry:
    """The entry with a new sort key, for a service that has changed between fair and FIFO order."""
    return (order_key(entry[RANK], entry[KEY] & _SEQ, fifo=fifo), *entry[1:])


def inserted(queue: Queue, entry: Entry) -> Queue:
    """Insert the entry and return the queue. A queue that has become long is returned as a `SortedList`."""
    if isinstance(queue, list):
        if len(queue) < LONG:
            insort(queue, entry)
            return queue
        queue = SortedList(queue)
    queue.add(entry)
    return queue


def remove(queue: Queue, entry: Entry) -> None:
    """Remove the entry from anywhere in the queue."""
    if isinstance(queue, list):
        del queue[bisect_left(queue, entry)]
    else:
        queue.remove(entry)


class User:
    """One user of a service, with the user's steps in all bands and lanes."""

    __slots__ = ("group", "levels", "mean", "plan", "running", "user_id", "waiting", "weight", "window", "windows")

    def __init__(self, user_id: str, window: Window | None) -> None:
        self.user_id = user_id
        self.window = window
        """What the user's own rate counts. None if that is nothing."""
        self.windows: tuple[Window, ...] | None = None
        """The windows that count the user's calls, if they have no region, and as long as the user has this plan. None:
        not known. Maintained by `ServiceRates`."""
        self.plan: str | None = None
        self.weight = 1.0
        self.waiting = 0
        self.running = 0
        self.mean: int | None = None
        self.group: str | None = None
        """The path of the user's group. FIFO services ignore it."""
        self.levels: tuple[Group, ...] = ()
        """The groups that the user is in, from the innermost. Maintained by `Groups`."""


class Lane(Ranking):
    """The waiting steps of one lane of a band, by user. The unbound lane (None) holds the steps that may run in any
    region."""

    __slots__ = ("costs", "keys", "queues")

    def __init__(self) -> None:
        super().__init__()
        self.queues: dict[str, Queue] = {}
        self.costs = LaneCosts()
        self.keys = SortedList()
        """All order keys of a FIFO lane, for exact positions. Unused in fair lanes."""


class Band:
    """Base class of fair and FIFO bands: the lanes, and the users by which a fair one orders them."""

    __slots__ = ("lanes", "nodes", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        self.nodes: dict[str, Node] = {}
        self.lanes: dict[str | None, Lane] = {None: Lane()}

    def lane(self, region: str | None) -> Lane:
        lane = self.lanes.get(region)
        if lane is None:
            lane = self.lanes[region] = Lane()
        return lane

    def waits(self, user_id: str) -> bool:
        return any(user_id in lane.queues for lane in self.lanes.values())

    def head(self, region: str | None, parked: set[str]) -> tuple[Any, ...] | None:
        lane = self.lanes.get(region)
        return None if lane is None else lane.first(parked)

    def unpark(self, user_id: str) -> None:
        """Let the steps of a parked user be granted again."""
        for lane in self.lanes.values():
            if (place := lane.places.get(user_id)) is not None:
                lane.push(place.node)


class FairBand(Band):
    """A band with start-time fair queueing among users: the user with the lowest virtual time (tag) goes next, ties are
    ordered by user id.

    A user has one tag for all lanes of the band. `virtual_time` is the start tag of the last grant to a user that was
    not new. It can decrease, because a tag is lowered when its user turns out to have been overcharged.

    A user has debt if its tag is above `virtual_time`. A user that enters the band without debt is new, and until its
    first grant goes before all users that are not new. Its first step therefore does not depend on the estimated
    charges of other users, however wrong these are (ADR 8).
    """

    __slots__ = ("_queued", "arrivals", "idle", "virtual_time")

    def __init__(self) -> None:
        super().__init__()
        self.virtual_time = 0
        self.arrivals = 0
        self.idle: list[SortKey] = []
        """Users with nothing waiting or running whose tag is above the virtual time. They are forgotten once the
        virtual time reaches their tag."""
        self._queued: set[SortKey] = set()
        """The entries of `idle` as a set, so that a user who joins and leaves without a grant is not added twice."""

    def join(self, entry: Entry, region: str | None) -> None:
        lane = self.lane(region)
        user_id = entry[USER]
        queue = lane.queues.get(user_id)
        self.waiting += 1
        if queue is not None:
            lane.queues[user_id] = inserted(queue, entry)
            return
        if len(self.lanes) == 1 or not self.waits(user_id):
            self.enter(user_id)
        lane.queues[user_id] = [entry]
        lane.push(self.nodes[user_id])

    def leave(self, entry: Entry, region: str | None) -> None:
        lane = self.lanes[region]
        queue = lane.queues[entry[USER]]
        self.waiting -= 1
        remove(queue, entry)
        if not queue:
            self._empty(region, entry[USER])

    def take(self, region: str | None, user_id: str) -> Entry:
        queue = self.lanes[region].queues[user_id]
        entry: Entry = queue.pop(0)
        self.waiting -= 1
        if not queue:
            self._empty(region, user_id)
        return entry

    def _empty(self, region: str | None, user_id: str) -> None:
        lane = self.lanes[region]
        del lane.queues[user_id]
        lane.drop(user_id)

    def charge(self, user: User, cost: int) -> int:
        """Charge a grant to the user, and return the charge. `virtual_time` becomes the tag that the user had before,
        unless the user is new."""
        node = self.nodes[user.user_id]
        tag = node.tag
        if node.key == tag:
            self.virtual_time = tag
        charged = charge(cost, user.weight)
        node.key = node.tag = tag + charged
        return charged

    def settle(self, user_id: str, difference: int) -> None:
        """Correct an earlier charge of the user by `difference`. This moves all waiting steps of the user. A user whose
        charge is raised is no longer new."""
        if difference > 0:
            node = self.nodes.get(user_id) or self._node(user_id)
            node.key = node.tag = node.tag + difference
        elif difference:
            self._credit(user_id, difference)

    def _credit(self, node_id: str, difference: int) -> None:
        """Lower the virtual time of a node."""
        node = self.nodes.get(node_id) or self._node(node_id)
        if node.key == node.tag:
            node.key += difference
        node.tag += difference
        for place in node.places:
            if node.key < place.number:
                place.ranking.push(node)

    def _node(self, node_id: str) -> Node:
        node = self.nodes[node_id] = Node(node_id)
        return node

    def unpark(self, user_id: str) -> None:
        """Let the steps of a parked user be granted again. Users earn no credit while they are parked."""
        if self.waiting and self.waits(user_id):
            self.enter(user_id)
            super().unpark(user_id)

    def stays_first(self, first: User, user: User) -> bool:
        """Whether the user that is next, or its group, stays next although charges of another user were settled."""
        nodes = self.nodes
        one = nodes[first.levels[-1].id if first.levels else first.user_id]
        other = nodes.get(user.levels[-1].id if user.levels else user.user_id)
        return other is None or (one.key, one.id) < (other.key, other.id)

    def arrival(self, user_id: str) -> int:
        """The user's number in the order of the newcomers, or 0 if the user is not new."""
        node = self.nodes.get(user_id)
        return node.key - NEWCOMERS if node is not None and node.is_new else 0

    def tag_of(self, user_id: str) -> int:
        return self.nodes[user_id].tag if user_id in self.nodes else 0

    def has_debt(self, user_id: str) -> bool:
        """Whether a user with nothing waiting or running has a tag above the virtual time. If so, the user is added to
        `idle`, and is remembered until the virtual time reaches the tag."""
        tag = self.tag_of(user_id)
        if tag <= self.virtual_time:
            return False
        sort_key = (tag, user_id)
        if sort_key not in self._queued:
            self._queued.add(sort_key)
            heappush(self.idle, sort_key)
        return True

    def forget(self, user_id: str) -> None:
        self.nodes.pop(user_id, None)

    def drop_newcomers(self) -> None:
        """Treat all waiting users as not new. Called after the queues were rebuilt, because all of these users were
        waiting before."""
        for node in self.nodes.values():
            node.key = node.tag
        for lane in self.lanes.values():
            lane.fill()

    def overtaken(self) -> Sequence[str]:
        """Remove and return the idle users that have no debt any more, because the virtual time has reached their
        tags."""
        idle, users = self.idle, []
        if not idle or idle[0][0] > self.virtual_time:
            return ()
        while idle and idle[0][0] <= self.virtual_time:
            users.append(self.pop_idle(""))
        return users

    def idle_count(self) -> int:
        return len(self._queued)

    def pop_idle(self, beside: str) -> str:
        """Remove and return the idle user with the least debt, of those beside a user that has become idle."""
        sort_key = heappop(self.idle)
        self._queued.discard(sort_key)
        return sort_key[1]

    def enter(self, user_id: str) -> None:
        """Set the tag of a user that begins to wait. A tag above the virtual time is kept. Otherwise the user starts at
        the virtual time, as the last of the newcomers."""
        self._enter(user_id, self.virtual_time)

    def _enter(self, node_id: str, time: int) -> None:
        node = self.nodes.get(node_id)
        if node is None or node.tag <= time:
            node = node or self._node(node_id)
            self.arrivals += 1
            node.tag, node.key = time, NEWCOMERS + self.arrivals
        else:
            node.key = node.tag


class FifoBand(Band):
    """A band in which the step with the lowest `seq` goes next. Each user still has a queue, so that a user at its
    limit can be parked."""

    __slots__ = ()

    def join(self, entry: Entry, region: str | None) -> None:
        lane = self.lane(region)
        user_id = entry[USER]
        queue = lane.queues.get(user_id)
        lane.queues[user_id] = queue = [entry] if queue is None else inserted(queue, entry)
        lane.keys.add(entry[KEY])
        self.waiting += 1
        if queue[0] is entry:  # a user has a node in each lane: the key is that of its first step there
            place = lane.places.get(user_id)
            node = Node(user_id) if place is None else place.node
            node.key = entry[KEY]
            lane.push(node)

    def leave(self, entry: Entry, region: str | None) -> None:
        lane = self.lanes[region]
        queue = lane.queues[entry[USER]]
        remove(queue, entry)
        self._left(lane, entry, queue)

    def take(self, region: str | None, user_id: str) -> Entry:
        lane = self.lanes[region]
        queue = lane.queues[user_id]
        entry: Entry = queue.pop(0)
        self._left(lane, entry, queue)
        return entry

    def charge(self, user: User, cost: int) -> int:
        return 0

    def stays_first(self, first: User, user: User) -> bool:
        return True

    def settle(self, user_id: str, difference: int) -> None:
        """Do nothing: FIFO bands charge nothing."""

    def has_debt(self, user_id: str) -> bool:
        return False

    def forget(self, user_id: str) -> None:
        """Do nothing: FIFO bands keep no record of users."""

    def drop_newcomers(self) -> None:
        """Do nothing: FIFO bands have no newcomers."""

    def overtaken(self) -> Sequence[str]:
        return ()

    def idle_count(self) -> int:
        return 0

    def pop_idle(self, beside: str) -> str:
        raise IndexError("no user of a FIFO band has a debt")

    def _left(self, lane: Lane, entry: Entry, queue: Queue) -> None:
        lane.keys.remove(entry[KEY])
        self.waiting -= 1
        if queue:
            lane.places[entry[USER]].node.key = queue[0][KEY]
        else:
            del lane.queues[entry[USER]]
            lane.drop(entry[USER])

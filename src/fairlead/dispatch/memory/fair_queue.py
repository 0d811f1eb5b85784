"""The queues of one service: one per band, lane and user, and the order of the users.

A band is either fair (users ordered by virtual time) or FIFO (users ordered by the lowest `seq` of their steps). Both
have the same methods, so a service need not know which kind it has:

    join, leave     add a step, or remove it from anywhere in its queue
    head            the user that is next in a lane
    take            remove that user's first step, because it is granted
    charge, settle  move the user's virtual time

Each lane orders its users in a heap whose keys may be out of date (`Ranking`). A sort key that rises, as with every
grant, changes nothing there: the key in the heap is corrected when it reaches the top. Only a key that falls is pushed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Container, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from sortedcontainers import SortedList

from fairlead.dispatch.memory.costs import LaneCosts
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
STALE_KEYS = 64
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


NOTHING_BELOW: Mapping[Any, Ranking] = {}


class Ranking:
    """The users or groups `ranked`, in a heap by sort keys that are at most as high as the real ones, which are in
    `new` or `tags`. `numbers` has the number of the key that counts for each: others in the heap are older and
    higher."""

    __slots__ = ("heap", "new", "numbers", "ranked", "tags")

    def __init__(self, ranked: Collection[str], tags: dict[str, int], new: dict[str, int]) -> None:
        self.ranked = ranked
        self.tags = tags
        self.new = new
        self.heap: list[SortKey] = []
        self.numbers: dict[str, int] = {}

    def first(self, parked: Container[str], below: Mapping[Any, Ranking] = NOTHING_BELOW) -> tuple[Any, ...] | None:
        """The lowest sort key of those that are not parked. If `below` ranks the members of that group, the lowest one
        among these follows, down to a user."""
        heap, numbers, ranked, new, tags = self.heap, self.numbers, self.ranked, self.new, self.tags
        found: tuple[Any, ...] = ()
        while heap:
            sort_key = heap[0]
            number, node = sort_key
            if node in ranked and node not in parked:
                real = new[node] if node in new else tags[node]
                if real == number:
                    if node not in below:
                        return found + sort_key if found else sort_key
                    found += sort_key
                    level = below[node]
                    heap, numbers, ranked = level.heap, level.numbers, level.ranked
                    continue
                if numbers.get(node) == number:
                    numbers[node] = real
                    heapreplace(heap, (real, node))
                    continue
            elif numbers.get(node) == number:
                del numbers[node]
            heappop(heap)
        assert not found  # active groups have active members
        return None

    def push(self, node: str) -> None:
        """The sort key of `node` is new, or may have fallen."""
        number, known = self.new[node] if node in self.new else self.tags[node], self.numbers.get(node)
        if known is None or number < known:
            self.numbers[node] = number
            heappush(self.heap, (number, node))
            if len(self.heap) > 2 * len(self.ranked) + STALE_KEYS:
                self.fill()  # most keys are useless; the cost is spread over the pushes since the last time

    def fill(self) -> None:
        """Rank all by their real sort keys."""
        self.numbers = {node: self.new[node] if node in self.new else self.tags[node] for node in self.ranked}
        self.heap = [(number, node) for node, number in self.numbers.items()]
        heapify(self.heap)


class Lane(Ranking):
    """The waiting steps of one lane of a band, by user. The unbound lane (None) holds the steps that may run in any
    region."""

    __slots__ = ("costs", "keys", "queues")

    def __init__(self, tags: dict[str, int], new: dict[str, int]) -> None:
        self.queues: dict[str, Queue] = {}
        super().__init__(self.queues, tags, new)
        self.costs = LaneCosts()
        self.keys = SortedList()
        """All order keys of a FIFO lane, for exact positions. Unused in fair lanes."""


class Band:
    """Base class of fair and FIFO bands: the lanes, and the numbers by which they order their users."""

    __slots__ = ("lanes", "new", "tags", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        self.tags: dict[str, int] = {}
        self.new: dict[str, int] = {}
        """The sort keys of newcomers, until their first grant."""
        self.lanes: dict[str | None, Lane] = {None: self._new_lane()}

    def _new_lane(self) -> Lane:
        return Lane(self.tags, self.new)

    def lane(self, region: str | None) -> Lane:
        lane = self.lanes.get(region)
        if lane is None:
            lane = self.lanes[region] = self._new_lane()
        return lane

    def waits(self, user_id: str) -> bool:
        return any(user_id in lane.queues for lane in self.lanes.values())

    def head(self, region: str | None, parked: set[str]) -> tuple[Any, ...] | None:
        lane = self.lanes.get(region)
        return None if lane is None else lane.first(parked)

    def _fell(self, user_id: str) -> None:
        """The sort key of a user may have fallen."""
        for lane in self.lanes.values():
            if user_id in lane.queues:
                lane.push(user_id)


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
        lane.push(user_id)

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
        del self.lanes[region].queues[user_id]

    def charge(self, user: User, cost: int) -> int:
        """Charge a grant to the user, and return the charge. `virtual_time` becomes the tag that the user had before,
        unless the user is new."""
        user_id = user.user_id
        tag = self.tags[user_id]
        if self.new.pop(user_id, None) is None:
            self.virtual_time = tag
        charged = charge(cost, user.weight)
        self.tags[user_id] = tag + charged
        return charged

    def settle(self, user_id: str, difference: int) -> None:
        """Correct an earlier charge of the user by `difference`. This moves all waiting steps of the user. A user whose
        charge is raised is no longer new."""
        if difference > 0:
            self.new.pop(user_id, None)
        if difference:
            self.tags[user_id] = self.tags.get(user_id, 0) + difference
        if difference < 0:
            self._fell(user_id)

    def unpark(self, user_id: str) -> None:
        """Let the steps of a parked user be granted again. Users earn no credit while they are parked."""
        if self.waiting and self.waits(user_id):
            self.enter(user_id)
            self._fell(user_id)

    def stays_first(self, first: User, user: User) -> bool:
        """Whether the user that is next, or its group, stays next although charges of another user were settled."""
        number_of, tags = self.new, self.tags
        one = first.levels[-1].id if first.levels else first.user_id
        other = user.levels[-1].id if user.levels else user.user_id
        number = number_of[one] if one in number_of else tags[one]
        than = number_of[other] if other in number_of else tags.get(other)
        return than is None or number < than or (number == than and one < other)

    def arrival(self, user_id: str) -> int:
        """The user's number in the order of the newcomers, or 0 if the user is not new."""
        return self.new[user_id] - NEWCOMERS if user_id in self.new else 0

    def has_debt(self, user_id: str) -> bool:
        """Whether a user with nothing waiting or running has a tag above the virtual time. If so, the user is added to
        `idle`, and is remembered until the virtual time reaches the tag."""
        tag = self.tags.get(user_id, 0)
        if tag <= self.virtual_time:
            return False
        sort_key = (tag, user_id)
        if sort_key not in self._queued:
            self._queued.add(sort_key)
            heappush(self.idle, sort_key)
        return True

    def forget(self, user_id: str) -> None:
        self.tags.pop(user_id, None)
        self.new.pop(user_id, None)

    def drop_newcomers(self) -> None:
        """Treat all waiting users as not new. Called after the queues were rebuilt, because all of these users were
        waiting before."""
        self.new.clear()
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
        tag = self.tags.get(user_id)
        self.new.pop(user_id, None)
        if tag is None or tag <= self.virtual_time:
            self.tags[user_id] = self.virtual_time
            self.arrivals += 1
            self.new[user_id] = NEWCOMERS + self.arrivals


class FifoBand(Band):
    """A band in which the step with the lowest `seq` goes next. Each user still has a queue, so that a user at its
    limit can be parked."""

    __slots__ = ()

    def _new_lane(self) -> Lane:
        return Lane({}, self.new)  # the number of a user is that of its first step in the lane

    def join(self, entry: Entry, region: str | None) -> None:
        lane = self.lane(region)
        user_id = entry[USER]
        queue = lane.queues.get(user_id)
        lane.queues[user_id] = queue = [entry] if queue is None else inserted(queue, entry)
        lane.keys.add(entry[KEY])
        self.waiting += 1
        if queue[0] is entry:
            lane.tags[user_id] = entry[KEY]
            lane.push(user_id)

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

    def unpark(self, user_id: str) -> None:
        self._fell(user_id)

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
            lane.tags[entry[USER]] = queue[0][KEY]
        else:
            del lane.queues[entry[USER]], lane.tags[entry[USER]]

"""The lines of one service: per band and lane, a line per user, and who of the users is next.

A band is either fair (users by virtual time) or FIFO (users by the lowest `seq` they have waiting). Both have the same
verbs, so that a service need not know which it has:

    join, leave     a step is put in line, or taken out of it from anywhere
    head            the user that is next in a lane
    take            that user's first step leaves the line, granted
    charge, settle  the user's virtual time moves

Who is next is kept in a heap per lane that is cleaned late: whatever changes a user's standing pushes it anew, and a
standing that no longer holds is dropped when it comes to the top. A push costs a fraction of what it would cost to find
and remove the old one, and standings change twice per grant.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heapify, heappop, heappush
from typing import Final, TypeAlias

from sortedcontainers import SortedList

from fairlead.domain.order import charge

Entry: TypeAlias = tuple[int, str, str, str, int, int, int, int, int | None, str | None]
"""A step in line. Sorts by its order key, then by job id.

A plain tuple of atoms, not a class: the garbage collector stops tracking those, so that a million of them waiting
do not make it stop the world.
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

Line: TypeAlias = "list[Entry] | SortedList"
"""One user's steps in one lane, in order: a list while it is short (most are, and a `SortedList` weighs 500 bytes)."""

Standing: TypeAlias = tuple[int, str]
"""What a lane's users are sorted by, and the user: (virtual time, newcomer's number or lowest seq, user id)."""

LONG = 1024
_SPARE_STANDINGS = 64
_RANK_SHIFT = 56
_SEQ = (1 << _RANK_SHIFT) - 1
_NEWCOMERS = -(1 << 52)
"""Newcomers stand by this plus their number: before every virtual time, in order of arrival."""


def order_key(rank: int, seq: int, *, fifo: bool) -> int:
    """Within one user: retries, then jobs under way, then arrivals; each by arrival. FIFO lanes know arrival only."""
    return seq if fifo else rank << _RANK_SHIFT | seq


def rekeyed(entry: Entry, *, fifo: bool) -> Entry:
    """The same step, for a service whose order is now another."""
    return (order_key(entry[RANK], entry[KEY] & _SEQ, fifo=fifo), *entry[1:])


def joined(line: Line, entry: Entry) -> Line:
    """The line with this entry in its place; a line that grew long goes on as a `SortedList`."""
    if isinstance(line, list):
        if len(line) < LONG:
            insort(line, entry)
            return line
        line = SortedList(line)
    line.add(entry)
    return line


def left(line: Line, entry: Entry) -> None:
    """Take this entry out of the line, where it is."""
    if isinstance(line, list):
        del line[bisect_left(line, entry)]
    else:
        line.remove(entry)


def before(line: Line, entry: Entry) -> int:
    """How many of the line come before this entry, whether it is in that line or not."""
    return bisect_left(line, entry) if isinstance(line, list) else line.bisect_left(entry)


class Lane:
    """Where steps wait: one per region, and the unbound one (None) that any region may serve."""

    __slots__ = ("heap", "keys", "lines")

    def __init__(self) -> None:
        self.lines: dict[str, Line] = {}
        self.heap: list[Standing] = []
        self.keys = SortedList()
        """Of a FIFO lane, all order keys, for exact positions; a fair lane has no use for them."""


class Band:
    """What fair and FIFO bands have in common: the lanes, and who of their users is next."""

    __slots__ = ("lanes", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        self.lanes: dict[str | None, Lane] = {None: Lane()}

    def lane(self, region: str | None) -> Lane:
        lane = self.lanes.get(region)
        if lane is None:
            lane = self.lanes[region] = Lane()
        return lane

    def waits(self, user_id: str) -> bool:
        return any(user_id in lane.lines for lane in self.lanes.values())

    def _push(self, lane: Lane, standing: Standing) -> None:
        heap = lane.heap
        heappush(heap, standing)
        if len(heap) > 2 * len(lane.lines) + _SPARE_STANDINGS:
            # Mostly standings that no longer hold: begin anew, at a price that the pushes since the last time paid.
            heap[:] = [self._standing(lane, user_id) for user_id in lane.lines]
            heapify(heap)

    def _standing(self, lane: Lane, user_id: str) -> Standing:
        raise NotImplementedError


class FairBand(Band):
    """Start-time fair queueing among users: the lowest virtual time (tag) goes next, equal ones by user id.

    A user has one tag for all lanes of the band. `virtual_time` is the start tag of the last grant to a user that was
    not new. It falls when that user had been charged too much before: a peak that nobody reached is no measure.

    Who enters without debt is new, and goes before all who are not: once, as its first grant ends that. So its first
    step waits for no settlement of anybody's charges, whatever was estimated (ADR 8).
    """

    __slots__ = ("arrivals", "idle", "new", "tags", "virtual_time")

    def __init__(self) -> None:
        super().__init__()
        self.virtual_time = 0
        self.tags: dict[str, int] = {}
        self.arrivals = 0
        self.new: dict[str, int] = {}
        """Where newcomers stand, until their first grant."""
        self.idle: list[Standing] = []
        """Users that had nothing left to do but a tag beyond the virtual time: to be forgotten when it gets there."""

    def join(self, entry: Entry, region: str | None) -> None:
        lane = self.lane(region)
        user_id = entry[USER]
        line = lane.lines.get(user_id)
        self.waiting += 1
        if line is not None:
            lane.lines[user_id] = joined(line, entry)
            return
        if len(self.lanes) == 1 or not self.waits(user_id):
            self._enter(user_id)
        lane.lines[user_id] = [entry]
        self._push(lane, self._standing(lane, user_id))

    def leave(self, entry: Entry, region: str | None) -> None:
        lane = self.lanes[region]
        line = lane.lines[entry[USER]]
        self.waiting -= 1
        left(line, entry)
        if not line:
            del lane.lines[entry[USER]]

    def head(self, region: str | None, parked: set[str]) -> Standing | None:
        lane = self.lanes.get(region)
        if lane is None:
            return None
        heap, lines, tags, new = lane.heap, lane.lines, self.tags, self.new
        while heap:
            standing = heap[0]
            rank, user_id = standing
            holds = user_id in lines and rank == (new[user_id] if user_id in new else tags[user_id])
            if holds and user_id not in parked:
                return standing
            heappop(heap)
        return None

    def take(self, region: str | None, user_id: str) -> Entry:
        lines = self.lanes[region].lines
        line = lines[user_id]
        entry: Entry = line.pop(0)
        self.waiting -= 1
        if not line:
            del lines[user_id]
        return entry

    def charge(self, user_id: str, cost: int, weight: float) -> int:
        """A grant: the virtual time is the user's tag, unless it is new; the user moves back by what this will cost."""
        tag = self.tags[user_id]
        if self.new.pop(user_id, None) is None:
            self.virtual_time = tag
        charged = charge(cost, weight)
        self._move(user_id, tag + charged)
        return charged

    def settle(self, user_id: str, difference: int) -> None:
        """Charged too little, or too much: everything that this user has waiting moves. Who has a debt is not new."""
        if difference > 0:
            self.new.pop(user_id, None)
        if difference:
            self._move(user_id, self.tags.get(user_id, 0) + difference)

    def unpark(self, user_id: str) -> None:
        """No credit was saved up while set aside."""
        if self.waiting and self.waits(user_id):
            self._enter(user_id)
            self._move(user_id, self.tags[user_id])

    def arrival(self, user_id: str) -> int:
        """Its number among the newcomers, 0 if it is none."""
        return self.new[user_id] - _NEWCOMERS if user_id in self.new else 0

    def lingers(self, user_id: str) -> bool:
        """Whether a user with nothing to do is still to be remembered, because of a debt."""
        tag = self.tags.get(user_id, 0)
        if tag <= self.virtual_time:
            return False
        heappush(self.idle, (tag, user_id))
        return True

    def forget(self, user_id: str) -> None:
        self.tags.pop(user_id, None)
        self.new.pop(user_id, None)

    def begin_anew(self) -> None:
        """All that are in line have been there before: none of them is new."""
        self.new.clear()
        for lane in self.lanes.values():
            lane.heap = [self._standing(lane, user_id) for user_id in lane.lines]
            heapify(lane.heap)

    def overtaken(self) -> list[str]:
        """Idle users whose tag the virtual time has reached since this was last asked."""
        users = []
        while self.idle and self.idle[0][0] <= self.virtual_time:
            users.append(heappop(self.idle)[1])
        return users

    def _enter(self, user_id: str) -> None:
        """No credit saved up, no debt forgotten; and who has no debt is new, at the end of those who are."""
        tag = self.tags.get(user_id)
        self.new.pop(user_id, None)
        if tag is None or tag <= self.virtual_time:
            self.tags[user_id] = self.virtual_time
            self.arrivals += 1
            self.new[user_id] = _NEWCOMERS + self.arrivals

    def _move(self, user_id: str, tag: int) -> None:
        self.tags[user_id] = tag
        for lane in self.lanes.values():
            if user_id in lane.lines:
                self._push(lane, self._standing(lane, user_id))

    def _standing(self, lane: Lane, user_id: str) -> Standing:
        return (self.new[user_id] if user_id in self.new else self.tags[user_id], user_id)


class FifoBand(Band):
    """The lowest `seq` goes next. Lines are per user all the same, so that a user at its limit can be set aside."""

    __slots__ = ()

    def join(self, entry: Entry, region: str | None) -> None:
        lane = self.lane(region)
        user_id = entry[USER]
        line = lane.lines.get(user_id)
        lane.lines[user_id] = line = [entry] if line is None else joined(line, entry)
        lane.keys.add(entry[KEY])
        self.waiting += 1
        if line[0] is entry:
            self._push(lane, (entry[KEY], user_id))

    def leave(self, entry: Entry, region: str | None) -> None:
        lane = self.lanes[region]
        line = lane.lines[entry[USER]]
        left(line, entry)
        self._left(lane, entry, line)

    def head(self, region: str | None, parked: set[str]) -> Standing | None:
        lane = self.lanes.get(region)
        if lane is None:
            return None
        heap, lines = lane.heap, lane.lines
        while heap:
            standing = heap[0]
            user_id = standing[1]
            if user_id in lines and lines[user_id][0][KEY] == standing[0] and user_id not in parked:
                return standing
            heappop(heap)
        return None

    def take(self, region: str | None, user_id: str) -> Entry:
        lane = self.lanes[region]
        line = lane.lines[user_id]
        entry: Entry = line.pop(0)
        self._left(lane, entry, line)
        return entry

    def charge(self, user_id: str, cost: int, weight: float) -> int:
        return 0

    def settle(self, user_id: str, difference: int) -> None:
        """Nothing is charged here, so nothing is to be settled."""

    def unpark(self, user_id: str) -> None:
        for lane in self.lanes.values():
            if user_id in lane.lines:
                self._push(lane, self._standing(lane, user_id))

    def lingers(self, user_id: str) -> bool:
        return False

    def forget(self, user_id: str) -> None:
        """There is nothing to remember."""

    def begin_anew(self) -> None:
        """By arrival, as ever."""

    def overtaken(self) -> list[str]:
        return []

    def _left(self, lane: Lane, entry: Entry, line: Line) -> None:
        lane.keys.remove(entry[KEY])
        self.waiting -= 1
        if line:
            self._push(lane, (line[0][KEY], entry[USER]))
        else:
            del lane.lines[entry[USER]]

    def _standing(self, lane: Lane, user_id: str) -> Standing:
        return (lane.lines[user_id][0][KEY], user_id)

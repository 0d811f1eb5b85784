"""Groups of users within one service: the order of organisations, of the teams within one, and of a team's users.

Every group is a level of start-time fair queueing of its own. Among the groups and users beside it, a group has a
virtual time as a user has; among its members it has a `virtual_time` as a band has. A free slot goes to the first group
or user of the band, then to the first member of that group, down to a user. A grant is charged at every level, and
settled at every level when the call ends (ADR 32).

A service has groups only once a user of a group was offered. Until then its bands are plain `FairBand`s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from fairlead.dispatch.memory.fair_queue import USER, Entry, FairBand, SortKey, User, inserted
from fairlead.dispatch.memory.ranking import Ranking
from fairlead.dispatch.memory.rates import MARK as MARK
from fairlead.domain.fair_share import charge
from fairlead.domain.groups import UNDECLARED_GROUP, GroupRules, parent_of

if TYPE_CHECKING:
    from fairlead.dispatch.memory.service import Service
    from fairlead.dispatch.port import Lease


class Group:
    """One group of a service. `members` counts the users and teams that the service remembers. `running` counts the
    slots of its users, as long as a group of the service has a limit. `levels` are the group and those that it is in:
    one tuple for all its users, so that a claim finds it in the processor's cache."""

    __slots__ = ("id", "levels", "limit", "members", "path", "rated", "running", "weight")

    def __init__(self, path: str, rules: GroupRules, outer: Group | None) -> None:
        self.id = MARK + path
        self.path = path
        self.levels: tuple[Group, ...] = (self,) if outer is None else (self, *outer.levels)
        self.running = 0
        self.members = 0
        self.take_rules(rules)

    def take_rules(self, rules: GroupRules) -> None:
        self.weight = rules.weight
        self.limit = rules.limit
        self.rated: tuple[str, ...] | None = None
        """The ids of the group and of those that it is in, as far as they have a rate; None: not known yet."""


class GroupedBand(FairBand):
    """A fair band with groups. A *node* is a user or a group; the ids of groups begin with `MARK`.

    A node is active in a lane if it has a step there that could be granted: a user that waits and is not parked, a
    group with an active member that is not parked. `active` ranks these nodes by lane and group (None: the top level).
    A group enters the band when it becomes active in any lane.
    """

    __slots__ = ("active", "charged", "idles", "parents", "parked", "weights")

    def __init__(self, parents: Mapping[str, str], parked: set[str], weights: Mapping[str, Group]) -> None:
        super().__init__()
        self.parents = parents
        self.parked = parked
        self.weights = weights
        self.active: dict[str | None, dict[str | None, Ranking]] = {}
        self.idles: dict[str | None, list[SortKey]] = {}
        """Like `idle`, by group."""
        self.charged = ""
        """The user that the last grant was charged to."""

    def take_over(self, band: FairBand) -> None:
        """Take the queues and virtual times of a band that had no groups so far."""
        self.waiting, self.lanes, self.virtual_time = band.waiting, band.lanes, band.virtual_time
        self.nodes, self.arrivals = band.nodes, band.arrivals
        self.idles, self._queued = {None: band.idle}, band._queued
        for region, lane in self.lanes.items():
            lane.heap, lane.places = [], {}
            for user_id in lane.queues:
                if user_id not in self.parked:
                    self._raise(user_id, region)

    # -- queues --------------------------------------------------------------------------------------------------

    def join(self, entry: Entry, region: str | None) -> None:
        lane, user_id = self.lane(region), entry[USER]
        queue = lane.queues.get(user_id)
        self.waiting += 1
        if queue is not None:
            lane.queues[user_id] = inserted(queue, entry)
            return
        if not self.waits(user_id):
            self.enter(user_id)
        lane.queues[user_id] = [entry]
        if user_id not in self.parked:
            self._raise(user_id, region)

    def _empty(self, region: str | None, user_id: str) -> None:
        super()._empty(region, user_id)
        if user_id not in self.parked:
            self._lower(user_id, region, self.parents.get(user_id))

    def head(self, region: str | None, parked: set[str]) -> tuple[Any, ...] | None:
        """The sort keys from the first node of the lane down to a user, one after the other."""
        levels = self.active.get(region)
        top = None if levels is None else levels.get(None)
        return None if top is None else top.first(())

    # -- active nodes --------------------------------------------------------------------------------------------

    def lanes_of(self, node: str) -> list[str | None]:
        """The lanes in which a node would be active if it were not parked."""
        if node.startswith(MARK):
            return [region for region, levels in self.active.items() if node in levels]
        return [region for region, lane in self.lanes.items() if node in lane.queues]

    def _raise(self, node: str, region: str | None) -> None:
        """Make a node active in a lane, and the groups that it is in."""
        parent = self.parents.get(node)
        enters = parent is not None and not self.lanes_of(parent)
        levels = self.active.setdefault(region, {})
        is_first = parent not in levels
        level = levels.setdefault(parent, Ranking()) if is_first else levels[parent]
        level.push(self.nodes[node], levels.get(node))
        if parent is not None and is_first and parent not in self.parked:
            if enters:
                self.enter(parent)
            self._raise(parent, region)

    def _lower(self, node: str, region: str | None, parent: str | None) -> None:
        """Make a member of the group `parent` inactive in a lane, and the group, if it was the last."""
        level = self.active[region][parent]
        level.drop(node)
        if not level.places:
            del self.active[region][parent]
            if parent is not None and parent not in self.parked:
                self._lower(parent, region, self.parents.get(parent))

    def park(self, node: str) -> None:
        """Take a node out of the order. It is not in `parked` yet."""
        for region in self.lanes_of(node):
            self._lower(node, region, self.parents.get(node))

    def unpark(self, user_id: str) -> None:
        """Let a node compete again. It is no longer in `parked`."""
        lanes = self.lanes_of(user_id)
        if lanes:
            self.enter(user_id)
        for region in lanes:
            self._raise(user_id, region)

    # -- virtual times -------------------------------------------------------------------------------------------

    def time(self, parent: str | None) -> int:
        """The virtual time of the members of a group, or of the band."""
        if parent is None:
            return self.virtual_time
        return self.nodes[parent].time if parent in self.nodes else 0

    def charge(self, user: User, cost: int) -> int:
        """Charge a grant to the user and to every group that the user is in. Returns the charge of the user."""
        self.charged, nodes, weight = user.user_id, self.nodes, user.weight
        node, charged = nodes[user.user_id], charge(cost, weight)
        of_node = charged
        for group in user.levels:
            tag, outer = node.tag, nodes[group.id]
            if node.key == tag:
                outer.time = tag
            node.key = node.tag = tag + of_node
            node, of_node = outer, charged if group.weight == weight else charge(cost, group.weight)
        tag = node.tag
        if node.key == tag:
            self.virtual_time = tag
        node.key = node.tag = tag + of_node
        return charged

    def settle_groups(self, levels: tuple[Group, ...], lease: Lease, estimate: int, used: int | None, own: int) -> None:
        """Correct the charges of a user's groups to the slot time that a call used; None if nothing ran. `own` is the
        difference for the user."""
        nodes = self.nodes
        for group in levels:
            weight, difference = group.weight, own
            if weight != lease.weight:
                before = charge(estimate, weight) if lease.charged else 0  # restored, or granted in FIFO order
                difference = (0 if used is None else charge(used, weight)) - before
            if difference > 0:
                node = nodes.get(group.id) or self._node(group.id)
                node.key = node.tag = node.tag + difference
            elif difference:
                self._credit(group.id, difference)

    def enter(self, user_id: str) -> None:
        self._enter(user_id, self.time(self.parents.get(user_id)))

    def move_user(self, user_id: str, old: str | None, new: str | None) -> None:
        """Move a user between groups. The user's debt is kept."""
        node = self.nodes.get(user_id)
        if node is not None:
            is_new, node.tag = node.is_new, self.time(new) + max(0, node.tag - self.time(old))
            node.key = node.key if is_new else node.tag
        lanes = [] if user_id in self.parked else self.lanes_of(user_id)
        for region in lanes:
            self._raise(user_id, region)
        for region in lanes:
            self._lower(user_id, region, old)

    def drop_newcomers(self) -> None:
        super().drop_newcomers()
        for levels in self.active.values():
            for level in levels.values():
                level.fill()

    # -- idle nodes ----------------------------------------------------------------------------------------------

    def has_debt(self, user_id: str) -> bool:
        tag, parent = self.tag_of(user_id), self.parents.get(user_id)
        if tag <= self.time(parent):
            return False
        if (tag, user_id) not in self._queued:
            self._queued.add((tag, user_id))
            heappush(self.idles.setdefault(parent, []), (tag, user_id))
        return True

    def overtaken(self) -> Sequence[str]:
        if not self._queued:
            return ()
        nodes: list[str] = []
        node: str | None = self.charged
        parents, idles = self.parents, self.idles
        while node is not None:
            node = parents.get(node)
            idle = idles.get(node)
            if idle and idle[0][0] <= (time := self.time(node)):
                while idle and idle[0][0] <= time:
                    nodes.append(self._pop(idle))
        return nodes

    def pop_idle(self, beside: str) -> str:
        return self._pop(self.idles[self.parents.get(beside)])

    def _pop(self, idle: list[SortKey]) -> str:
        sort_key = heappop(idle)
        self._queued.discard(sort_key)
        return sort_key[1]

    def forget(self, user_id: str) -> None:
        super().forget(user_id)
        for sort_key in self.idles.pop(user_id, ()):
            self._queued.discard(sort_key)


class Groups:
    """The groups of one service, and the place of its users in them."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.by_id: dict[str, Group] = {}
        self.limited = False
        """Whether a group has a limit, or had one. If so, the groups count their slots."""
        self.parents: dict[str, str] = {}
        """The group of every user and team that is in one."""
        self.bands = [GroupedBand(self.parents, service.parked, self.by_id) for _ in service.bands]
        for band, plain in zip(self.bands, service.bands, strict=True):
            assert isinstance(plain, FairBand)
            band.take_over(plain)

    def place(self, user: User) -> None:
        """Move a user, with everything that it has waiting and running, to the group `user.group`. The user's debt
        among the members of a group is kept."""
        user_id, old = user.user_id, self.parents.get(user.user_id)
        new = None if user.group is None else MARK + user.group
        if old == new:
            return
        was_in = user.levels
        if new is None:
            del self.parents[user_id]
        else:
            self._create(new)
            self.by_id[new].members += 1
            self.parents[user_id] = new
        user.levels, user.windows = () if new is None else self.by_id[new].levels, None
        for group in was_in:
            group.running -= user.running
        # The groups that the user leaves are unparked last: an organisation that the user stays in is never without it.
        for group in user.levels:
            group.running += user.running
        self.park_or_unpark(user)
        for band in self.bands:
            band.move_user(user_id, old, new)
        for group in was_in:
            self._park_or_unpark(group)
        if old is not None:
            self.by_id[old].members -= 1
            self.forget_if_idle(old)

    def _create(self, group_id: str) -> None:
        """Create a group, and the organisation that it is in, unless they exist."""
        if group_id in self.by_id:
            return
        path = group_id.removeprefix(MARK)
        parent, outer = parent_of(path), None
        if parent is not None:
            self._create(MARK + parent)
            self.parents[group_id] = MARK + parent
            outer = self.by_id[MARK + parent]
            outer.members += 1
        group = self.by_id[group_id] = Group(path, self.service.group_rules.get(path, UNDECLARED_GROUP), outer)
        self._may_be_limited(group)

    # -- limits --------------------------------------------------------------------------------------------------

    def _may_be_limited(self, group: Group) -> None:
        if group.limit is not None and not self.limited:
            self.limited = True
            self.count_running()

    def count_running(self) -> None:
        """Count the slots of all groups."""
        for group in self.by_id.values():
            group.running = 0
        for user in self.service.users.values():
            for group in user.levels:
                group.running += user.running

    def granted(self, user: User) -> None:
        """Count a grant to a user, and park the groups that it has brought to their limit."""
        for group in user.levels:
            group.running += 1
            if group.limit is not None:
                self._park_or_unpark(group)

    def ended(self, user: User) -> None:
        """Count the end of a call of a user. The caller then calls `park_or_unpark`."""
        for group in user.levels:
            group.running -= 1

    def park_or_unpark(self, user: User) -> None:
        """Park the groups of a user that are at their limit, and unpark those that are below."""
        for group in user.levels:
            self._park_or_unpark(group)

    def reconsider(self, group_ids: Iterable[str]) -> None:
        """Park or unpark these groups, because their windows have changed."""
        for group_id in group_ids:
            if group_id in self.by_id:
                self._park_or_unpark(self.by_id[group_id])

    def _park_or_unpark(self, group: Group) -> None:
        rates = self.service.rates
        at_rate = rates is not None and group.id in rates.parked
        if at_rate or (group.limit is not None and group.running >= group.limit):
            self.park(group.id)
        elif group.id in self.service.parked:
            self.service.parked.discard(group.id)
            for band in self.bands:
                band.unpark(group.id)

    def park(self, node: str) -> None:
        """Take a user or group out of the order, unless it is parked already."""
        if node not in self.service.parked:
            for band in self.bands:
                band.park(node)
            self.service.parked.add(node)

    def take_rules(self, rules: Mapping[str, GroupRules]) -> None:
        for _, group in sorted(self.by_id.items()):  # sorted: the order in which groups enter a band matters
            group.take_rules(rules.get(group.path, UNDECLARED_GROUP))
            self._may_be_limited(group)
            self._park_or_unpark(group)

    # -- idle groups ---------------------------------------------------------------------------------------------

    def forget_user(self, user_id: str) -> None:
        group_id = self.parents.pop(user_id, None)
        if group_id is not None:
            self.by_id[group_id].members -= 1
            self.forget_if_idle(group_id)

    def forget_if_idle(self, group_id: str) -> None:
        """Drop a group that has no members left and no debt in any band."""
        group = self.by_id.get(group_id)
        if group is None or group.members or any(band.has_debt(group_id) for band in self.bands):
            return
        for band in self.bands:
            band.forget(group_id)
        del self.by_id[group_id]
        self.service.parked.discard(group_id)
        if self.service.rates is not None:
            self.service.rates.forget(group_id)
        self.forget_user(group_id)

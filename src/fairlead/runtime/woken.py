"""Where a worker asks for work: where it was told that there may be some.

Each service is a question to the dispatcher, or each pool. When one lane of twenty has turned runnable, asking all of
them takes longer than the rest of a job's way to its start."""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.domain.limits import Rules


class Woken:
    """A worker that was left with room everywhere is told of every lane that turns runnable, so nothing is missed by
    asking there only. Whenever it is not certain to have been told, it asks everywhere."""

    def __init__(self) -> None:
        self._services: set[str] = set()
        self._everywhere = True

    def by(self, services: Iterable[str]) -> None:
        """A lane of theirs has turned runnable, or a slot of theirs is given back."""
        self._services.update(services)

    def for_all(self) -> None:
        """Anything may have happened."""
        self._everywhere = True

    def to_ask(self, served: frozenset[str], rules: Rules) -> frozenset[str]:
        """For the claim that is made now: what it leaves must be told anew. Services of pools are always asked for: the
        others there count on what a worker last said of its room."""
        told, self._services = served & self._services, set()
        everywhere, self._everywhere = self._everywhere or not told, False
        return served if everywhere else told | (served & rules.pooled)

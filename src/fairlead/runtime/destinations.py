"""Where a caller wants a job's calls to go: `region` and `allowed_regions`, against the regions of its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fairlead.domain.config import Config
from fairlead.errors import InvalidInput

MAX_ALLOWED = 32


@dataclass(frozen=True, slots=True)
class Destination:
    """As `Job` keeps it."""

    region: str | None = None
    region_step: int = 0
    spill_after: float | None = None
    allowed_regions: tuple[str, ...] | None = None


ANYWHERE = Destination()


def check(region: Any, allowed: Any, steps: Sequence[str], config: Config) -> Destination:
    """What a job keeps of these two, or an error that names the field. Steps without regions do not mind them."""
    if region is None and allowed is None:
        return ANYWHERE
    if region is not None and (not isinstance(region, str) or not region):
        raise InvalidInput("region must be the name of a region", pointer="/region")
    permitted = None if allowed is None else _names(allowed)
    if region is not None and permitted is not None and region not in permitted:
        raise InvalidInput(f"region {region!r} is not among allowed_regions: {', '.join(permitted)}", pointer="/region")
    regional = [(index, step) for index, step in enumerate(steps) if config.services[step].regions]
    if permitted is not None:
        if not regional:
            raise InvalidInput(
                "none of its services has regions: nothing could keep the job within the allowed ones",
                pointer="/allowed_regions",
            )
        for _, step in regional:
            _can_be_served(permitted, step, config)
        _are_known(permitted, [step for _, step in regional], config)
    if region is None or not regional:
        return Destination(region, allowed_regions=permitted)
    first, step = regional[0]
    service = config.services[step]
    if region not in service.regions:
        raise InvalidInput(f"{step} has no region {region!r}; {_known(service.regions)}", pointer="/region")
    return Destination(region, first, service.spill_after, permitted)


def _names(allowed: Any) -> tuple[str, ...]:
    """Each once, by name: their order says nothing."""
    if isinstance(allowed, str) or not isinstance(allowed, Sequence) or not all(isinstance(n, str) for n in allowed):
        raise InvalidInput("allowed_regions must be a list of names of regions", pointer="/allowed_regions")
    if not 1 <= len(allowed) <= MAX_ALLOWED:
        raise InvalidInput(f"allowed_regions must name 1 to {MAX_ALLOWED} regions", pointer="/allowed_regions")
    return tuple(sorted(set(allowed)))


def _can_be_served(permitted: Sequence[str], step: str, config: Config) -> None:
    """A step that has none of them could never run without leaving them."""
    regions = config.services[step].regions
    if not any(region in regions for region in permitted):
        raise InvalidInput(
            f"{step} has none of the regions {', '.join(permitted)}; {_known(regions)}", pointer="/allowed_regions"
        )


def _are_known(permitted: Sequence[str], regional: Sequence[str], config: Config) -> None:
    known = {region for step in regional for region in config.services[step].regions}
    if regional and (unknown := [region for region in permitted if region not in known]):
        raise InvalidInput(f"no step has the region {unknown[0]!r}; {_known(known)}", pointer="/allowed_regions")


def _known(regions: Any) -> str:
    return f"known are: {', '.join(sorted(regions))}"

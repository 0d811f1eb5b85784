"""The apps and models of other systems, and the pipelines and services that they are here.

Other systems name what they run `owner/name`, fal with a path (`acme/flux/dev`), Replicate with a version
(`acme/sdxl:39ed`). The table of the front (`[fronts.NAME]`) maps such names. Otherwise the name decides: without its
owner and version, in lower case, and with `_` for every other character, it is the name of a pipeline or a service.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from fairlead.domain.config import Config
from fairlead.errors import UnknownModel

MOST_NAMED = 20
_OTHER = re.compile(r"[^a-z0-9_]+")


def feature_of(config: Config, table: Mapping[str, str], app: str) -> str | None:
    """The pipeline or service of an app; None if there is none. A name with a version that the table does not have is
    the name without the version."""
    name, colon, _ = app.partition(":")
    for each in (app, name) if colon else (app,):
        if each in table:
            return table[each]
    feature = name_of(name)
    return feature if is_offered(config, feature) else None


def name_of(app: str) -> str:
    """The name that the pipeline or service of an app has by default: `flux_dev` for `acme/flux/dev`."""
    owner, slash, name = app.partition("/")
    return _OTHER.sub("_", (name if slash else owner).lower())


def is_offered(config: Config, feature: str) -> bool:
    """Whether apps can be this pipeline or service. Services of turns execute nothing, and servers with OpenAI's
    protocol get requests of that front only."""
    steps = config.steps_of(feature)
    if steps is None or config.turns_only.intersection(steps):
        return False
    return not any(config.services[step].speaks_openai for step in steps)


def unknown_app(config: Config, table: Mapping[str, str], app: str, setting: str) -> UnknownModel:
    """The error for an app that does not exist. `setting` is the table that could map it, such as `fronts.fal.apps`."""
    features = [feature for feature in (*config.pipelines, *config.services) if is_offered(config, feature)]
    names = sorted({*table, *features})
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    known = f"known are: {', '.join(names[:MOST_NAMED])}{more}" if names else "none is known"
    return UnknownModel(
        f"there is no app {app[:100]!r}, no entry for it in {setting}, and no pipeline or service "
        f"called {name_of(app)[:100]!r}; {known}"
    )

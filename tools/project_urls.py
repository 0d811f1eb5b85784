"""A hook of Hatch: adds the project's URLs to the metadata of each wheel.

The project has no public home yet. To publish it, set one variable, from which all URLs are made:

    FAIRLEAD_REPOSITORY=https://git.example/team/fairlead pip wheel . --no-deps

Without the variable a wheel has no URLs: none is better than a wrong one.
"""

from __future__ import annotations

import os
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

VARIABLE = "FAIRLEAD_REPOSITORY"
PATHS = {
    "Documentation": "/blob/main/docs/tutorial.md",
    "Source": "",
    "Changelog": "/blob/main/CHANGELOG.md",
    "Issues": "/issues",
}


def urls(repository: str) -> dict[str, str]:
    return {name: repository.rstrip("/") + path for name, path in PATHS.items()} if repository else {}


class ProjectUrls(MetadataHookInterface):
    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        metadata["urls"] = urls(os.environ.get(VARIABLE, ""))

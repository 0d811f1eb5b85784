"""A pytest plugin: `pytest_plugins = ["fairlead.testing.plugin"]` in the outermost conftest.py."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from fairlead.app.fairlead import Fairlead
from fairlead.testing.site import Site, run

Run = Callable[..., AbstractAsyncContextManager[Site]]


@pytest.fixture
def fairlead_run(tmp_path: Path) -> Run:
    """`async with fairlead_run(app, fakes={...}) as site:` runs the app on a database of its own."""

    def start(app: Fairlead, fakes: dict[str, Any] | None = None) -> AbstractAsyncContextManager[Site]:
        return run(app, tmp_path, fakes)

    return start

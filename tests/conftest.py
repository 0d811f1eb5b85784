"""Fixtures and hooks for all tests."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from threading import Lock

import pytest
from hypothesis import HealthCheck, settings

from tests import servers

# The duration of an example depends on how busy the machine is. `make fuzz` uses the profile with many examples; a test
# whose examples are expensive takes a part of them.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=40)
settings.register_profile("fuzz", settings.get_profile("suite"), max_examples=1000)
settings.load_profile("suite")

# Clients of httpx read the certificates of all authorities even for plain HTTP, which takes 25 ms. One will do: no test
# calls a server of the internet, and tests with TLS name their own authority.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "data/authority.pem")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run slow tests first. Of several processes the first one then gets all of them, so that they neither disturb each
    other nor start last; the other processes steal the rest of its share."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection() -> None:
    """Collect tests without garbage collection, which would visit all of them again and again."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Exempt what collection has made from garbage collection: thousands of tests in memory make every collection slow,
    and the tests of Celery collect at their end."""
    gc.enable()
    gc.collect()
    gc.freeze()
    # Each test makes an app and drops it: the default of 700 new objects collects hundreds of times meanwhile.
    gc.set_threshold(50_000)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the reasons for skipped tests, which are easily overlooked among thousands."""
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.getreports("skipped"))
    for reason, tests in sorted(reasons.items()):
        terminalreporter.write_line(f"{tests} skipped: {reason}", yellow=True)


@pytest.fixture(scope="session", autouse=True)
def _migrated_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Start each new SQLite database of this process as a copy of a migrated one. That takes a tenth of the time of all
    migrations, which other processes and `test_migrations.py` run."""
    from fairlead.store.sqlite import connect

    migrate, template, lock = connect._migrate, tmp_path_factory.mktemp("sqlite") / "migrated.db", Lock()

    def migrate_copy(path: str) -> None:
        with lock:
            if not template.exists():
                migrate(str(template))
            if os.path.getsize(path) == 0:
                try:
                    Path(path).write_bytes(template.read_bytes())
                except OSError:  # of a full disk, for example, which SQLite is to find itself
                    os.truncate(path, 0)
        migrate(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connect, "_migrate", migrate_copy)
        yield


@pytest.fixture(scope="session")
def postgres_url() -> str:
    """A PostgreSQL server that lives as long as the test run."""
    return servers.postgres_url()


@pytest.fixture
async def emptied_database(postgres_url: str) -> str:
    """A shared database, emptied. Much faster than a new one."""
    url = await servers.shared_database()
    await servers.empty(url)
    return url


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[str]:
    """A new, empty database on that server."""
    url = await servers.new_database(postgres_url)
    yield url
    await servers.drop_database(url)

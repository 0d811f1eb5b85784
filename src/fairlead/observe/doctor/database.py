"""Checks of the database: whether it can be reached, its schema version, its settings for durability, bloat and disk
space."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.config import sqlite_options
from fairlead.observe.doctor.facts import Facts
from fairlead.observe.doctor.finding import Finding, Kind, Severity, shown

OLD_TRANSACTION = 300.0
"""Seconds for which a transaction may be open. PostgreSQL cannot remove rows that were deleted after the transaction
began."""
OLD_SNAPSHOT = 10_000_000
"""A replication slot or a prepared transaction is reported if it has kept dead rows from being removed for more than
this many transactions."""
MANY_DEAD = 10_000
DEAD_SHARE = 0.5
"""Dead rows of the job table are reported if there are more than `MANY_DEAD`, and more than this fraction of the live
rows."""
MANY_DEAD_OUTBOX = 100_000
FULL_SHARE = 0.9
"""A finding is reported if at least this fraction of the server's connections is in use."""
DISK_SHARE, DISK_BYTES = 0.05, 1 << 30
"""Free space is low if it is below both this fraction of the disk and this number of bytes."""

UNREACHABLE = Kind("database-unreachable", Severity.ERROR, "the database cannot be used")
NEWER = Kind("database-newer", Severity.ERROR, "the database belongs to a newer Fairlead")
OLDER = Kind("database-older", Severity.ERROR, "the database's schema is not up to date")
PINNED = Kind("vacuum-pinned", Severity.WARNING, "an old transaction keeps dead rows from being removed")
BLOATED = Kind("database-bloated", Severity.WARNING, "dead rows accumulate in the database")
NO_AUTOVACUUM = Kind("autovacuum-off", Severity.WARNING, "autovacuum is off")
FSYNC_OFF = Kind("fsync-off", Severity.ERROR, "PostgreSQL does not flush its commits to disk")
NOT_DURABLE = Kind("commit-not-durable", Severity.WARNING, "a commit does not wait for the disk")
CONNECTIONS = Kind("connections-short", Severity.WARNING, "PostgreSQL is almost out of connections", passing=True)
READABLE = Kind("database-readable", Severity.WARNING, "every user of this machine can read the database")
DISK_FULL = Kind("disk-nearly-full", Severity.WARNING, "the disk of the database is nearly full")


def check(facts: Facts) -> Iterator[Finding]:
    if facts.schema is not None:
        yield from _schema(facts)
    if facts.store_problem is not None:
        yield UNREACHABLE.found(
            facts.store_problem,
            fix="start it, or correct DATABASE_URL: `fairlead config show` prints it",
            reason=facts.store_problem,
        )
        return
    if facts.store.get("engine") == "postgresql":
        yield from _resources(facts)
        yield from _durability(facts)
    else:
        yield from _sqlite(facts)


def _schema(facts: Facts) -> Iterator[Finding]:
    assert facts.schema is not None
    found, known = facts.schema.found, facts.schema.known
    if found is not None and found > known:
        yield NEWER.found(
            f"it has schema {found}, this release has {known}: another process was upgraded first",
            fix="upgrade this process and restart it: `pip install --upgrade fairlead`",
            found=found,
            known=known,
        )
    elif found != known:
        had = "it has no Fairlead tables yet" if not found else f"it has schema {found}, this release needs {known}"
        severity = None if found else Severity.NOTE
        yield OLDER.found(had, fix="`fairlead migrate`", severity=severity, found=found or 0, known=known)


def _resources(facts: Facts) -> Iterator[Finding]:
    store = facts.store
    age = float(store.get("oldest_transaction_age", 0.0))
    if age > OLD_TRANSACTION:
        who = str(store.get("oldest_transaction", ""))
        yield PINNED.found(
            f"open for {shown(age)}: {who}. Until it ends, no dead row can be removed, and reading jobs slows down",
            fix=f"end it in its client, or here: `psql -c 'SELECT pg_terminate_backend({_pid(who)})'`",
            age=round(age, 1),
            transaction=who,
            dead_rows=store.get("job_dead_rows", 0),
        )
    behind = int(store.get("oldest_xmin_age", 0))
    if behind > OLD_SNAPSHOT and age <= OLD_TRANSACTION:
        what = str(store.get("oldest_xmin", ""))
        yield PINNED.found(
            f"{what} keeps every row that died within the last {behind} transactions",
            fix="end it: `psql -c \"SELECT pg_drop_replication_slot('NAME')\"` for an unused slot, "
            "`psql -c \"ROLLBACK PREPARED 'GID'\"` for a prepared transaction",
            transactions=behind,
            what=what,
            dead_rows=store.get("job_dead_rows", 0),
        )
    dead, live, queue = (int(store.get(name, 0)) for name in ("job_dead_rows", "job_rows", "outbox_dead_rows"))
    if (dead > MANY_DEAD and dead > DEAD_SHARE * live) or queue > MANY_DEAD_OUTBOX:
        yield BLOATED.found(
            f"{dead} dead rows beside {live} jobs, {queue} in the outbox: autovacuum cannot keep up",
            fix="`psql -c 'VACUUM (ANALYZE) fairlead.job, fairlead.outbox'`; then check that no transaction blocks "
            "it, and give autovacuum more workers (autovacuum_max_workers)",
            job_dead_rows=dead,
            job_rows=live,
            outbox_dead_rows=queue,
        )
    if store.get("autovacuum") == "off":
        yield NO_AUTOVACUUM.found(
            "the setting autovacuum is off",
            fix="`psql -c 'ALTER SYSTEM SET autovacuum = on' -c 'SELECT pg_reload_conf()'`",
            autovacuum="off",
        )
    used, most = int(store.get("connections", 0)), int(store.get("max_connections", 0))
    if most and used >= FULL_SHARE * most:
        yield CONNECTIONS.found(
            f"{used} of {most} are in use; when none is left, connections and jobs are refused",
            fix="lower pool_size in the processes' DATABASE_URL (`?pool_size=5`), or raise max_connections and restart "
            f"PostgreSQL: `psql -c 'ALTER SYSTEM SET max_connections = {most * 2}'`",
            connections=used,
            max_connections=most,
        )


def _pid(who: str) -> str:
    """The process id of a transaction, which is the first number in its description; or the placeholder `PID`."""
    digits = "".join(character if character.isdigit() else " " for character in who).split()
    return digits[0] if digits else "PID"


def _durability(facts: Facts) -> Iterator[Finding]:
    store = facts.store
    for setting in ("fsync", "full_page_writes"):
        if store.get(setting) == "off":
            yield FSYNC_OFF.found(
                f"{setting} is off: a power loss may lose accepted jobs or corrupt the database",
                fix=f"`psql -c 'ALTER SYSTEM SET {setting} = on' -c 'SELECT pg_reload_conf()'`",
                about=setting,
                setting=setting,
                value="off",
            )
    commit = store.get("synchronous_commit")
    if commit == "off":
        yield NOT_DURABLE.found(
            "synchronous_commit is off: a job is accepted before it is on disk, and a power loss may lose the latest "
            "ones",
            fix="remove it from DATABASE_URL and from the settings of the role and the database: "
            "`psql -c 'ALTER DATABASE NAME RESET synchronous_commit'`, and restart the processes",
            setting="synchronous_commit",
            value=commit,
        )
    elif commit in ("local", "remote_write"):
        yield NOT_DURABLE.found(
            f"synchronous_commit is {commit}: an accepted job is on this server's disk, but a standby that takes "
            "over may miss the latest ones",
            fix="set it to on if a fail-over must lose nothing: "
            "`psql -c 'ALTER DATABASE NAME SET synchronous_commit = on'`, and restart the processes",
            severity=Severity.NOTE,
            setting="synchronous_commit",
            value=commit,
        )


def _sqlite(facts: Facts) -> Iterator[Finding]:
    if "synchronous=normal" in facts.settings.database_url.lower():
        yield NOT_DURABLE.found(
            "synchronous is normal: a power loss may lose the latest accepted jobs",
            fix="remove ?synchronous=normal from DATABASE_URL and restart: `fairlead up`",
            setting="synchronous",
            value="normal",
        )
    if facts.store.get("readable_by_others"):
        path = sqlite_options(facts.settings.database_url).path
        yield READABLE.found(
            f"other users can read {path}, which holds inputs, results and user ids",
            fix=f"`chmod 600 {path}*`",
            path=path,
        )
    free, total = facts.disk_free, facts.disk_total
    if free is not None and total is not None and free < DISK_BYTES and free < DISK_SHARE * total:
        yield DISK_FULL.found(
            f"{free >> 20} MiB of {total >> 20} MiB are free; when it is full, jobs are refused",
            fix="free space: `fairlead dead purge --all`, a shorter retention.keep_finished, or a larger disk",
            free_bytes=free,
            total_bytes=total,
            database_bytes=facts.store.get("database_bytes", 0),
        )

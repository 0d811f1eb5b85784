"""The truth: can it be reached, is it the version we know, does it keep what it says it keeps, is it in good order?"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.runtime.doctor.facts import Facts
from fairlead.runtime.doctor.finding import Finding, Kind, Severity, shown

OLD_TRANSACTION = 300.0
"""Seconds that a transaction may be open: as long as it is, no dead row that is younger than it can be removed."""
OLD_SNAPSHOT = 10_000_000
"""Transactions that may have begun since something (a replication slot, say) last let dead rows be removed."""
MANY_DEAD = 10_000
DEAD_SHARE = 0.5
"""Dead rows of the jobs' table: at least so many, and so many per live one. Autovacuum begins far earlier."""
MANY_DEAD_OUTBOX = 100_000
FULL_SHARE = 0.9
"""Of the server's connections."""
DISK_SHARE, DISK_BYTES = 0.05, 1 << 30
"""Free space below both is little."""

UNREACHABLE = Kind("database-unreachable", Severity.ERROR, "the database cannot be used")
NEWER = Kind("database-newer", Severity.ERROR, "the database belongs to a newer Fairlead")
OLDER = Kind("database-older", Severity.ERROR, "the database's schema is not up to date")
PINNED = Kind("vacuum-pinned", Severity.WARNING, "an old transaction keeps dead rows from being removed")
BLOATED = Kind("database-bloated", Severity.WARNING, "dead rows have piled up in the database")
NO_AUTOVACUUM = Kind("autovacuum-off", Severity.WARNING, "nothing removes dead rows from the database")
FSYNC_OFF = Kind("fsync-off", Severity.ERROR, "PostgreSQL does not flush what it commits")
NOT_DURABLE = Kind("commit-not-durable", Severity.WARNING, "a commit does not wait for the disk")
CONNECTIONS = Kind("connections-short", Severity.WARNING, "PostgreSQL has hardly any connections left", passing=True)
DISK_FULL = Kind("disk-nearly-full", Severity.WARNING, "the disk of the database is nearly full")


def check(facts: Facts) -> Iterator[Finding]:
    if facts.schema is not None:
        yield from _schema(facts)
    if facts.store_problem is not None:
        yield UNREACHABLE.found(
            facts.store_problem,
            fix="start it, or correct DATABASE_URL: `fairlead config show` says where it is looked for",
            reason=facts.store_problem,
        )
        return
    if facts.store.get("engine") == "postgresql":
        yield from _room(facts)
        yield from _durability(facts)
    else:
        yield from _sqlite(facts)


def _schema(facts: Facts) -> Iterator[Finding]:
    assert facts.schema is not None
    found, known = facts.schema.found, facts.schema.known
    if found is not None and found > known:
        yield NEWER.found(
            f"it has schema {found}, this Fairlead knows {known}: another process was upgraded before this one",
            fix="upgrade this one and restart it: `pip install --upgrade fairlead`",
            found=found,
            known=known,
        )
    elif found != known:
        had = (
            "nothing of Fairlead's is there yet" if not found else f"it has schema {found}, this Fairlead knows {known}"
        )
        severity = None if found else Severity.NOTE
        yield OLDER.found(had, fix="`fairlead migrate`", severity=severity, found=found or 0, known=known)


def _room(facts: Facts) -> Iterator[Finding]:
    said = facts.store
    age = float(said.get("oldest_transaction_age", 0.0))
    if age > OLD_TRANSACTION:
        who = str(said.get("oldest_transaction", ""))
        yield PINNED.found(
            f"open for {shown(age)}: {who}. As long as it is, the dead rows of every job that moves stay, and all "
            "that reads jobs slows down",
            fix=f"end it where it was begun; or here: `psql -c 'SELECT pg_terminate_backend({_pid(who)})'`",
            age=round(age, 1),
            transaction=who,
            dead_rows=said.get("job_dead_rows", 0),
        )
    behind = int(said.get("oldest_xmin_age", 0))
    if behind > OLD_SNAPSHOT and age <= OLD_TRANSACTION:
        what = str(said.get("oldest_xmin", ""))
        yield PINNED.found(
            f"{what} keeps every row that died within the last {behind} transactions",
            fix="end it: `psql -c \"SELECT pg_drop_replication_slot('NAME')\"` for a slot that nobody reads, "
            "`psql -c \"ROLLBACK PREPARED 'GID'\"` for a prepared transaction",
            transactions=behind,
            what=what,
            dead_rows=said.get("job_dead_rows", 0),
        )
    dead, live, queue = (int(said.get(name, 0)) for name in ("job_dead_rows", "job_rows", "outbox_dead_rows"))
    if (dead > MANY_DEAD and dead > DEAD_SHARE * live) or queue > MANY_DEAD_OUTBOX:
        yield BLOATED.found(
            f"{dead} dead rows beside {live} jobs, {queue} in the outbox: autovacuum does not keep up",
            fix="`psql -c 'VACUUM (ANALYZE) fairlead.job, fairlead.outbox'`; then see that nothing pins it, and give "
            "autovacuum more workers (autovacuum_max_workers)",
            job_dead_rows=dead,
            job_rows=live,
            outbox_dead_rows=queue,
        )
    if said.get("autovacuum") == "off":
        yield NO_AUTOVACUUM.found(
            "the setting autovacuum is off",
            fix="`psql -c 'ALTER SYSTEM SET autovacuum = on' -c 'SELECT pg_reload_conf()'`",
            autovacuum="off",
        )
    used, most = int(said.get("connections", 0)), int(said.get("max_connections", 0))
    if most and used >= FULL_SHARE * most:
        yield CONNECTIONS.found(
            f"{used} of {most} are in use; whoever needs another one is refused, and jobs with it",
            fix="lower pool_size in the processes' DATABASE_URL (`?pool_size=5`), or raise max_connections and restart "
            f"PostgreSQL: `psql -c 'ALTER SYSTEM SET max_connections = {most * 2}'`",
            connections=used,
            max_connections=most,
        )


def _pid(who: str) -> str:
    """The first number in what the store says of a transaction; if there is none, the reader must look."""
    digits = "".join(character if character.isdigit() else " " for character in who).split()
    return digits[0] if digits else "PID"


def _durability(facts: Facts) -> Iterator[Finding]:
    said = facts.store
    for setting in ("fsync", "full_page_writes"):
        if said.get(setting) == "off":
            yield FSYNC_OFF.found(
                f"{setting} is off: after a power loss accepted jobs may be gone, or the whole database corrupt",
                fix=f"`psql -c 'ALTER SYSTEM SET {setting} = on' -c 'SELECT pg_reload_conf()'`",
                about=setting,
                setting=setting,
                value="off",
            )
    commit = said.get("synchronous_commit")
    if commit == "off":
        yield NOT_DURABLE.found(
            "synchronous_commit is off: a job is accepted before it is on the disk, and a power loss may lose the last "
            "ones",
            fix="take it out of DATABASE_URL, the role's or the database's settings: "
            "`psql -c 'ALTER DATABASE NAME RESET synchronous_commit'`, and restart the processes",
            setting="synchronous_commit",
            value=commit,
        )
    elif commit in ("local", "remote_write"):
        yield NOT_DURABLE.found(
            f"synchronous_commit is {commit}: a job is on this server's disk when it is accepted; a standby that takes "
            "over may lack the last ones",
            fix="set it to on if a fail-over must lose nothing: "
            "`psql -c 'ALTER DATABASE NAME SET synchronous_commit = on'`, and restart the processes",
            severity=Severity.NOTE,
            setting="synchronous_commit",
            value=commit,
        )


def _sqlite(facts: Facts) -> Iterator[Finding]:
    if "synchronous=normal" in facts.settings.database_url.lower():
        yield NOT_DURABLE.found(
            "synchronous is normal: a power loss may lose the last jobs that were accepted",
            fix="take ?synchronous=normal out of DATABASE_URL, and restart: `fairlead up`",
            setting="synchronous",
            value="normal",
        )
    free, total = facts.disk_free, facts.disk_total
    if free is not None and total is not None and free < DISK_BYTES and free < DISK_SHARE * total:
        yield DISK_FULL.found(
            f"{free >> 20} MiB of {total >> 20} MiB are free; when it is full, jobs are refused",
            fix="make room: `fairlead dead purge --all`, a shorter retention.keep_finished, or a larger disk",
            free_bytes=free,
            total_bytes=total,
            database_bytes=facts.store.get("database_bytes", 0),
        )

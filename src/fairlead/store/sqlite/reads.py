"""The reads of the SQLite store. Each is one query on a read-only connection in a reader thread."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson

from fairlead.domain.access import AuditRecord, Key
from fairlead.domain.batch import BatchItem, BatchState
from fairlead.domain.job import Hold, Job, JobRecord, JobStatus
from fairlead.domain.processes import ProcessRecord
from fairlead.domain.rules import EVERYTHING, Lanes, Rules
from fairlead.errors import Unavailable
from fairlead.store import rows
from fairlead.store.port import RELAYING, DeclareServices, Ended, EndedFronts, Epoch, Facts, JobFilter, OutboxEntry
from fairlead.store.records import audit_of, batch_state_of, ended_fronts_of, item_number_of, key_of, process_of
from fairlead.store.rules import declared_of, rules_of
from fairlead.store.sql_files import load, without_comments
from fairlead.store.sqlite import connect
from fairlead.store.sqlite.budgets import SqliteBudgetReads
from fairlead.store.sqlite.dashboard import SqliteDashboardReads
from fairlead.store.sqlite.file_batches import SqliteFileBatchReads
from fairlead.store.sqlite.files import SqliteFileReads
from fairlead.store.sqlite.gil import prompt_handover
from fairlead.store.sqlite.lock import File
from fairlead.store.sqlite.schedules import SqliteScheduleReads
from fairlead.store.sqlite.usage import SqliteUsageReads
from fairlead.store.sqlite.webhooks import SqliteWebhookReads

READERS = 2  # so that the manager can query timers while a long count runs


class Reads(
    SqliteDashboardReads,
    SqliteUsageReads,
    SqliteBudgetReads,
    SqliteFileReads,
    SqliteFileBatchReads,
    SqliteWebhookReads,
    SqliteScheduleReads,
):
    """The read methods of `SqliteStore`."""

    def __init__(self, path: str, clock: Callable[[], float], synchronous: str) -> None:
        # Absolute, because the process may change its working directory. Invalid paths are left as they are, for the
        # error message.
        self._path = path if path in ("", ":memory:") else os.path.abspath(path)
        self._clock = clock
        self._synchronous = synchronous
        self._origin = ""
        self._sql = load(__package__, "queries.sql")
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._threads: ThreadPoolExecutor | None = None
        self._files: dict[str, File] = {}  # the files at these paths when the store was opened

    def _open_readers(self) -> None:
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="fairlead-read")

    def _close_readers(self) -> None:
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None
        while self._connections:
            self._connections.pop().close()

    async def _ask(self, sql: str, *parameters: Any) -> Any:
        """Run a query that returns one value."""
        if self._threads is None:
            raise Unavailable("the store is not open")
        with prompt_handover():
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._fetch, sql, parameters)

    def _fetch(self, sql: str, parameters: tuple[Any, ...]) -> Any:
        with connect.translated(self._path):
            connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
            if connection is None:
                self._check_file()  # otherwise this thread might read another file
                connection = self._local.connection = connect.reader(self._path)
                self._connections.append(connection)
            row = connection.execute(sql, parameters).fetchone()
        return None if row is None else row[0]

    async def ping(self) -> None:
        # Check the file first: the first query of a thread opens whatever file is at the path now.
        if self._threads is not None:
            await asyncio.get_running_loop().run_in_executor(self._threads, self._check_files)
        await self._ask("SELECT version FROM rules")

    def _check_file(self) -> None:
        self._check_is_same(self._path, "the database")

    def _check_files(self) -> None:
        """Raise an error if the database files were deleted or replaced. SQLite would continue to use the old files,
        and all commits to them would be lost when the process ends."""
        self._check_file()
        self._check_is_same(f"{self._path}-wal", "the log of the database")
        self._check_is_same(f"{self._path}-shm", "the index of the database's log")

    def _check_is_same(self, path: str, what: str) -> None:
        expected = self._files.get(path)
        try:
            values = os.stat(path)
        except FileNotFoundError:
            if expected is None:
                return
            problem = "was deleted or moved while it was open"
        except OSError as error:
            problem = f"cannot be accessed: {error.strerror}"
        else:
            if expected in (None, (values.st_dev, values.st_ino)):
                return
            problem = "was replaced by another file while it was open"
        raise Unavailable(
            f"{what} {path} {problem}: put it back, or restart this process",
            retry_after=5.0,
            public=f"{what} {problem}",
        )

    async def get(self, job_id: str) -> JobRecord | None:
        answer = await self._ask(self._sql["get"], job_id)
        return None if answer is None else rows.record_of(orjson.loads(answer))

    async def get_records(self, job_ids: Sequence[str]) -> dict[str, JobRecord]:
        ids = orjson.dumps(list(dict.fromkeys(job_ids))).decode()
        records = map(rows.record_of, orjson.loads(await self._ask(self._sql["get_records"], ids)))
        return {record.job.id: record for record in records}

    async def get_jobs(self, job_ids: Sequence[str]) -> dict[str, Job]:
        ids = orjson.dumps(list(dict.fromkeys(job_ids))).decode()
        return {job.id: job for job in rows.jobs_of(await self._ask(self._sql["get_jobs"], ids))}

    async def list_jobs(
        self, where: JobFilter, *, before_seq: int | None, limit: int, from_seq: int | None = None
    ) -> list[Job]:
        condition, parameters = _condition(where, before_seq, from_seq)
        answer = await self._ask(self._sql["list_jobs"].replace("{where}", condition), *parameters, limit)
        return rows.jobs_of(answer)

    async def seq_after(self, where: JobFilter, *, before_seq: int | None, skip: int) -> int | None:
        condition, parameters = _condition(where, before_seq)
        seq: int | None = await self._ask(self._sql["seq_after"].replace("{where}", condition), *parameters, skip)
        return seq

    async def count(self, where: JobFilter) -> int:
        condition, parameters = _condition(where)
        return int(await self._ask(self._sql["count"].replace("{where}", condition), *parameters))

    async def users_with_prefix(self, prefix: str, limit: int) -> list[str]:
        users: list[str] = orjson.loads(
            await self._ask(self._sql["users_with_prefix"], prefix, prefix, prefix, limit, prefix, prefix, limit)
        )
        return users

    async def get_batch(self, batch_id: str) -> BatchState | None:
        answer = await self._ask(self._sql["get_batch"], batch_id)
        return None if answer is None else batch_state_of(orjson.loads(answer))

    async def batch_owner(self, batch_id: str) -> str | None:
        owner: str | None = await self._ask(self._sql["batch_owner"], batch_id)
        return owner

    async def batch_of_key(self, user_id: str, key: str) -> tuple[str, str | None] | None:
        answer = await self._ask(self._sql["batch_of_key"], user_id, key)
        return None if answer is None else tuple(orjson.loads(answer))

    async def list_batches(self, user_id: str | None, *, before: str | None, limit: int) -> list[BatchState]:
        filters = {"b.user_id = ?": user_id, "b.id < ?": before}
        terms = [term for term, value in filters.items() if value is not None]
        sql = self._sql["list_batches"].replace("{whose}", " AND ".join(terms) or "TRUE")
        answer = await self._ask(sql, *(value for value in filters.values() if value is not None), limit)
        return [batch_state_of(row) for row in orjson.loads(answer)]

    async def batch_items(
        self, batch_id: str, *, statuses: Sequence[JobStatus] = (), after: int = -1, limit: int
    ) -> list[BatchItem]:
        codes = orjson.dumps([rows.STATUS_CODES[status] for status in statuses]).decode()
        return rows.items_of(await self._ask(self._sql["batch_items"], batch_id, after, codes, codes, limit))

    async def removed_items(self, batch_id: str, *, after: int = -1, limit: int) -> list[BatchItem]:
        return rows.items_of(await self._ask(self._sql["removed_items"], batch_id, after, limit))

    async def batch_item(self, batch_id: str, name: str) -> BatchItem | None:
        answer = await self._ask(self._sql["batch_item"], batch_id, name, item_number_of(name), name)
        return None if answer is None else rows.items_of(f"[{answer}]")[0]

    async def batch_of_job(self, job_id: str) -> tuple[str, str | None, int, str | None] | None:
        answer = await self._ask(self._sql["batch_of_job"], job_id)
        return None if answer is None else tuple(orjson.loads(answer))

    async def ended_batches(self, limit: int) -> list[str]:
        ids: list[str] = orjson.loads(await self._ask(self._sql["ended_batches"], limit))
        return ids

    async def was_submitted(self, user_id: str, key: str) -> bool:
        return bool(await self._ask(self._sql["was_submitted"], user_id, key))

    async def newest_submit(self, user_id: str, prefix: str) -> tuple[str, str, str] | None:
        answer = await self._ask(self._sql["newest_submit"], user_id, prefix, rows.after_prefix(prefix))
        return None if answer is None else tuple(orjson.loads(answer))

    async def front_readers(self, limit: int) -> list[tuple[str, str]]:
        return [(job_id, reader) for job_id, reader in orjson.loads(await self._ask(self._sql["front_readers"], limit))]

    async def ended_fronts(self, status: JobStatus, *, after: Ended, before: float, limit: int) -> EndedFronts:
        code = rows.STATUS_CODES[status]
        parameters = code, rows.micros(after[0]), after[1], rows.micros(before), limit
        job_ids, count, last = orjson.loads(await self._ask(self._sql["ended_fronts"], *parameters))
        return ended_fronts_of(job_ids, count == limit, last)

    async def outbox(self, *, older_than: float, limit: int, lanes: Lanes = EVERYTHING) -> list[OutboxEntry]:
        sql, parameters = self._of_lanes("outbox", lanes)
        answer = await self._ask(sql, RELAYING, rows.micros(older_than), *parameters, limit)
        return rows.changes_of(answer)

    async def next_timer(self) -> float | None:
        return rows.seconds(await self._ask(self._sql["next_timer"]))

    async def oldest_waiting(self) -> dict[int, float]:
        values = orjson.loads(await self._ask(self._sql["oldest_waiting"]))
        return {band: moment / 1e6 for band, moment in enumerate(values, 1) if moment is not None}

    async def next_promotion(self, *, low_after: float, medium_after: float) -> float | None:
        low, medium = orjson.loads(await self._ask(self._sql["next_promotion"]))
        moments = [
            queued_at / 1e6 + after
            for queued_at, after in ((low, low_after), (medium, medium_after))
            if queued_at is not None
        ]
        return min(moments, default=None)

    async def waiting(self, batch: int, lanes: Lanes = EVERYTHING) -> AsyncIterator[list[Job]]:
        # Read all seqs first and then the jobs in portions: a scan by seq would pass every finished job, and a scan of
        # the index of open jobs would sort all of them again for each portion.
        sql, parameters = self._of_lanes("waiting", lanes)
        numbers = sorted(orjson.loads(await self._ask(sql, *parameters)))
        sql, parameters = self._of_lanes("waiting_jobs", lanes)
        for start in range(0, len(numbers), batch):
            portion = orjson.dumps(numbers[start : start + batch]).decode()
            if jobs := rows.jobs_of(await self._ask(sql, portion, *parameters)):
                yield jobs

    async def count_waiting(self, lanes: Lanes = EVERYTHING) -> int:
        sql, parameters = self._of_lanes("count_waiting", lanes)
        return int(await self._ask(sql, *parameters))

    async def count_waiting_by_service(self, lanes: Lanes = EVERYTHING) -> dict[str, int]:
        sql, parameters = self._of_lanes("count_waiting_by_service", lanes)
        counts: dict[str, int] = orjson.loads(await self._ask(sql, *parameters))
        return counts

    async def running(self, lanes: Lanes = EVERYTHING) -> list[Job]:
        sql, parameters = self._of_lanes("running", lanes)
        return rows.jobs_of(await self._ask(sql, *parameters))

    async def turn_owners(self) -> list[str]:
        owners: list[str] = orjson.loads(await self._ask(self._sql["turn_owners"]))
        return owners

    async def turns_of(self, process: str, limit: int) -> list[Job]:
        return rows.jobs_of(await self._ask(self._sql["turns_of"], process, limit))

    async def holds(self) -> list[Hold]:
        return rows.holds_of(await self._ask(self._sql["holds"]))

    async def rules(self) -> Rules:
        return rules_of(orjson.loads(await self._ask(self._sql["rules"])))

    async def declared(self) -> DeclareServices:
        _, declared, *_ = orjson.loads(await self._ask(self._sql["rules"]))
        return declared_of(declared)

    async def epochs(self) -> dict[str, Epoch]:
        return rows.epochs_of(await self._ask(self._sql["epochs"]))

    async def now(self) -> float:
        return self._clock()

    async def keys(self) -> list[Key]:
        return [key_of(row) for row in orjson.loads(await self._ask(self._sql["keys"]))]

    async def count_keys(self) -> tuple[int, int]:
        made, revoked = orjson.loads(await self._ask(self._sql["count_keys"]))
        return made, revoked

    async def audit(self, *, before: str | None = None, limit: int, action: str | None = None) -> list[AuditRecord]:
        filters = {"id < ?": before, "action = ?": action}
        parameters = [value for value in filters.values() if value is not None]
        condition = " AND ".join(term for term, value in filters.items() if value is not None) or "TRUE"
        answer = await self._ask(self._sql["audit"].replace("{where}", condition), *parameters, limit)
        return [audit_of(row) for row in orjson.loads(answer)]

    async def processes(self) -> list[ProcessRecord]:
        return [process_of(row) for row in orjson.loads(await self._ask(self._sql["processes"]))]

    async def facts(self) -> Facts:
        values = orjson.loads(await self._ask(self._sql["facts"]))
        now, oldest = self._clock(), values["oldest_outbox_row"]
        return {
            "engine": "sqlite",
            "server_version": values["server_version"],
            "clock": now,
            "database_bytes": values["pages"] * values["page_size"],
            "free_bytes": values["free_pages"] * values["page_size"],
            "wal_bytes": connect.size_of_log(self._path),
            "outbox_rows": values["outbox_rows"],
            "webhooks_waiting": values["webhooks_waiting"],
            "webhooks_disabled": values["webhooks_disabled"],
            "outbox_age": 0.0 if oldest is None else now - oldest / 1e6,
            "journal_mode": values["journal_mode"],
            "synchronous": self._synchronous,
            "readable_by_others": connect.is_readable_by_others(self._path),
        }

    def _of_lanes(self, name: str, lanes: Lanes) -> tuple[str, list[Any]]:
        """The SQL and parameters of a query, restricted to these lanes. If `lanes` selects everything, no condition is
        added."""
        if lanes == EVERYTHING:
            return self._sql[name].replace("{lanes}", "TRUE"), []
        pairs = orjson.dumps(sorted(lanes.pairs)).decode()
        return self._sql[name].replace("{lanes}", without_comments(self._sql["of_lanes"])), [pairs, lanes.others]


def _condition(where: JobFilter, before_seq: int | None = None, from_seq: int | None = None) -> tuple[str, list[Any]]:
    """The WHERE condition of a job list. It contains only the filters that are set, so that SQLite can choose a
    matching index."""
    terms: list[str] = []
    parameters: list[Any] = []
    if where.user_id is not None:
        terms.append("j.user_id = ?")
        parameters.append(where.user_id)
    if where.feature_name is not None:
        terms.append("j.feature_name = ?")
        parameters.append(where.feature_name)
    if where.service is not None:
        terms.append(f"{without_comments(load(__package__, 'fragments.sql')['service'])} = ?")
        parameters.append(where.service)
    if where.error_code is not None:
        terms.append("j.error ->> '$.code' = ?")
        parameters.append(where.error_code)
    if where.retryable is not None:
        terms.append("j.retryable IS ?")
        parameters.append(where.retryable)
    if where.finished_from is not None:
        terms.append("j.finished_at >= ?")
        parameters.append(rows.micros(where.finished_from))
    if where.finished_before is not None:
        terms.append("j.finished_at < ?")
        parameters.append(rows.micros(where.finished_before))
    if where.created_from is not None:
        terms.append("j.created_at >= ?")
        parameters.append(rows.micros(where.created_from))
    if where.created_before is not None:
        terms.append("j.created_at < ?")
        parameters.append(rows.micros(where.created_before))
    if where.statuses:
        codes = sorted(rows.STATUS_CODES[status] for status in where.statuses)
        terms.append(f"j.status IN ({', '.join(map(str, codes))})")
        # Repeat the condition of the partial index that covers these statuses.
        if codes[-1] < 4:
            terms.append("j.status < 4")
        elif codes[0] > 4:
            terms.append("j.status > 4")
    if before_seq is not None:
        terms.append("j.seq < ?")
        parameters.append(before_seq)
    if from_seq is not None:
        terms.append("j.seq >= ?")
        parameters.append(from_seq)
    return " AND ".join(terms) or "TRUE", parameters

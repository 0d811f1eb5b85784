"""The reads of the PostgreSQL store. Each is one statement on a pooled connection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import asyncpg
import orjson

from fairlead.domain.access import AuditRecord, Key
from fairlead.domain.batch import BatchItem, BatchState
from fairlead.domain.job import Hold, Job, JobRecord, JobStatus
from fairlead.domain.processes import ProcessRecord
from fairlead.domain.rules import EVERYTHING, Lanes, Rules
from fairlead.errors import Unavailable
from fairlead.store.port import RELAYING, DeclareServices, Ended, EndedFronts, Epoch, Facts, JobFilter, OutboxEntry
from fairlead.store.postgres.budgets import PostgresBudgetReads
from fairlead.store.postgres.connect import Server, spoils_session, translated
from fairlead.store.postgres.dashboard import PostgresDashboardReads
from fairlead.store.postgres.encode import array
from fairlead.store.postgres.file_batches import PostgresFileBatchReads
from fairlead.store.postgres.files import PostgresFileReads
from fairlead.store.postgres.queries import READS, load
from fairlead.store.postgres.schedules import PostgresScheduleReads
from fairlead.store.postgres.usage import PostgresUsageReads
from fairlead.store.postgres.webhooks import PostgresWebhookReads
from fairlead.store.records import audit_of, batch_state_of, ended_fronts_of, item_number_of, key_of, process_of
from fairlead.store.rows import STATUS_CODES, after_prefix, job_of, micros, record_of, seconds
from fairlead.store.rules import declared_of, rules_of

JOB_COLUMNS = 32  # in the fragment `job_columns`


def change_from(row: Sequence[Any]) -> OutboxEntry:
    """Read an outbox row: its id, the job id, and the job columns, which are NULL if the job is gone."""
    outbox_id, job_id, *job = row
    return OutboxEntry(outbox_id, job_id, None if job[0] is None else job_of(job))


def item_from(row: Sequence[Any]) -> BatchItem:
    """Read a batch item: number, custom_id, job id, and the job columns, which are NULL if the job is gone."""
    number, custom_id, job_id, *job = row
    return BatchItem(number, custom_id, job_id, None if job[0] is None else job_of(job))


def hold_from(row: Sequence[Any]) -> Hold:
    job_id, service, region, until, id_, band = row
    return Hold(job_id, service, region, until / 1e6, id_, band)


def record_from(row: Sequence[Any]) -> JobRecord:
    """Read a row of the query `get`: a job with its input, results and attempts."""
    input_json, metadata_json, results, attempts, about, data, metrics = row[JOB_COLUMNS:]
    rows = [] if results is None else orjson.loads(results)
    if data is not None:
        step, service, round_, finished_at, lease = orjson.loads(about)
        rows.append((step, service, round_, data, metrics, finished_at, lease))
        rows.sort(key=lambda row: (row[0], row[2]))
    stored = () if attempts is None else orjson.loads(attempts)
    return record_of((row[:JOB_COLUMNS], input_json, metadata_json, rows, stored))


class Reads(
    PostgresDashboardReads,
    PostgresUsageReads,
    PostgresBudgetReads,
    PostgresFileReads,
    PostgresFileBatchReads,
    PostgresWebhookReads,
    PostgresScheduleReads,
):
    """The read methods of `PostgresStore`."""

    def __init__(self, server: Server, clock: Callable[[], float] | None) -> None:
        self._server = server
        self._clock = clock
        self._origin = ""
        self._pool: asyncpg.Pool | None = None
        self._renew_readers = False

    def _opened(self) -> asyncpg.Pool:
        if self._pool is None:
            raise Unavailable("the store is not open")
        return self._pool

    async def _ask(self, sql: str, *parameters: Any) -> list[Any]:
        pool = self._opened()
        if self._renew_readers:
            self._renew_readers = False
            await pool.expire_connections()
        with translated(self._server.shown):
            try:
                return list(await pool.fetch(sql, *parameters))
            except Exception as error:
                self._renew_readers = self._renew_readers or spoils_session(error)
                raise

    async def _jobs(self, sql: str, *parameters: Any) -> list[Job]:
        return [job_of(row) for row in await self._ask(sql, *parameters)]

    async def ping(self) -> None:
        await self._ask(READS["ping"])

    async def get(self, job_id: str) -> JobRecord | None:
        answer = await self._ask(READS["get"], job_id)
        return record_from(answer[0]) if answer else None

    async def get_records(self, job_ids: Sequence[str]) -> dict[str, JobRecord]:
        records = [record_from(row) for row in await self._ask(READS["get_records"], list(set(job_ids)))]
        return {record.job.id: record for record in records}

    async def get_jobs(self, job_ids: Sequence[str]) -> dict[str, Job]:
        if not job_ids:
            return {}
        jobs = {job.id: job for job in await self._jobs(READS["get_jobs"], list(set(job_ids)))}
        return {job_id: jobs[job_id] for job_id in job_ids if job_id in jobs}

    async def list_jobs(
        self, where: JobFilter, *, before_seq: int | None, limit: int, from_seq: int | None = None
    ) -> list[Job]:
        condition, parameters = _condition(where, before_seq, from_seq)
        sql = READS["list_jobs"].replace("{where}", condition).replace("{limit}", f"${len(parameters) + 1}")
        return await self._jobs(sql, *parameters, limit)

    async def seq_after(self, where: JobFilter, *, before_seq: int | None, skip: int) -> int | None:
        condition, parameters = _condition(where, before_seq)
        sql = READS["seq_after"].replace("{where}", condition).replace("{skip}", f"${len(parameters) + 1}")
        found = await self._ask(sql, *parameters, skip)
        return int(found[0][0]) if found else None

    async def count(self, where: JobFilter) -> int:
        condition, parameters = _condition(where)
        ((number,),) = await self._ask(READS["count"].replace("{where}", condition), *parameters)
        return int(number)

    async def users_with_prefix(self, prefix: str, limit: int) -> list[str]:
        return [row[0] for row in await self._ask(READS["users_with_prefix"], prefix, limit)]

    async def get_batch(self, batch_id: str) -> BatchState | None:
        answer = await self._ask(READS["get_batch"], batch_id)
        return batch_state_of(answer[0]) if answer else None

    async def batch_owner(self, batch_id: str) -> str | None:
        answer = await self._ask(READS["batch_owner"], batch_id)
        return answer[0][0] if answer else None

    async def batch_of_key(self, user_id: str, key: str) -> tuple[str, str | None] | None:
        answer = await self._ask(READS["batch_of_key"], user_id, key)
        return (answer[0][0], answer[0][1]) if answer else None

    async def list_batches(self, user_id: str | None, *, before: str | None, limit: int) -> list[BatchState]:
        whose, arguments = ("TRUE", ()) if user_id is None else ("b.user_id = $3", (user_id,))
        sql = READS["list_batches"].replace("{whose}", whose)
        return [batch_state_of(row) for row in await self._ask(sql, before, limit, *arguments)]

    async def batch_items(
        self, batch_id: str, *, statuses: Sequence[JobStatus] = (), after: int = -1, limit: int
    ) -> list[BatchItem]:
        name, codes = "batch_items", []
        if statuses:
            name, codes = "batch_items_of_status", [[STATUS_CODES[status] for status in statuses]]
        return [item_from(row) for row in await self._ask(READS[name], batch_id, after, limit, *codes)]

    async def removed_items(self, batch_id: str, *, after: int = -1, limit: int) -> list[BatchItem]:
        return [item_from(row) for row in await self._ask(READS["removed_items"], batch_id, after, limit)]

    async def batch_item(self, batch_id: str, name: str) -> BatchItem | None:
        answer = await self._ask(READS["batch_item"], batch_id, name, item_number_of(name))
        return item_from(answer[0]) if answer else None

    async def batch_of_job(self, job_id: str) -> tuple[str, str | None, int, str | None] | None:
        answer = await self._ask(READS["batch_of_job"], job_id)
        return tuple(answer[0]) if answer else None

    async def ended_batches(self, limit: int) -> list[str]:
        return [row[0] for row in await self._ask(READS["ended_batches"], limit)]

    async def was_submitted(self, user_id: str, key: str) -> bool:
        ((exists,),) = await self._ask(READS["was_submitted"], user_id, key)
        return bool(exists)

    async def newest_submit(self, user_id: str, prefix: str) -> tuple[str, str, str] | None:
        found = await self._ask(READS["newest_submit"], user_id, prefix, after_prefix(prefix))
        return tuple(found[0]) if found else None

    async def front_readers(self, limit: int) -> list[tuple[str, str]]:
        return [(job_id, reader) for job_id, reader in await self._ask(READS["front_readers"], limit)]

    async def ended_fronts(self, status: JobStatus, *, after: Ended, before: float, limit: int) -> EndedFronts:
        code = STATUS_CODES[status]
        parameters = code, micros(after[0]), after[1], micros(before), limit
        ((job_ids, count, last),) = await self._ask(READS["ended_fronts"], *parameters)
        return ended_fronts_of(job_ids, count == limit, last)

    async def outbox(self, *, older_than: float, limit: int, lanes: Lanes = EVERYTHING) -> list[OutboxEntry]:
        arguments = RELAYING, micros(older_than), limit
        if lanes == EVERYTHING:
            answer = await self._ask(READS["outbox"], *arguments)
        else:
            answer = await self._ask(READS["outbox_of_lanes"], *arguments, *_parameters(lanes))
        return [change_from(row) for row in answer]

    async def next_timer(self) -> float | None:
        ((moment,),) = await self._ask(READS["next_timer"])
        return seconds(moment)

    async def oldest_waiting(self) -> dict[int, float]:
        (times,) = await self._ask(READS["oldest_waiting"])
        return {band: moment / 1e6 for band, moment in enumerate(times, 1) if moment is not None}

    async def next_promotion(self, *, low_after: float, medium_after: float) -> float | None:
        ((low, medium),) = await self._ask(READS["next_promotion"])
        moments = [
            queued_at / 1e6 + after
            for queued_at, after in ((low, low_after), (medium, medium_after))
            if queued_at is not None
        ]
        return min(moments, default=None)

    async def waiting(self, batch: int, lanes: Lanes = EVERYTHING) -> AsyncIterator[list[Job]]:
        # Read all seqs first and then the jobs in portions, so that no transaction stays open in between.
        sql, parameters = _of_lanes("waiting", lanes)
        ((numbers,),) = await self._ask(sql, *parameters)
        numbers.sort()
        for start in range(0, len(numbers), batch):
            portion = array(numbers[start : start + batch])
            sql, parameters = _of_lanes("waiting_jobs", lanes, portion)
            if jobs := await self._jobs(sql, *parameters):
                yield jobs

    async def count_waiting(self, lanes: Lanes = EVERYTHING) -> int:
        sql, parameters = _of_lanes("count_waiting", lanes)
        ((number,),) = await self._ask(sql, *parameters)
        return int(number)

    async def count_waiting_by_service(self, lanes: Lanes = EVERYTHING) -> dict[str, int]:
        sql, parameters = _of_lanes("count_waiting_by_service", lanes)
        return {service: int(number) for service, number in await self._ask(sql, *parameters)}

    async def running(self, lanes: Lanes = EVERYTHING) -> list[Job]:
        sql, parameters = _of_lanes("running", lanes)
        return await self._jobs(sql, *parameters)

    async def turn_owners(self) -> list[str]:
        return [row[0] for row in await self._ask(READS["turn_owners"])]

    async def turns_of(self, process: str, limit: int) -> list[Job]:
        return await self._jobs(READS["turns_of"], process, limit)

    async def holds(self) -> list[Hold]:
        return [hold_from(row) for row in await self._ask(READS["holds"])]

    async def rules(self) -> Rules:
        ((version, *texts),) = await self._ask(READS["rules"])
        return rules_of([version, *map(orjson.loads, texts)])

    async def declared(self) -> DeclareServices:
        ((_, declared, *_),) = await self._ask(READS["rules"])
        return declared_of(orjson.loads(declared))

    async def epochs(self) -> dict[str, Epoch]:
        return {
            scope: Epoch(number, server, asked) for scope, number, server, asked in await self._ask(READS["epochs"])
        }

    async def now(self) -> float:
        if self._clock is not None:
            return self._clock()
        ((moment,),) = await self._ask(READS["now"])
        return float(moment)

    async def keys(self) -> list[Key]:
        return [key_of(row) for row in await self._ask(READS["keys"])]

    async def count_keys(self) -> tuple[int, int]:
        ((made, revoked),) = await self._ask(READS["count_keys"])
        return made, revoked

    async def audit(self, *, before: str | None = None, limit: int, action: str | None = None) -> list[AuditRecord]:
        arguments = {"id <": before, "action =": action}
        parameters = [value for value in arguments.values() if value is not None]
        terms = [term for term, value in arguments.items() if value is not None]
        condition = " AND ".join(f"{term} ${n}" for n, term in enumerate(terms, 1)) or "TRUE"
        sql = READS["audit"].replace("{where}", condition).replace("{limit}", f"${len(terms) + 1}")
        return [audit_of(row) for row in await self._ask(sql, *parameters, limit)]

    async def processes(self) -> list[ProcessRecord]:
        return [process_of(row) for row in await self._ask(READS["processes"])]

    async def facts(self) -> Facts:
        now = None if self._clock is None else micros(self._clock())
        return {"engine": "postgresql", **dict((await self._ask(READS["facts"], now))[0])}


def _of_lanes(name: str, lanes: Lanes, *arguments: Any) -> tuple[str, list[Any]]:
    """The SQL and parameters of a query, restricted to these lanes. If `lanes` selects everything, no condition is
    added."""
    if lanes == EVERYTHING:
        return READS[name].replace("{lanes}", "TRUE"), list(arguments)
    condition = READS["of_lanes"]
    for number, part in enumerate(("services", "bands", "others"), len(arguments) + 1):
        condition = condition.replace(f"{{{part}}}", f"${number}")
    return READS[name].replace("{lanes}", condition), [*arguments, *_parameters(lanes)]


def _parameters(lanes: Lanes) -> tuple[list[str], list[int], bool]:
    pairs = sorted(lanes.pairs)
    return [service for service, _ in pairs], [band for _, band in pairs], lanes.others


def _condition(where: JobFilter, before_seq: int | None = None, from_seq: int | None = None) -> tuple[str, list[Any]]:
    """The WHERE condition of a job list. It contains only the filters that are set, so that PostgreSQL can choose a
    matching index."""
    terms: list[str] = []
    parameters: list[Any] = []

    def add(term: str, value: Any) -> None:
        parameters.append(value)
        terms.append(f"{term} ${len(parameters)}")

    if where.user_id is not None:
        add("j.user_id =", where.user_id)
    if where.feature_name is not None:
        add("j.feature_name =", where.feature_name)
    if where.service is not None:
        add(f"{load('fragments.sql')['service']} =", where.service)
    if where.error_code is not None:
        add("j.error::json ->> 'code' =", where.error_code)
    if where.retryable is not None:
        add("j.retryable =", where.retryable)
    if where.finished_from is not None:
        add("j.finished_at >=", micros(where.finished_from))
    if where.finished_before is not None:
        add("j.finished_at <", micros(where.finished_before))
    if where.created_from is not None:
        add("j.created_at >=", micros(where.created_from))
    if where.created_before is not None:
        add("j.created_at <", micros(where.created_before))
    if where.statuses:
        terms.append(_has_status(sorted(STATUS_CODES[status] for status in where.statuses)))
    if before_seq is not None:
        add("j.seq <", before_seq)
    if from_seq is not None:
        add("j.seq >=", from_seq)
    return " AND ".join(terms) or "TRUE", parameters


def _has_status(codes: list[int]) -> str:
    """The condition on the status. It uses the column `ended` where possible, because the partial indexes are on
    `ended` and not on `status`."""
    one_of = f"= {codes[0]}" if len(codes) == 1 else f"IN ({', '.join(map(str, codes))})"
    if codes[0] > 3:
        return f"j.ended {one_of}"
    if codes[-1] < 4:
        return f"j.ended IS NULL AND j.status {one_of}"
    return f"j.status {one_of}"

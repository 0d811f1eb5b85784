"""Prepares jobs before they are committed, and publishes them afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fairlead.artifacts.values import keep_inputs
from fairlead.domain.submission import Submission, SubmissionChecker
from fairlead.domain.transitions import Submit
from fairlead.errors import RequestError

if TYPE_CHECKING:
    from fairlead.app.budget_gate import BudgetState
    from fairlead.app.runtime import Runtime


class NewJobs:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def submits_of(
        self,
        submissions: Sequence[Submission],
        now: float,
        idempotency: tuple[str | None, str | None],
        *,
        lowers_only: bool = False,
        trace: str | None = None,
    ) -> tuple[list[Submit], BudgetState | None]:
        """Check the submissions, settle their priorities, apply budgets, and move large inputs to the object store. If
        one of several is invalid, the `index` in the error's details names it. `idempotency` is the key and the hash of
        the body; each of several jobs gets its own key. Also returns the budget that `Runtime.settle` returns."""
        runtime, (key, body_hash) = self._runtime, idempotency
        users = await runtime.endpoint_users.current()
        checks = SubmissionChecker(runtime.config, now=now, endpoint_users=users, trace=trace)
        submits = []
        for index, submission in enumerate(submissions):
            own = key if key is None or len(submissions) == 1 else f"{key}#{index}"
            try:
                submits.append(checks.submit_of(submission, idempotency_key=own, body_hash=body_hash))
            except RequestError as error:
                if len(submissions) > 1:
                    error.details["index"] = index
                raise
        submits, budget = await runtime.settle(submits, now, lowers_only=lowers_only)
        return await keep_inputs(runtime.files, submits), budget

    async def prepare(self, submission: Submission, *, key: str | None = None, lowers_only: bool = False) -> Submit:
        """Prepare the job of a schedule. The schedule may have changed since an earlier submit with this key, so the
        bodies are not compared."""
        tracing = self._runtime.tracing
        if tracing is None:
            return await self._prepare(submission, key, lowers_only, None)
        with tracing.submitting([submission.feature_name], None) as span:
            submit = await self._prepare(submission, key, lowers_only, span.trace)
            span.accepted([submit.job.id])
            return submit

    async def _prepare(self, submission: Submission, key: str | None, lowers_only: bool, trace: str | None) -> Submit:
        now = self._runtime.clock.now()
        [submit], _ = await self.submits_of([submission], now, (key, key), lowers_only=lowers_only, trace=trace)
        return submit

    async def accepted(self, submit: Submit) -> None:
        """Publish a job that was committed."""
        await self._runtime.relay_ordered([submit])
        self._runtime.announce([submit.job], self._runtime.clock.now())

-- Expressions that several statements share: `{name}` in a query stands for them.

-- name: job_row
-- A row of `job`, aliased j, as one JSON array. The order is that of `rows.job_of`.
json_array(
    j.seq, j.id, j.user_id, j.feature_name, j.status, j.priority, j.step, j.run, j.attempt, j.round,
    j.created_at, j.queued_at, j.waiting_since, j.scheduled_at, j.promoted_at, j.started_at, j.finished_at,
    j.last_progress_at, j.timer_at, j.deadline_at, j.lease, j.worker, j.call_started_at, j.call_deadline,
    j.call_region, j.spilled_at, j.retryable, json(j.error), json(j.progress), json(j.spec)
)

-- name: rules
-- [version, what is declared, [[service, limit, paused], …]]; `settings.rules_of` reads it back.
(SELECT json_array(version, json(declared), (
    SELECT json_group_array(json_array(service, slots, paused)) FROM service_override
)) FROM rules)

-- name: context
-- Earlier steps' results of the job j, of each step the newest round, in the shape of `domain.job.context_of`.
-- Spliced as text: the data is JSON already, and most readers only pass it on.
CASE j.step WHEN 0 THEN '{}' ELSE '{' || coalesce((
    SELECT group_concat(
        json_quote('step_' || r.step || '_' || r.service)
        || ':{"status":"SUCCESS","data":' || r.data || ',"metrics":' || r.metrics || '}', ',')
    FROM step_result AS r
    WHERE r.seq = j.seq AND r.step < j.step AND r.round = (
        SELECT max(round) FROM step_result WHERE seq = r.seq AND step = r.step
    )
), '') || '}' END

-- name: service
-- Of the step that the job j is at; of the last one when all are done, as `domain.job.Job.service`.
coalesce(j.spec ->> ('$[0][' || j.step || ']'), j.spec ->> '$[0][#-1]')

-- The statements of the usage ledger (docs/adr/0028). The rows of completed jobs are inserted by `complete` in apply.sql.

-- name: ledger
-- The rows of other moves. $1: ended at, $2: job ids, $3: runs, $4: users, $5: features, $6 to $21: see `call_values`.
INSERT INTO fairlead.usage (
    ended_at, job_id, run, user_id, feature_name, waited, slot, outcome, step, attempt, service, region,
    plan, group_path, model, tokens_in, tokens_out, tokens_cached, units, ignored, price
)
    SELECT * FROM unnest(
        $1::text::bigint[], $2::text[], $3::text::int[], $4::text[], $5::text[], $6::text::bigint[],
        $7::text::bigint[], $8::text::smallint[], $9::text::int[], $10::text::int[], $11::text[], $12::text[],
        $13::text[], $14::text[], $15::text[], $16::text::int[], $17::text::int[], $18::text::int[],
        $19::text::float8[], $20::text::smallint[], $21::text::bigint[]
    )

-- name: lock_usage
-- Serialises roll-ups. Returns whether the watermark is in the future: then the database was restored from a dump, and
-- transactions are counted from a lower number.
SELECT next_tx > pg_current_xact_id() FROM fairlead.usage_state FOR UPDATE

-- name: renumber_usage
-- After a restore: marks the rows that are in the totals as old, and all others as written by this transaction.
UPDATE fairlead.usage AS u
SET tx = CASE WHEN u.tx >= s.next_tx OR u.id > s.last_id THEN pg_current_xact_id() ELSE '0'::xid8 END
FROM fairlead.usage_state AS s

-- name: restart_usage
UPDATE fairlead.usage_state SET next_tx = pg_snapshot_xmin(pg_current_snapshot())

-- name: roll_up_usage
-- $1: about how many rows. Adds the rows from the watermark on. The oldest transaction that is still running is the
-- upper bound: it may yet commit rows. All rows of a transaction are added together.
WITH first AS (
    SELECT u.tx FROM fairlead.usage AS u
    WHERE u.tx >= (SELECT next_tx FROM fairlead.usage_state) ORDER BY u.tx LIMIT 1
), bound AS (
    SELECT first.tx AS low, least(pg_snapshot_xmin(pg_current_snapshot()), coalesce(
        (SELECT u.tx FROM fairlead.usage AS u WHERE u.tx > first.tx ORDER BY u.tx OFFSET $1::int LIMIT 1),
        pg_snapshot_xmin(pg_current_snapshot())
    )) AS high
    FROM first
), fresh AS MATERIALIZED (
    SELECT u.* FROM bound JOIN fairlead.usage AS u ON u.tx >= bound.low AND u.tx < bound.high
), totals AS (
    INSERT INTO fairlead.usage_total AS t (
        span, bucket, user_id, service, feature_name, model, region, plan, group_path, outcome,
        calls, waited, slot, tokens_in, tokens_out, tokens_cached, units, ignored, reported, price
    )
        SELECT s.span, (u.ended_at / 1000000 / s.span)::int, {usage_names}, {usage_sums}
        FROM fresh AS u CROSS JOIN (VALUES (3600), (86400)) AS s (span)
        GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
        ON CONFLICT (span, bucket, user_id, service, feature_name, model, region, plan, group_path, outcome)
        DO UPDATE SET
            calls = t.calls + excluded.calls, waited = t.waited + excluded.waited, slot = t.slot + excluded.slot,
            tokens_in = t.tokens_in + excluded.tokens_in, tokens_out = t.tokens_out + excluded.tokens_out,
            tokens_cached = t.tokens_cached + excluded.tokens_cached, units = t.units + excluded.units,
            ignored = t.ignored + excluded.ignored, reported = t.reported + excluded.reported,
            price = t.price + excluded.price
), moved AS (
    UPDATE fairlead.usage_state AS s
    SET next_tx = bound.high, last_id = greatest(s.last_id, (SELECT max(id) FROM fresh))
    FROM bound WHERE EXISTS (SELECT FROM fresh)
)
SELECT count(*) FROM fresh

-- name: prune_usage
-- $1: ended before, $2: limit. Looks at the oldest rows only.
WITH gone AS (
    DELETE FROM fairlead.usage WHERE ctid = ANY (ARRAY(
        SELECT u.ctid FROM (
            SELECT tx, ctid, ended_at FROM fairlead.usage
            WHERE tx < (SELECT next_tx FROM fairlead.usage_state) ORDER BY tx LIMIT $2::bigint
        ) AS u WHERE u.ended_at < $1::bigint
    )) RETURNING 1
)
SELECT count(*) FROM gone

-- name: prune_usage_totals
-- $1: span, $2: the first bucket to keep.
DELETE FROM fairlead.usage_total WHERE span = $1::int AND bucket < $2::int

-- name: usage_totals
-- $1: span, $2 and $3: buckets from and before, $4: interval (0 hour, 1 day, 2 month, 3 total), $5: grouping as bits,
-- $6 to $13: filters, of which $8, a group, includes its teams, $14 to $22: the key of the last row of the previous page,
-- $23: limit.
SELECT * FROM (
    SELECT
        CASE $4::int
            WHEN 3 THEN 0
            WHEN 2 THEN (extract(year FROM d.day) * 12 + extract(month FROM d.day))::int
            ELSE u.bucket
        END AS bucket,
        CASE WHEN $5::int & 1 <> 0 THEN u.user_id ELSE '' END AS user_id,
        CASE WHEN $5::int & 2 <> 0 THEN u.plan ELSE '' END AS plan,
        CASE WHEN $5::int & 4 <> 0 THEN u.group_path ELSE '' END AS group_path,
        CASE WHEN $5::int & 8 <> 0 THEN u.feature_name ELSE '' END AS feature_name,
        CASE WHEN $5::int & 16 <> 0 THEN u.service ELSE '' END AS service,
        CASE WHEN $5::int & 32 <> 0 THEN u.model ELSE '' END AS model,
        CASE WHEN $5::int & 64 <> 0 THEN u.region ELSE '' END AS region,
        CASE WHEN $5::int & 128 <> 0 THEN u.outcome ELSE -1 END AS outcome,
        sum(u.calls)::bigint, sum(u.waited)::bigint, sum(u.slot)::bigint, sum(u.tokens_in)::bigint,
        sum(u.tokens_out)::bigint, sum(u.tokens_cached)::bigint, sum(u.units), sum(u.ignored)::bigint,
        sum(u.reported)::bigint, sum(u.price)::bigint
    FROM (
        SELECT bucket, user_id, service, feature_name, model, region, plan, group_path, outcome, calls, waited, slot,
               tokens_in, tokens_out, tokens_cached, units, ignored, reported, price
        FROM fairlead.usage_total
        WHERE span = $1::int AND bucket >= $2::int AND bucket < $3::int AND ($6::text IS NULL OR user_id = $6::text)
        UNION ALL
        SELECT (u.ended_at / 1000000 / $1::int)::int, {usage_names}, {usage_sums}
        FROM fairlead.usage AS u
        WHERE u.tx >= (SELECT next_tx FROM fairlead.usage_state)
          AND u.ended_at >= $2::bigint * $1::bigint * 1000000 AND u.ended_at < $3::bigint * $1::bigint * 1000000
        GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9
    ) AS u
    CROSS JOIN LATERAL (
        SELECT CASE $4::int WHEN 2 THEN date '1970-01-01' + u.bucket * $1::int / 86400 END AS day
    ) AS d
    WHERE ($6::text IS NULL OR u.user_id = $6::text) AND ($7::text IS NULL OR u.plan = $7::text)
      AND ($8::text IS NULL OR u.group_path = $8::text OR starts_with(u.group_path, $8::text || '/'))
      AND ($9::text IS NULL OR u.feature_name = $9::text) AND ($10::text IS NULL OR u.service = $10::text)
      AND ($11::text IS NULL OR u.model = $11::text) AND ($12::text IS NULL OR u.region = $12::text)
      AND ($13::int IS NULL OR u.outcome = $13::int)
    GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9
) AS g
WHERE $14::int IS NULL
   OR (g.bucket, g.user_id, g.plan, g.group_path, g.feature_name, g.service, g.model, g.region, g.outcome)
    > ($14::int, $15::text, $16::text, $17::text, $18::text, $19::text, $20::text, $21::text, $22::int)
ORDER BY 1, 2, 3, 4, 5, 6, 7, 8, 9 LIMIT $23::bigint

-- name: latest_calls
-- $1: limit, $2: user or NULL.
SELECT ended_at, job_id, run, step, attempt, user_id, feature_name, service, region, outcome, waited, slot,
       plan, group_path, model, tokens_in, tokens_out, tokens_cached, units, ignored, price
FROM (SELECT * FROM fairlead.usage ORDER BY tx DESC LIMIT $1::bigint) AS u
WHERE $2::text IS NULL OR user_id = $2::text ORDER BY tx DESC, id DESC

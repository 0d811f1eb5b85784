-- Triggers for the writes of the usage ledger, like those in admin.sql. The rows themselves are inserted by `on_move` in
-- apply.sql.

-- body: about how many rows. There is one writer, so rows are committed in the order of their ids.
CREATE TEMP TRIGGER on_roll_up INSTEAD OF INSERT ON rare WHEN NEW.kind = 'roll_up'
BEGIN
    INSERT INTO answer SELECT 'rolled_up', count(*) FROM (
        SELECT 1 FROM usage WHERE id >= (SELECT next_id FROM usage_state) ORDER BY id LIMIT NEW.body
    );
    INSERT INTO usage_total
        SELECT s.span, u.ended_at / 1000000 / s.span, {usage_names}, {usage_sums}
        FROM (SELECT * FROM usage WHERE id >= (SELECT next_id FROM usage_state) ORDER BY id LIMIT NEW.body) AS u
        CROSS JOIN (SELECT 3600 AS span UNION ALL SELECT 86400) AS s
        WHERE TRUE
        GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
        ON CONFLICT (span, bucket, user_id, service, feature_name, model, region, plan, group_path, outcome)
        DO UPDATE SET
            calls = calls + excluded.calls, waited = waited + excluded.waited, slot = slot + excluded.slot,
            tokens_in = tokens_in + excluded.tokens_in, tokens_out = tokens_out + excluded.tokens_out,
            tokens_cached = tokens_cached + excluded.tokens_cached, units = units + excluded.units,
            ignored = ignored + excluded.ignored, reported = reported + excluded.reported,
            price = price + excluded.price;
    UPDATE usage_state SET next_id = coalesce((
        SELECT max(id) + 1 FROM (SELECT id FROM usage WHERE id >= next_id ORDER BY id LIMIT NEW.body)
    ), next_id);
END;

-- body: [ended before, first hour to keep, first day to keep, limit]. Looks at the oldest rows only.
CREATE TEMP TRIGGER on_prune_usage INSTEAD OF INSERT ON rare WHEN NEW.kind = 'prune_usage'
BEGIN
    INSERT INTO answer SELECT 'pruned_usage', count(*) FROM (
        SELECT ended_at FROM usage WHERE id < (SELECT next_id FROM usage_state) ORDER BY id LIMIT NEW.body ->> 3
    ) WHERE ended_at < NEW.body ->> 0;
    DELETE FROM usage WHERE id IN (
        SELECT id FROM (
            SELECT id, ended_at FROM usage WHERE id < (SELECT next_id FROM usage_state)
            ORDER BY id LIMIT NEW.body ->> 3
        ) WHERE ended_at < NEW.body ->> 0
    );
    DELETE FROM usage_total WHERE span = 3600 AND bucket < NEW.body ->> 1;
    DELETE FROM usage_total WHERE span = 86400 AND bucket < NEW.body ->> 2;
END;

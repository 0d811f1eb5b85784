-- The idempotency key of the request that created a file batch. Of batches that share a key, the first one has it. A
-- process of the previous release stores batches without their keys here.
ALTER TABLE fairlead.file_batch ADD COLUMN request_key text COLLATE "C";
UPDATE fairlead.file_batch SET request_key = data::jsonb ->> 'request_key' WHERE id IN (
    SELECT min(id) FROM fairlead.file_batch WHERE data::jsonb ->> 'request_key' IS NOT NULL
    GROUP BY user_id, data::jsonb ->> 'request_key'
);
CREATE UNIQUE INDEX file_batch_key ON fairlead.file_batch (user_id, request_key) WHERE request_key IS NOT NULL;

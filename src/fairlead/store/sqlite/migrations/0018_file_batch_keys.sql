-- The idempotency key of the request that created a file batch. Of batches that share a key, the first one has it. A
-- process of the previous release stores batches without their keys here.
ALTER TABLE file_batch ADD COLUMN request_key TEXT;
UPDATE file_batch SET request_key = data ->> 'request_key' WHERE id IN (
    SELECT min(id) FROM file_batch WHERE data ->> 'request_key' IS NOT NULL GROUP BY user_id, data ->> 'request_key'
);
CREATE UNIQUE INDEX file_batch_key ON file_batch (user_id, request_key) WHERE request_key IS NOT NULL;

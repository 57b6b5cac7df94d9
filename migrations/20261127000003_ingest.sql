-- Ingest: occurrences that programs and jobs enqueue, and the checkpoints of attempts.

-- A wider set of origins. A server that does not know the new one shows it as a run by a script.
ALTER TABLE runs DROP CONSTRAINT runs_trigger_check;
ALTER TABLE runs ADD CONSTRAINT runs_trigger_check
    CHECK (trigger IN ('schedule', 'manual', 'api', 'retry', 'enqueue')) NOT VALID;
ALTER TABLE runs VALIDATE CONSTRAINT runs_trigger_check;
COMMENT ON COLUMN runs.trigger IS 'Origin: schedule, manual, api, retry or enqueue.';

ALTER TABLE runs ADD COLUMN parent_id uuid;
COMMENT ON COLUMN runs.parent_id IS 'Occurrence that enqueued it; null if none did. It may have been deleted since.';
ALTER TABLE history ADD COLUMN parent_id uuid;
COMMENT ON COLUMN history.parent_id IS 'As in runs.';
-- The children of an occurrence. Nearly no row has a parent, so nearly no row is in these indexes.
CREATE INDEX runs_by_parent ON runs (parent_id, id) WHERE parent_id IS NOT NULL;
CREATE INDEX history_by_parent ON history (parent_id, id) WHERE parent_id IS NOT NULL;

CREATE OR REPLACE VIEW occurrences AS
    SELECT id, created_at, job_id, job_name, job_version, worker_id, job_type,
           run_input(id, own_input, has_long_input, job_id, job_version) AS job_data,
           scheduled_for, trigger, triggered_by, trigger_reason, retry_of, status, version, priority, attempt, failures,
           requeues, max_retries, timeout_seconds, published_at, not_before,
           status = 'queued' AND (not_before IS NOT NULL OR NOT has_slot) AS is_held,
           instance_id, started_at, NULL::timestamptz AS ended_at, NULL::bigint AS duration_ms, last_heartbeat, progress,
           NULL::text AS result, exception, note, status_changes, cancel_requested_at, cancel_requested_by,
           'infinity'::timestamptz AS filed_at, traceparent, parent_id
      FROM runs
    UNION ALL
    SELECT id, created_at, job_id, job_name, job_version, worker_id, job_type,
           run_input(id, own_input, has_long_input, job_id, job_version),
           scheduled_for, trigger, triggered_by, trigger_reason, retry_of, status, version, priority, attempt, failures,
           requeues, max_retries, timeout_seconds, published_at, NULL::timestamptz,
           false,
           instance_id, started_at, ended_at, duration_ms, filed_at, progress,
           result, exception, note, status_changes, cancel_requested_at, cancel_requested_by,
           filed_at, traceparent, parent_id
      FROM history;
COMMENT ON COLUMN occurrences.parent_id IS 'As in runs.';

CREATE TABLE declared_jobs (
    worker_id text NOT NULL,
    job_type  text NOT NULL,
    name      text NOT NULL,
    job_id    uuid NOT NULL UNIQUE REFERENCES jobs (id) ON DELETE CASCADE,
    PRIMARY KEY (worker_id, job_type, name)
);
COMMENT ON TABLE  declared_jobs IS 'Jobs that the server keeps for the job types of workers.';
COMMENT ON COLUMN declared_jobs.worker_id IS 'Worker.';
COMMENT ON COLUMN declared_jobs.job_type IS 'Job type of that worker.';
COMMENT ON COLUMN declared_jobs.name IS 'Name of the schedule; empty for the job of the occurrences that are enqueued by job type.';
COMMENT ON COLUMN declared_jobs.job_id IS 'The job.';

CREATE TABLE run_uniqueness (
    job_id     uuid        NOT NULL,
    key        text        NOT NULL CHECK (char_length(key) BETWEEN 1 AND 200),
    run_id     uuid,
    until      timestamptz,
    claimed_at timestamptz NOT NULL,
    PRIMARY KEY (job_id, key)
) WITH (fillfactor = 70);
COMMENT ON TABLE  run_uniqueness IS
    'Uniqueness keys: a key of a job is taken while the occurrence of its row is open, and until a time after its creation.';
COMMENT ON COLUMN run_uniqueness.job_id IS 'Job of the occurrence.';
COMMENT ON COLUMN run_uniqueness.key IS 'Uniqueness key.';
COMMENT ON COLUMN run_uniqueness.run_id IS 'Occurrence that took the key last; null if none did.';
COMMENT ON COLUMN run_uniqueness.until IS 'Time until which the key is taken even if the occurrence has ended; null for no such time.';
COMMENT ON COLUMN run_uniqueness.claimed_at IS
    'Time of the last request for the key. A row that is deleted is older than an hour, so no request can be under way.';

CREATE TABLE run_checkpoints (
    run_id      uuid        PRIMARY KEY,
    attempt     integer     NOT NULL CHECK (attempt >= 1),
    checkpoint  jsonb       NOT NULL CHECK (octet_length(checkpoint::text) <= 65536),
    reported_at timestamptz NOT NULL,
    stored_at   timestamptz NOT NULL
) WITH (fillfactor = 70);
COMMENT ON TABLE  run_checkpoints IS 'Last checkpoints of occurrences, for their next attempts. Deleted some time after the end.';
COMMENT ON COLUMN run_checkpoints.run_id IS 'Occurrence.';
COMMENT ON COLUMN run_checkpoints.attempt IS 'Attempt that reported it.';
COMMENT ON COLUMN run_checkpoints.checkpoint IS 'The value, up to 32 KiB as the worker wrote it.';
COMMENT ON COLUMN run_checkpoints.reported_at IS 'Time of the report, by the worker''s clock; an earlier one that arrives later changes nothing.';
COMMENT ON COLUMN run_checkpoints.stored_at IS 'Time at which the server stored it.';
CREATE INDEX run_checkpoints_by_age ON run_checkpoints (stored_at);

CREATE FUNCTION run_checkpoint(run_id uuid, attempt integer) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN attempt > 1 THEN (SELECT c.checkpoint FROM run_checkpoints c WHERE c.run_id = $1) END
$$;
COMMENT ON FUNCTION run_checkpoint IS 'Returns the last checkpoint of an occurrence for its next attempt; null for the first attempt.';

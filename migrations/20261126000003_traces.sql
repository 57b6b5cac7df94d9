-- Traces: the trace that an occurrence continues.
--
-- Nearly all occurrences have none here: the trace of an occurrence that no request created follows from its id. A null
-- takes no space in the row, so the busiest table grows by nothing.

ALTER TABLE runs ADD COLUMN traceparent text;
COMMENT ON COLUMN runs.traceparent IS
    'Position in the trace of the request that created it, as a W3C traceparent; null if its trace is its own, with its id as the trace id.';
-- A server that does not know the column writes none, so it can run beside this one.
ALTER TABLE runs ADD CONSTRAINT runs_traceparent_is_well_formed
    CHECK (traceparent ~ '^00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]$') NOT VALID;
ALTER TABLE runs VALIDATE CONSTRAINT runs_traceparent_is_well_formed;

ALTER TABLE history ADD COLUMN traceparent text;
COMMENT ON COLUMN history.traceparent IS 'As in runs.';

CREATE OR REPLACE VIEW occurrences AS
    SELECT id, created_at, job_id, job_name, job_version, worker_id, job_type,
           run_input(id, own_input, has_long_input, job_id, job_version) AS job_data,
           scheduled_for, trigger, triggered_by, trigger_reason, retry_of, status, version, priority, attempt, failures,
           requeues, max_retries, timeout_seconds, published_at, not_before,
           status = 'queued' AND (not_before IS NOT NULL OR NOT has_slot) AS is_held,
           instance_id, started_at, NULL::timestamptz AS ended_at, NULL::bigint AS duration_ms, last_heartbeat, progress,
           NULL::text AS result, exception, note, status_changes, cancel_requested_at, cancel_requested_by,
           'infinity'::timestamptz AS filed_at, traceparent
      FROM runs
    UNION ALL
    SELECT id, created_at, job_id, job_name, job_version, worker_id, job_type,
           run_input(id, own_input, has_long_input, job_id, job_version),
           scheduled_for, trigger, triggered_by, trigger_reason, retry_of, status, version, priority, attempt, failures,
           requeues, max_retries, timeout_seconds, published_at, NULL::timestamptz,
           false,
           instance_id, started_at, ended_at, duration_ms, filed_at, progress,
           result, exception, note, status_changes, cancel_requested_at, cancel_requested_by,
           filed_at, traceparent
      FROM history;
COMMENT ON COLUMN occurrences.traceparent IS 'As in runs.';

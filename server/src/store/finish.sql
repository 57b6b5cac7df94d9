-- finish_runs: Ends occurrences, the one statement for every end, whether a worker, a user or the server causes it. Called by
-- finish.rs.
--
-- $1 to $17 are arrays with one element per end, in the order of ids; their names are in `r` below. $18: now.
-- The parameters are read by subqueries; see create.sql.
WITH r AS (
    SELECT * FROM unnest((SELECT $1::uuid[]), (SELECT $2::int[]), (SELECT $3::text[]::run_status[]),
                         (SELECT $4::text[]), (SELECT $5::timestamptz[]), (SELECT $6::timestamptz[]),
                         (SELECT $7::bigint[]), (SELECT $8::text[]), (SELECT $9::text[]), (SELECT $10::boolean[]),
                         (SELECT $11::text[]), (SELECT $12::jsonb[]), (SELECT $13::jsonb[]), (SELECT $14::text[]),
                         (SELECT $15::text[]), (SELECT $16::text[]), (SELECT $17::timestamptz[]))
               AS r (id, attempt, status, instance_id, started_at, ended_at, duration_ms, result, exception, keeps_exception,
                     note, progress, steps, fingerprint, cause, cancelled_by, progress_at)
),
-- Rows are locked in the order of ids, which is the order of the ends, so that two statements with overlapping batches
-- cannot deadlock. LATERAL makes the planner look up each row by its id. The guard: an ended occurrence has no row here,
-- and an end of an earlier attempt does not end a later one.
ended AS (
    SELECT o.id, o.created_at, o.job_id, o.job_name, o.job_version, o.worker_id, o.job_type, o.own_input, o.has_long_input,
           o.scheduled_for, o.trigger, o.triggered_by, o.trigger_reason, o.retry_of, o.traceparent, o.parent_id,
           o.trigger_token, o.uniqueness_key, r.status, o.version + 1 AS version,
           o.priority, o.attempt, o.failures, o.requeues, o.max_retries, o.timeout_seconds,
           -- A worker that reports the end has received the message.
           CASE WHEN r.instance_id IS NOT NULL THEN coalesce(o.published_at, $18) ELSE o.published_at END AS published_at,
           coalesce(r.instance_id, o.instance_id) AS instance_id,
           -- An end whose start report is still on its way to another server implies the start by its duration.
           coalesce(least(r.started_at, o.started_at), r.ended_at - r.duration_ms * interval '1 millisecond') AS started_at,
           coalesce(r.ended_at, $18) AS ended_at,
           r.duration_ms,
           CASE WHEN r.progress_at >= coalesce(o.progress_at, r.progress_at) THEN r.progress ELSE o.progress END AS progress,
           r.result,
           -- The exception of an earlier attempt does not apply to an attempt that ended otherwise.
           CASE WHEN r.keeps_exception THEN coalesce(o.exception, r.exception) ELSE r.exception END AS exception,
           -- The note of a cancel request remains until the run has ended.
           CASE WHEN r.status = 'cancelled' AND o.cancel_requested_at IS NOT NULL THEN coalesce(r.note, o.note)
                ELSE r.note END AS note,
           -- A status change that is recorded already is not recorded again.
           o.status_changes || CASE WHEN o.status = 'running' AND r.started_at IS NOT NULL THEN r.steps - 0 ELSE r.steps END
               AS status_changes,
           coalesce(o.cancel_requested_at, CASE WHEN r.cancelled_by IS NOT NULL THEN $18 END) AS cancel_requested_at,
           coalesce(o.cancel_requested_by, r.cancelled_by) AS cancel_requested_by,
           o.status AS was, o.slot_group IS NOT NULL OR o.slot_key IS NOT NULL AS frees_slot,
           o.pause_after_seconds IS NOT NULL AS starts_pause,
           coalesce(o.status <> 'queued' AND o.instance_id <> r.instance_id, false) AS was_elsewhere,
           o.status <> 'running' AND r.started_at IS NOT NULL AS has_new_start, r.fingerprint, r.cause,
           CASE WHEN r.status IN ('failed', 'timed-out')
                THEN coalesce(r.cause, CASE r.status WHEN 'timed-out' THEN 'timed_out' ELSE 'failed' END)
                END AS failure_cause
      FROM r CROSS JOIN LATERAL (
           SELECT * FROM runs o WHERE o.id = r.id AND o.attempt = r.attempt FOR UPDATE) o
),
removed AS (
    DELETE FROM runs WHERE id = ANY (ARRAY (SELECT id FROM ended))
),
filed AS (
    INSERT INTO history (id, created_at, job_id, job_name, job_version, worker_id, job_type, own_input, has_long_input,
                         scheduled_for, trigger, triggered_by, trigger_reason, retry_of, status, version, priority, attempt,
                         failures, requeues, max_retries, timeout_seconds, published_at, instance_id, started_at, ended_at,
                         duration_ms, progress, result, exception, note, status_changes, cancel_requested_at,
                         cancel_requested_by, filed_at, traceparent, parent_id, trigger_token)
    SELECT id, created_at, job_id, job_name, job_version, worker_id, job_type, own_input, has_long_input,
           scheduled_for, trigger, triggered_by, trigger_reason, retry_of, status, version, priority, attempt,
           failures, requeues, max_retries, timeout_seconds, published_at, instance_id, started_at, ended_at,
           duration_ms, progress, result, exception, note, status_changes, cancel_requested_at,
           cancel_requested_by, $18, traceparent, parent_id, trigger_token
      FROM ended
),
-- A failure is kept until a user resolves it, longer than the occurrence itself.
failed AS (
    INSERT INTO failed_occurrences (occurrence_id, job_id, job_name, failed_at, cause, exception, fingerprint, job_data,
                                    job_version, worker_id, job_type, attempt, uniqueness_key)
    -- Dated by the server's clock: auto-disable does not depend on the workers' clocks.
    SELECT id, job_id, job_name, $18, failure_cause,
           exception, coalesce(fingerprint, cause || ':' || worker_id || '/' || job_type, ''),
           coalesce(run_input(id, own_input, has_long_input, job_id, job_version), 'null'), job_version, worker_id, job_type,
           attempt, uniqueness_key
      FROM ended WHERE status IN ('failed', 'timed-out')
    ON CONFLICT (occurrence_id) DO NOTHING
),
-- What alert rules are applied to; without a failure, nothing is inserted.
alerted AS (
    INSERT INTO alert_events (kind, at, job_id, job_name, occurrence_id, cause, detail)
    SELECT 'occurrence_failed', $18, job_id, job_name, id,
           coalesce(cause, CASE status WHEN 'timed-out' THEN 'timed_out' ELSE 'failed' END), left(coalesce(note, exception), 500)
      FROM ended WHERE status IN ('failed', 'timed-out')
),
-- An end counts in the minute of its own time, by which the list behind a count filters. The worker dates it, and its
-- report may arrive late.
counted AS (
    INSERT INTO stats_deltas (minute, status, count, duration_ms)
    SELECT minute, status, count(*), sum(duration)
      FROM (SELECT date_trunc('minute', ended_at) AS minute, status, coalesce(duration_ms, 0) AS duration FROM ended
            UNION ALL
            SELECT date_trunc('minute', $18::timestamptz), 'running', 0 FROM ended WHERE has_new_start) reached
     GROUP BY minute, status
)
SELECT id AS "id!", job_id AS "job_id!", job_name AS "job_name!", status::text AS "status!", version AS "version!",
       trigger AS "trigger!", attempt AS "attempt!", scheduled_for AS "scheduled_for!", started_at, ended_at,
       duration_ms, instance_id, progress, note, NULL::timestamptz AS waits_until, cancel_requested_at,
       frees_slot AS "frees_slot!", starts_pause AS "starts_pause!", was_elsewhere AS "was_elsewhere!",
       worker_id AS "worker_id!", job_type AS "job_type!", true AS "has_new_status!", has_new_start AS "has_new_start!",
       failure_cause, traceparent
  FROM ended

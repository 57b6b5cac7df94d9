-- advance_runs: Changes open occurrences that stay open: a start, progress, a lost run, a further attempt. Called by advance.rs.
--
-- $1 to $15 are arrays with one element per change, in the order of ids; their names are in `r` below. $16: now.
-- The parameters are read by subqueries; see create.sql.
WITH r AS (
    SELECT * FROM unnest((SELECT $1::uuid[]), (SELECT $2::int[]), (SELECT $3::text[]::run_status[]),
                         (SELECT $4::text[]), (SELECT $5::timestamptz[]), (SELECT $6::text[]), (SELECT $7::text[]),
                         (SELECT $8::jsonb[]), (SELECT $9::jsonb[]), (SELECT $10::timestamptz[]),
                         (SELECT $11::boolean[]), (SELECT $12::boolean[]), (SELECT $13::boolean[]),
                         (SELECT $14::boolean[]), (SELECT $15::timestamptz[]))
               AS r (id, attempt, status, instance_id, started_at, exception, note, progress, steps, not_before,
                     counts_as_failure, is_requeue, is_quarantined, is_decided, progress_at)
),
-- Rows are locked in the order of ids, which is the order of the changes; see finish.sql. The guard: only the transitions
-- listed here are allowed. Running may follow Running, for progress.
locked AS (
    SELECT o.id, o.created_at, o.job_id, o.job_name, o.job_version, o.worker_id, o.job_type, o.scheduled_for, o.trigger,
           o.priority, o.cancel_requested_at, o.traceparent,
           r.status,
           o.version + 1 AS version,
           -- Queued again: the next attempt.
           o.attempt + CASE WHEN r.status = 'queued' THEN 1 ELSE 0 END AS attempt,
           (o.failures + CASE WHEN r.counts_as_failure THEN 1 ELSE 0 END)::smallint AS failures,
           (o.requeues + CASE WHEN r.is_requeue THEN 1 ELSE 0 END)::smallint AS requeues,
           o.is_quarantined OR r.is_quarantined AS is_quarantined,
           r.not_before,
           -- A run whose next attempt starts at once has been due to be sent since its birth. One that runs needs no
           -- message.
           CASE WHEN r.status = 'queued' AND r.not_before IS NULL AND o.has_slot THEN o.created_at END AS publish_after,
           CASE WHEN r.status <> 'queued' THEN coalesce(o.published_at, $16) END AS published_at,
           CASE WHEN r.status <> 'queued' THEN coalesce(r.instance_id, o.instance_id) END AS instance_id,
           -- A progress report also says Running, with a later time; a retry clears the start of the previous attempt.
           CASE WHEN r.status <> 'queued' THEN least(r.started_at, o.started_at) END AS started_at,
           CASE WHEN r.status <> 'queued' THEN coalesce(o.begun_at, $16) END AS begun_at,
           coalesce(r.exception, o.exception) AS exception,
           coalesce(r.note, o.note) AS note,
           -- Reports of one attempt may arrive in another order than the worker sent them.
           CASE WHEN r.status = 'queued' THEN NULL
                WHEN r.progress_at >= coalesce(o.progress_at, r.progress_at) THEN r.progress
                ELSE o.progress END AS progress,
           CASE WHEN r.status <> 'queued' THEN greatest(r.progress_at, o.progress_at) END AS progress_at,
           -- Another server may have stored a report while this statement waited for the row.
           greatest(o.last_heartbeat, $16) AS last_heartbeat,
           -- A status change that is recorded already is not recorded again. A run that is handed back every minute for weeks
           -- keeps its first changes and its newest; the row would otherwise grow with each attempt.
           CASE WHEN jsonb_array_length(o.status_changes) >= 200 THEN o.status_changes - 50 - 50 ELSE o.status_changes END
               || CASE WHEN o.status = 'running' AND r.started_at IS NOT NULL THEN r.steps - 0 ELSE r.steps END
               AS status_changes,
           o.status AS was, coalesce(o.status <> 'queued' AND o.instance_id <> r.instance_id, false) AS was_elsewhere,
           o.status <> 'running' AND r.started_at IS NOT NULL AS has_new_start
      FROM r CROSS JOIN LATERAL (
           SELECT * FROM runs o
            WHERE o.id = r.id AND o.attempt = r.attempt
              AND CASE r.status
                  WHEN 'running' THEN o.status <> 'running' OR r.progress_at >= coalesce(o.progress_at, r.progress_at)
                       -- The start report, arriving after a later report that another server applied.
                       OR (r.started_at < o.started_at AND r.instance_id = o.instance_id)
                  -- Lost before its start was reported: it may have started.
                  WHEN 'unknown' THEN o.status <> 'unknown'
                  WHEN 'queued' THEN r.is_decided
                  ELSE false END
              FOR UPDATE) o
),
-- Every row exists and is locked, so this only updates. An upsert looks up each row by its key; a join with an array might
-- read the whole table, because the plan may date from a time when it was empty.
changed AS (
    INSERT INTO runs AS o (id, created_at, job_id, job_name, job_version, worker_id, job_type, scheduled_for, trigger,
                           priority, status, version, attempt, failures, requeues, is_quarantined, not_before,
                           publish_after, published_at, instance_id, started_at, begun_at, exception, note, progress, progress_at,
                           last_heartbeat, status_changes)
    SELECT id, created_at, job_id, job_name, job_version, worker_id, job_type, scheduled_for, trigger,
           priority, status, version, attempt, failures, requeues, is_quarantined, not_before,
           publish_after, published_at, instance_id, started_at, begun_at, exception, note, progress, progress_at,
           last_heartbeat, status_changes
      FROM locked
    ON CONFLICT (id) DO UPDATE
       SET status = excluded.status, version = excluded.version, attempt = excluded.attempt, failures = excluded.failures,
           requeues = excluded.requeues, is_quarantined = excluded.is_quarantined, not_before = excluded.not_before,
           publish_after = excluded.publish_after, published_at = excluded.published_at,
           instance_id = excluded.instance_id, started_at = excluded.started_at, begun_at = excluded.begun_at,
           exception = excluded.exception,
           note = excluded.note, progress = excluded.progress, progress_at = excluded.progress_at,
           last_heartbeat = excluded.last_heartbeat,
           status_changes = excluded.status_changes
),
counted AS (
    INSERT INTO stats_deltas (minute, status, count)
    SELECT date_trunc('minute', $16::timestamptz), status, count(*)
      FROM (SELECT status FROM locked WHERE status <> was
            UNION ALL
            SELECT 'running' FROM locked WHERE status <> 'running' AND has_new_start) reached
     GROUP BY status
)
SELECT id AS "id!", job_id AS "job_id!", job_name AS "job_name!", status::text AS "status!", version AS "version!",
       trigger AS "trigger!", attempt AS "attempt!", scheduled_for AS "scheduled_for!", started_at,
       NULL::timestamptz AS ended_at, NULL::bigint AS duration_ms, instance_id, progress, note, not_before AS waits_until,
       cancel_requested_at, traceparent, was_elsewhere AS "was_elsewhere!", worker_id AS "worker_id!", job_type AS "job_type!",
       status <> was AS "has_new_status!", has_new_start AS "has_new_start!", false AS "frees_slot!",
       false AS "starts_pause!", NULL::text AS failure_cause
  FROM locked

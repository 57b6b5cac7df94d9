-- create_runs: Creates occurrences, whether the schedule, a user or a retry asks for them; enqueue.sql creates the others. One
-- round trip, all or nothing. Called by create.rs.
--
-- $1 to $15, $19, $20, $22 and $23 are arrays with one element per occurrence; their names are in `wanted` below. A scheduled
-- occurrence has the due time and the job's version as they were read; a requested one has neither. $16: now. $17: the
-- leader's epoch, or null for a server without a lease. $18: the most open occurrences of a job. $21: the instant before
-- which idempotency keys are forgotten.
-- The parameters are read by subqueries, so that PostgreSQL cannot see their lengths. It would otherwise plan a batch of
-- one anew each time, which takes longer than the statement itself.
WITH wanted AS (
    SELECT * FROM unnest((SELECT $1::uuid[]), (SELECT $2::timestamptz[]), (SELECT $3::uuid[]), (SELECT $4::text[]),
                         (SELECT $5::timestamptz[]), (SELECT $6::int[]), (SELECT $7::timestamptz[]),
                         (SELECT $8::boolean[]), (SELECT $9::text[]), (SELECT $10::text[]), (SELECT $11::text[]),
                         (SELECT $12::jsonb[]), (SELECT $13::uuid[]), (SELECT $14::boolean[]),
                         (SELECT $15::boolean[]), (SELECT $19::text[]), (SELECT $20::text[]), (SELECT $22::boolean[]),
                         (SELECT $23::text[]))
               AS w (id, created_at, job_id, trigger, due, job_version, next_fire_at, is_skipped, remark, triggered_by,
                     trigger_reason, own_input, retry_of, is_checked, takes_slot, key, address, has_lock, traceparent)
),
-- A leader proves that its epoch is still the newest. The share lock makes a successor wait for this transaction, so
-- that the last batch of an old leader and the first of a new one cannot run at once.
fence AS (
    SELECT epoch FROM leases WHERE role = 'dispatcher' AND epoch = $17::bigint FOR SHARE
),
-- OFFSET 0 makes PostgreSQL look up one job; it might otherwise read all open occurrences once, to answer for all jobs.
-- The compare. SKIP LOCKED: a job that another server is dispatching right now belongs to that server; waiting for it
-- could only end in a deadlock or in finding it dispatched. LATERAL makes the planner look up each job by its id.
fired AS (
    SELECT w.*, d.priority AS due_priority, d.due_version FROM wanted w CROSS JOIN LATERAL (
        SELECT d.priority, d.version AS due_version
          FROM job_due d JOIN jobs j ON j.id = d.job_id AND j.version = d.version
         WHERE d.job_id = w.job_id AND j.id = w.job_id AND d.version = w.job_version
           -- Not `=`, which the index of due times could serve: a thousand jobs may be due at one instant.
           AND d.next_fire_at IS NOT DISTINCT FROM w.due
           AND NOT EXISTS (SELECT 1 FROM cluster_pause)
           -- Ahead of its due time no occurrence is skipped because an earlier one is open: that one may have ended by
           -- then.
           AND (w.due <= $16 OR w.is_skipped OR j.overlap_policy <> 0
                OR NOT EXISTS (SELECT 1 FROM runs r WHERE r.job_id = j.id OFFSET 0))
           AND ($17::bigint IS NULL OR EXISTS (SELECT 1 FROM fence))
           FOR UPDATE OF d SKIP LOCKED) d
     WHERE w.due IS NOT NULL
),
-- The swap. Every row exists, so this only updates. An upsert looks up each row by its key; a join with an array might
-- read the whole table, because the plan may date from a time when it was empty.
moved AS (
    INSERT INTO job_due AS d (job_id, priority, next_fire_at, last_fire_at, version)
    SELECT job_id, due_priority, next_fire_at, due, due_version FROM fired
    ON CONFLICT (job_id) DO UPDATE
       -- After a clock that was ahead, a due time may come before the last one.
       SET next_fire_at = excluded.next_fire_at, last_fire_at = greatest(d.last_fire_at, excluded.last_fire_at)
),
asked AS (
    SELECT w.*, NULL::smallint, NULL::int FROM wanted w
     WHERE w.due IS NULL
       AND EXISTS (
           SELECT 1 FROM jobs j
            WHERE j.id = w.job_id
              AND (NOT w.is_checked
                   OR (j.is_active AND NOT EXISTS (SELECT 1 FROM cluster_pause)
                       AND (j.overlap_policy <> 0
                            OR (w.has_lock AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.job_id = j.id OFFSET 0)))))
              -- Occurrences that are delayed take no part, however many there are: the second look, which few jobs need,
              -- reads the newest ones.
              AND NOT (EXISTS (SELECT 1 FROM runs r WHERE r.job_id = j.id OFFSET $18::bigint - 1)
                       AND EXISTS (SELECT 1 FROM (SELECT r.not_before FROM runs r WHERE r.job_id = j.id
                                                   ORDER BY r.created_at DESC LIMIT 2 * $18::bigint) n
                                    WHERE n.not_before IS NULL OFFSET $18::bigint - 1)))
),
-- Of two requests with the same key, the later one waits here for the earlier one and then creates nothing.
keyed AS (
    INSERT INTO trigger_keys AS k (job_id, key, occurrence_id, created_at)
    SELECT job_id, key, id, $16 FROM asked WHERE key IS NOT NULL
    ON CONFLICT (job_id, key) DO UPDATE SET occurrence_id = excluded.occurrence_id, created_at = excluded.created_at
     WHERE k.created_at < $21
    RETURNING occurrence_id
),
-- A request that arrives again finds its id here, although its occurrence may have ended meanwhile.
received AS (
    INSERT INTO receipts (run_id, created_at)
    SELECT id, created_at FROM asked WHERE key IS NULL OR id IN (SELECT occurrence_id FROM keyed) ORDER BY id
    ON CONFLICT DO NOTHING RETURNING run_id
),
chosen AS (
    SELECT * FROM fired UNION ALL SELECT * FROM asked WHERE id IN (SELECT run_id FROM received)
),
-- Overlap policy 0 skips an occurrence while another one of the job is open. Policies 1 and 3 run one at a time, and
-- limits bound the number: such an occurrence waits for a slot, and the slot granter, which considers all of a group at
-- once, grants it. A run that a user requested is never skipped, but it waits if the job's runs must not overlap.
judged AS (
    SELECT c.id, c.created_at, c.job_id, c.trigger, coalesce(c.due, $16) AS scheduled_for,
           coalesce(c.due, $16) + j.start_within_seconds * interval '1 second' AS start_before, c.remark, c.triggered_by,
           c.trigger_reason, c.own_input, c.retry_of, c.due IS NULL AS is_asked, c.takes_slot, c.address, c.traceparent,
           j.display_name, j.version, j.worker_id, j.job_type, j.job_data, j.priority, j.max_retries, j.timeout_seconds,
           j.on_lost, j.heartbeat_timeout_seconds, j.overlap_policy, j.max_concurrent, j.concurrency_key,
           j.concurrency_key_limit, j.needs_slot,
           CASE WHEN j.schedule ->> 'from' = 'end' THEN (j.schedule ->> 'seconds')::bigint END AS pause_after,
           coalesce(octet_length(c.own_input::text) > 1024, false) AS has_long_input,
           NOT j.needs_slot OR c.takes_slot
               OR (c.due IS NOT NULL AND j.overlap_policy = 0 AND j.max_concurrent IS NULL AND j.concurrency_key IS NULL)
               AS has_slot,
           CASE WHEN c.due IS NULL THEN NULL
                WHEN c.is_skipped THEN coalesce(c.remark, 'Skipped.')
                WHEN j.overlap_policy = 0 AND EXISTS (SELECT 1 FROM runs r WHERE r.job_id = j.id OFFSET 0)
                    THEN 'Skipped: the previous occurrence is still open.'
                WHEN EXISTS (SELECT 1 FROM runs r WHERE r.job_id = j.id OFFSET $18::bigint - 1)
                     AND EXISTS (SELECT 1 FROM (SELECT r.not_before FROM runs r WHERE r.job_id = j.id
                                                 ORDER BY r.created_at DESC LIMIT 2 * $18::bigint) n
                                  WHERE n.not_before IS NULL OFFSET $18::bigint - 1)
                    THEN 'Skipped: ' || $18::bigint || ' occurrences of the job are open already.' END AS skip_note
      FROM chosen c CROSS JOIN LATERAL (SELECT * FROM jobs j WHERE j.id = c.job_id OFFSET 0) j
),
made AS (
    INSERT INTO runs (id, created_at, job_id, job_name, job_version, worker_id, job_type, own_input, has_long_input,
                      scheduled_for, trigger, triggered_by, trigger_reason, retry_of, status, priority, max_retries,
                      timeout_seconds, on_lost, heartbeat_timeout_seconds, pause_after_seconds, publish_after, slot_group,
                      slot_limit, slot_key, slot_key_limit, has_slot, replaces, status_changes, traceparent,
                      start_before)
    SELECT id, created_at, job_id, display_name, version, worker_id, job_type,
           CASE WHEN NOT has_long_input THEN own_input END, has_long_input,
           scheduled_for, trigger, triggered_by, coalesce(trigger_reason, remark), retry_of, 'queued', priority, max_retries,
           timeout_seconds, on_lost, heartbeat_timeout_seconds, pause_after, CASE WHEN has_slot THEN $16::timestamptz END,
           CASE WHEN needs_slot THEN job_id END,
           CASE WHEN overlap_policy <> 2 THEN 1 ELSE max_concurrent END,
           concurrency_key, concurrency_key_limit, has_slot, overlap_policy = 3,
           jsonb_build_array(jsonb_strip_nulls(
               jsonb_build_object('status', 0, 'at', $16::timestamptz, 'attempt', 1, 'by', triggered_by))),
           traceparent, start_before
      FROM judged WHERE skip_note IS NULL
),
kept AS (
    INSERT INTO run_inputs (run_id, created_at, input) SELECT id, created_at, own_input FROM judged WHERE has_long_input
),
filed AS (
    INSERT INTO history (id, created_at, job_id, job_name, job_version, worker_id, job_type, scheduled_for, trigger, status,
                         version, priority, attempt, max_retries, timeout_seconds, ended_at, note, status_changes, filed_at)
    SELECT id, created_at, job_id, display_name, version, worker_id, job_type, scheduled_for, trigger, 'skipped',
           1, priority, 1, max_retries, timeout_seconds, $16, skip_note,
           jsonb_build_array(jsonb_build_object('status', 7, 'at', $16::timestamptz, 'attempt', 1)), $16
      FROM judged WHERE skip_note IS NOT NULL
),
-- The retry of a failure has an audit row of its own.
noted AS (
    INSERT INTO audit_log (at, who, action, object, after, address)
    SELECT $16, triggered_by, 'job.run', 'job:' || job_id::text,
           jsonb_build_object('occurrence', id, 'reason', trigger_reason, 'forced', takes_slot), address
      FROM judged WHERE is_asked AND retry_of IS NULL
),
-- A due time that is later than the grace of misfires, which is MISFIRE_GRACE in the crate milvaion-schedule.
alerted AS (
    INSERT INTO alert_events (kind, at, job_id, job_name, occurrence_id, detail)
    SELECT 'misfire', $16, job_id, display_name, id, coalesce(skip_note, remark)
      FROM judged WHERE NOT is_asked AND scheduled_for < $16::timestamptz - interval '60 seconds'
),
counted AS (
    INSERT INTO stats_deltas (minute, status, count)
    SELECT date_trunc('minute', $16::timestamptz), CASE WHEN skip_note IS NULL THEN 'queued'::run_status ELSE 'skipped' END,
           count(*)
      FROM judged GROUP BY 2
)
SELECT id AS "id!", job_id AS "job_id!", display_name AS "job_name!", worker_id AS "worker_id!", job_type AS "job_type!",
       CASE WHEN is_asked THEN coalesce(own_input, job_data) END AS job_data, scheduled_for AS "scheduled_for!",
       1 AS "attempt!", 0::smallint AS "failures!", max_retries AS "max_retries!", priority AS "priority!",
       timeout_seconds AS "timeout_seconds?", traceparent, NULL::uuid AS parent_id, NULL::jsonb AS checkpoint,
       NOT has_slot AS "is_held!", trigger AS "trigger!", retry_of, skip_note
  FROM judged

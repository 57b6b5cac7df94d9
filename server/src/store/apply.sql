-- Applies worker reports: the one guarded transition, for a batch of changes. Called by reports.rs.
--
-- $1 to $13 and $17 to $22 are arrays with one element per change, in the order of ids; their names are in `r` below.
-- $14, $15: the oldest and the newest created_at of the batch. $16: now.
WITH r AS (
    SELECT * FROM unnest($1::uuid[], $2::timestamptz[], $3::int[], $4::smallint[], $5::text[], $6::timestamptz[],
                         $7::timestamptz[], $8::bigint[], $9::text[], $10::text[], $11::text[], $12::jsonb[],
                         $13::jsonb[], $17::text[], $18::text[], $19::timestamptz[], $20::boolean[], $21::boolean[],
                         $22::boolean[])
               AS r (id, created_at, attempt, status, instance_id, started_at, ended_at, duration_ms, result,
                     exception, note, progress, steps, fingerprint, cause, waits_until, counts_as_failure, is_rescue, takes_turn)
),
-- Rows are locked in the order of ids, which is the order of the changes, so that two servers with overlapping batches
-- cannot deadlock. LATERAL makes the planner look up each row by its id, regardless of its estimate of the batch size.
-- The guard: only the transitions listed here are allowed. Running may follow Running, for progress.
-- The locked rows carry their change along. Joining the two again would compare each row with every change, because the
-- planner does not know how few there are.
locked AS (
    SELECT r.*, l.was, l.was_with FROM r CROSS JOIN LATERAL (
        SELECT o.status AS was, o.instance_id AS was_with
          FROM occurrences o
         WHERE o.id = r.id AND o.created_at = r.created_at AND o.attempt = r.attempt
           AND o.created_at BETWEEN $14 AND $15
           AND CASE WHEN r.status IN (2, 3, 4, 5) THEN o.status IN (0, 1, 6)
                    WHEN r.status = 1 THEN o.status IN (0, 6) OR (o.status = 1 AND (r.progress IS NOT NULL
                         -- The start report, arriving after a later report that another server applied.
                         OR (r.started_at < o.started_at AND r.instance_id = o.instance_id)))
                    -- Lost before its start was reported: it may have started.
                    WHEN r.status = 6 THEN o.status IN (0, 1)
                    WHEN r.status = 0 THEN o.status IN (0, 1, 6) AND r.waits_until IS NOT NULL
                    ELSE false END
           FOR UPDATE) l
),
changed AS (
    UPDATE occurrences o
       SET status = r.status,
           version = o.version + 1,
           -- Queued again: the next attempt, held until its delay ends.
           attempt = CASE WHEN r.status = 0 THEN o.attempt + 1 ELSE o.attempt END,
           failures = CASE WHEN r.counts_as_failure THEN o.failures + 1 ELSE o.failures END,
           rescues = CASE WHEN r.is_rescue THEN o.rescues + 1 ELSE o.rescues END,
           is_held = r.status = 0 OR o.is_held,
           waits_until = r.waits_until,
           instance_id = CASE WHEN r.status <> 0 THEN r.instance_id END,
           -- A progress report also says Running, with a later time; a retry clears the start of the previous attempt.
           -- An end whose start report is still on its way to another server implies the start by its duration.
           started_at = CASE WHEN r.status <> 0 THEN coalesce(least(r.started_at, o.started_at),
                                                              r.ended_at - r.duration_ms * interval '1 millisecond') END,
           ended_at = r.ended_at,
           duration_ms = CASE WHEN r.status <> 0 THEN coalesce(r.duration_ms, o.duration_ms) END,
           result = coalesce(r.result, o.result),
           -- The exception of an earlier attempt does not apply to an attempt that ended otherwise, or that failed
           -- without a reason of its own. The note of a cancel request remains until the run has ended.
           exception = CASE WHEN r.status IN (2, 3, 4, 5) THEN r.exception ELSE coalesce(r.exception, o.exception) END,
           note = CASE WHEN r.status IN (2, 3, 5) OR (r.status = 4 AND o.cancel_requested_at IS NULL) THEN r.note
                       ELSE coalesce(r.note, o.note) END,
           progress = CASE WHEN r.status <> 0 THEN coalesce(r.progress, o.progress) END,
           last_heartbeat = $16,
           published_at = CASE WHEN r.status <> 0 THEN coalesce(o.published_at, $16) END,
           -- A status change that is recorded already is not recorded again.
           status_changes = o.status_changes ||
               CASE WHEN r.was = 1 AND r.started_at IS NOT NULL THEN r.steps - 0 ELSE r.steps END
      FROM locked r
     WHERE o.id = r.id AND o.created_at = r.created_at AND o.attempt = r.attempt
       AND o.created_at BETWEEN $14 AND $15
       -- True for every change. The condition makes the planner expect few rows: for many it would scan the whole
       -- partition, which was small when the plan was made, and the cached plan outlives that.
       AND r.created_at BETWEEN $14 AND $15
    RETURNING o.id, o.job_id, o.job_name, o.status, o.version, o.trigger, o.attempt, o.scheduled_for,
              o.started_at, o.ended_at, o.duration_ms, o.instance_id, o.progress, o.note, o.waits_until, r.was,
              o.cancel_requested_at,
              coalesce(r.was <> 0 AND r.was_with <> r.instance_id, false) AS was_elsewhere,
              r.started_at AS told_start, o.job_version, o.worker_id, o.job_type, o.job_data, o.exception,
              o.pause_after_seconds, r.fingerprint, r.cause, o.created_at, r.takes_turn
),
waiting AS (
    INSERT INTO waits AS w (occurrence_id, created_at, until, lane)
    SELECT id, created_at, waits_until, CASE WHEN takes_turn THEN worker_id END FROM changed WHERE status = 0
    ON CONFLICT (occurrence_id) DO UPDATE SET until = excluded.until, lane = excluded.lane
),
ended AS (
    SELECT * FROM changed WHERE status IN (2, 3, 4, 5)
),
-- Occurrences that wait for the slot of an ended one may then run.
freed AS (
    DELETE FROM slots s USING ended e WHERE s.occurrence_id = e.id RETURNING s.occurrence_id
),
-- A failure is kept until a user resolves it, longer than the occurrence itself.
failed AS (
    INSERT INTO failed_occurrences (occurrence_id, job_id, job_name, failed_at, cause, exception, fingerprint, job_data,
                                    job_version, worker_id, job_type, attempt)
    -- Dated by the server's clock: auto-disable does not depend on the workers' clocks.
    SELECT id, job_id, job_name, $16, coalesce(cause, CASE status WHEN 5 THEN 'timed_out' ELSE 'failed' END), exception,
           coalesce(fingerprint, cause || ':' || worker_id || '/' || job_type, ''), job_data, job_version, worker_id,
           job_type, attempt
      FROM ended WHERE status IN (3, 5)
    ON CONFLICT (occurrence_id) DO NOTHING
    RETURNING occurrence_id
),
-- An end counts in the minute of its own time, by which the list behind a count filters. The worker dates it, and its
-- report may arrive late. Only an ended occurrence has an end.
reached AS (
    SELECT date_trunc('minute', coalesce(ended_at, $16)) AS minute, status, coalesce(duration_ms, 0) AS duration
      FROM changed WHERE status <> was
    UNION ALL
    SELECT date_trunc('minute', $16::timestamptz), 1, 0
      FROM changed WHERE was <> 1 AND status <> 1 AND told_start IS NOT NULL
),
counted AS (
    INSERT INTO stats_deltas (minute, status, count, duration_ms)
    SELECT minute, status, count(*), sum(duration) FROM reached GROUP BY minute, status
)
SELECT id AS "id!", job_id AS "job_id!", job_name AS "job_name!", status AS "status!", version AS "version!",
       trigger AS "trigger!", attempt AS "attempt!", scheduled_for AS "scheduled_for!", started_at, ended_at,
       duration_ms, instance_id, progress, note, waits_until, cancel_requested_at,
       id IN (SELECT occurrence_id FROM freed) AS "freed!",
       id IN (SELECT occurrence_id FROM failed) AS "failed!",
       pause_after_seconds IS NOT NULL AND status IN (2, 3, 4, 5) AS "pauses!", was_elsewhere AS "was_elsewhere!"
  FROM changed

-- Dispatches due jobs: one round trip, all or nothing. Called by plan.rs.
--
-- $1 to $8 are arrays with one element per job; their names are in `wanted` below. $9: now. $10: the leader's epoch, or
-- null for a server without a lease. $11, $12: the earliest and the latest due time.
WITH wanted AS (
    SELECT * FROM unnest($1::uuid[], $2::int[], $3::timestamptz[], $4::timestamptz[], $5::uuid[], $6::timestamptz[],
                         $7::boolean[], $8::text[])
               AS w (job_id, version, due, next_fire_at, occurrence_id, created_at, is_skipped, remark)
),
-- A leader proves that its epoch is still the newest. The share lock makes a successor wait for this transaction, so
-- that the last batch of an old leader and the first of a new one cannot run at once.
fence AS (
    SELECT epoch FROM leases WHERE role = 'dispatcher' AND epoch = $10::bigint FOR SHARE
),
-- The compare. SKIP LOCKED: a job that another server is dispatching right now belongs to that server; waiting for it
-- could only end in a deadlock or in finding it dispatched. The locked rows carry their due times along. Joining the
-- two again would compare each row with every due time, because the planner does not know how few there are.
locked AS (
    SELECT w.* FROM wanted w CROSS JOIN LATERAL (
        SELECT j.id FROM jobs j
         WHERE j.id = w.job_id AND j.next_fire_at = w.due AND j.version = w.version
           AND NOT EXISTS (SELECT 1 FROM cluster_pause)
           -- Ahead of its due time no occurrence is skipped because an earlier one is open: that one may have ended by
           -- then.
           AND (w.due <= $9 OR j.overlap_policy <> 0 OR NOT EXISTS (SELECT 1 FROM slots s WHERE s.job_id = j.id))
           AND ($10::bigint IS NULL OR EXISTS (SELECT 1 FROM fence))
           FOR UPDATE SKIP LOCKED) l
),
-- The swap.
moved AS (
    UPDATE jobs j SET next_fire_at = w.next_fire_at, last_fire_at = w.due
      FROM locked w
     WHERE j.id = w.job_id AND j.next_fire_at = w.due
       -- True for every row. The condition makes the planner expect few rows and look up each by its id; see apply.sql.
       AND w.due BETWEEN $11 AND $12
    RETURNING w.occurrence_id, w.created_at, w.due, w.is_skipped, w.remark,
              j.id, j.display_name, j.version, j.worker_id, j.job_type, j.job_data, j.priority, j.max_retries,
              j.timeout_seconds, j.overlap_policy, j.max_concurrent, j.concurrency_key, j.concurrency_key_limit,
              j.on_lost, j.heartbeat_timeout_seconds,
              CASE WHEN j.schedule ->> 'from' = 'end' THEN (j.schedule ->> 'seconds')::bigint END AS pause_after
),
-- Overlap policy 0 skips an occurrence while another one of the job is open. Policies 1 and 3 run one at a time, and
-- limits bound the number: such an occurrence is inserted as held, and the slot granter, which considers all slots at
-- once, releases it.
judged AS (
    SELECT m.*,
           CASE WHEN m.is_skipped THEN 7
                WHEN m.overlap_policy = 0 AND EXISTS (SELECT 1 FROM slots s WHERE s.job_id = m.id) THEN 7
                ELSE 0 END::smallint AS status,
           m.overlap_policy <> 2 OR m.max_concurrent IS NOT NULL OR m.concurrency_key IS NOT NULL AS needs_slot,
           m.overlap_policy IN (1, 3) OR m.max_concurrent IS NOT NULL OR m.concurrency_key IS NOT NULL AS takes_turns
      FROM moved m
),
made AS (
    INSERT INTO occurrences (id, created_at, job_id, job_name, job_version, worker_id, job_type, job_data, scheduled_for,
                             trigger, trigger_reason, status, priority, max_retries, timeout_seconds, is_held,
                             pause_after_seconds, on_lost, heartbeat_timeout_seconds, ended_at, note, status_changes)
    SELECT occurrence_id, created_at, id, display_name, version, worker_id, job_type, job_data, due,
           'schedule', CASE WHEN status = 0 THEN remark END, status, priority, max_retries, timeout_seconds,
           takes_turns AND status = 0,
           CASE WHEN status = 0 THEN pause_after END, on_lost, heartbeat_timeout_seconds,
           CASE WHEN status = 7 THEN $9::timestamptz END,
           CASE WHEN status = 7
                THEN coalesce(CASE WHEN is_skipped THEN remark END, 'Skipped: the previous occurrence is still open.') END,
           jsonb_build_array(jsonb_build_object('status', status, 'at', $9::timestamptz, 'attempt', 1))
      FROM judged
    RETURNING id, job_id, status, is_held, note
),
slotted AS (
    INSERT INTO slots (occurrence_id, created_at, job_id, priority, is_taken, job_limit, key, key_limit, replaces)
    SELECT occurrence_id, created_at, id, priority, NOT takes_turns,
           CASE WHEN overlap_policy IN (1, 3) THEN 1 ELSE max_concurrent END,
           concurrency_key, concurrency_key_limit, overlap_policy = 3
      FROM judged WHERE needs_slot AND status = 0
),
counted AS (
    INSERT INTO stats_deltas (minute, status, count)
    SELECT date_trunc('minute', $9::timestamptz), status, count(*) FROM made GROUP BY status
)
SELECT id AS "id!", status AS "status!", is_held AS "is_held!", note FROM made

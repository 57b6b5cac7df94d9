-- enqueue_runs: Creates the occurrences of one ingest message, in one round trip, all or nothing. Called by create.rs.
--
-- $1 to $10 are arrays with one element per occurrence, in the order of the message; their names are in `wanted` below.
-- $11: now. $12: the author.
-- The cost does not depend on the number of open occurrences of a job: nothing here counts them. The parameters are read by
-- subqueries, and OFFSET 0 and LATERAL make the planner look up each row by its key; see create.sql.
WITH wanted AS (
    SELECT * FROM unnest((SELECT $1::uuid[]), (SELECT $2::timestamptz[]), (SELECT $3::uuid[]), (SELECT $4::jsonb[]),
                         (SELECT $5::timestamptz[]), (SELECT $6::smallint[]), (SELECT $7::text[]),
                         (SELECT $8::timestamptz[]), (SELECT $9::uuid[]), (SELECT $10::text[]))
             WITH ORDINALITY
               AS w (id, created_at, job_id, own_input, not_before, priority, key, until, parent_id, traceparent, place)
),
-- An earlier message, or an earlier delivery of this one, has created these.
known AS (
    SELECT w.id FROM wanted w CROSS JOIN LATERAL (
        SELECT r.run_id FROM receipts r WHERE r.run_id = w.id AND r.created_at = w.created_at OFFSET 0) r
),
-- The transaction has locked the rows of all keys, so no other request can take one meanwhile.
holders AS (
    SELECT w.id, u.run_id FROM wanted w CROSS JOIN LATERAL (
        SELECT u.run_id, u.until FROM run_uniqueness u WHERE u.job_id = w.job_id AND u.key = w.key OFFSET 0) u
     WHERE u.run_id <> w.id
       AND (u.until > $11::timestamptz OR EXISTS (SELECT 1 FROM runs r WHERE r.id = u.run_id OFFSET 0))
),
fresh AS (
    SELECT w.* FROM wanted w
     WHERE w.id NOT IN (SELECT id FROM known) AND w.id NOT IN (SELECT id FROM holders)
       AND EXISTS (SELECT 1 FROM jobs j WHERE j.id = w.job_id OFFSET 0)
),
-- Of several with one key, the first is created.
firsts AS (
    SELECT DISTINCT ON (job_id, key) id, job_id, key FROM fresh WHERE key IS NOT NULL ORDER BY job_id, key, place
),
-- A concurrent message with the same id waits here, and then creates nothing.
received AS (
    INSERT INTO receipts (run_id, created_at)
    SELECT id, created_at FROM fresh WHERE key IS NULL OR id IN (SELECT id FROM firsts) ORDER BY id
    ON CONFLICT DO NOTHING RETURNING run_id
),
judged AS (
    SELECT c.id, c.created_at, c.job_id, c.own_input, c.key, c.until, c.parent_id, c.traceparent, c.place,
           -- While the cluster is paused nothing starts, and what is delayed is not released.
           coalesce(c.not_before, CASE WHEN EXISTS (SELECT 1 FROM cluster_pause) THEN $11::timestamptz END) AS not_before,
           coalesce(c.not_before, $11::timestamptz) AS scheduled_for,
           coalesce(c.not_before, $11::timestamptz) + j.start_within_seconds * interval '1 second' AS start_before,
           coalesce(c.priority, j.priority) AS priority,
           j.display_name, j.version, j.worker_id, j.job_type, j.job_data, j.max_retries, j.timeout_seconds, j.on_lost,
           j.heartbeat_timeout_seconds, j.overlap_policy, j.max_concurrent, j.concurrency_key, j.concurrency_key_limit,
           j.needs_slot,
           CASE WHEN j.schedule ->> 'from' = 'end' THEN (j.schedule ->> 'seconds')::bigint END AS pause_after,
           coalesce(octet_length(c.own_input::text) > 1024, false) AS has_long_input
      FROM fresh c CROSS JOIN LATERAL (SELECT * FROM jobs j WHERE j.id = c.job_id OFFSET 0) j
     WHERE c.id IN (SELECT run_id FROM received)
),
-- What is delayed is in no group until its delay ends: the slot granter reads the queue of a group in its order, and must
-- not read what cannot start.
made AS (
    INSERT INTO runs (id, created_at, job_id, job_name, job_version, worker_id, job_type, own_input, has_long_input,
                      scheduled_for, trigger, triggered_by, status, priority, max_retries, timeout_seconds, on_lost,
                      heartbeat_timeout_seconds, pause_after_seconds, publish_after, not_before, slot_group, slot_limit,
                      slot_key, slot_key_limit, has_slot, replaces, status_changes, traceparent, parent_id, uniqueness_key,
                      start_before)
    SELECT id, created_at, job_id, display_name, version, worker_id, job_type,
           CASE WHEN NOT has_long_input THEN own_input END, has_long_input,
           scheduled_for, 'enqueue', $12, 'queued', priority, max_retries, timeout_seconds, on_lost,
           heartbeat_timeout_seconds, pause_after,
           CASE WHEN NOT needs_slot AND not_before IS NULL THEN $11::timestamptz END, not_before,
           CASE WHEN needs_slot AND not_before IS NULL THEN job_id END,
           CASE WHEN overlap_policy <> 2 THEN 1 ELSE max_concurrent END,
           concurrency_key, concurrency_key_limit, NOT needs_slot, overlap_policy = 3,
           jsonb_build_array(jsonb_strip_nulls(
               jsonb_build_object('status', 0, 'at', $11::timestamptz, 'attempt', 1, 'by', $12::text))),
           traceparent, parent_id, key, start_before
      FROM judged
),
kept AS (
    INSERT INTO run_inputs (run_id, created_at, input) SELECT id, created_at, own_input FROM judged WHERE has_long_input
),
-- Every row exists and is locked, so this only updates.
taken AS (
    INSERT INTO run_uniqueness (job_id, key, run_id, until, claimed_at)
    SELECT job_id, key, id, until, $11 FROM judged WHERE key IS NOT NULL ORDER BY job_id, key
    ON CONFLICT (job_id, key) DO UPDATE SET run_id = excluded.run_id, until = excluded.until
),
counted AS (
    INSERT INTO stats_deltas (minute, status, count)
    SELECT date_trunc('minute', $11::timestamptz), 'queued'::run_status, count(*) FROM judged HAVING count(*) > 0
)
SELECT w.id AS "id!", w.job_id AS "job_id!", j.id IS NOT NULL AS "is_created!", k.id IS NOT NULL AS "is_known!",
       coalesce(h.run_id, f.id) AS holder,
       EXISTS (SELECT 1 FROM jobs g WHERE g.id = w.job_id OFFSET 0) AS "job_exists!",
       -- Of one that was not created, the rest says nothing.
       coalesce(j.display_name, '') AS "job_name!", coalesce(j.worker_id, '') AS "worker_id!",
       coalesce(j.job_type, '') AS "job_type!", coalesce(j.own_input, j.job_data) AS job_data,
       coalesce(j.scheduled_for, $11::timestamptz) AS "scheduled_for!", 1 AS "attempt!", 0::smallint AS "failures!",
       coalesce(j.max_retries, 0::smallint) AS "max_retries!", coalesce(j.priority, 3::smallint) AS "priority!",
       j.timeout_seconds AS "timeout_seconds?", w.traceparent, w.parent_id, NULL::jsonb AS checkpoint,
       coalesce(j.needs_slot OR j.not_before IS NOT NULL, false) AS "is_held!", j.not_before AS "not_before?"
  FROM wanted w
  LEFT JOIN judged j ON j.id = w.id
  LEFT JOIN known k ON k.id = w.id
  LEFT JOIN holders h ON h.id = w.id
  LEFT JOIN firsts f ON f.job_id = w.job_id AND f.key = w.key AND f.id <> w.id
 ORDER BY w.place

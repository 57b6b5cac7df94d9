-- grant_slots: Grants slots to waiting occurrences, by descending priority, then oldest first. Runs under the slots lock.
-- $1: the maximum number of grants. $2: now.
--
-- Each group is looked at by itself, from the index: its first and its last waiting occurrence, the number of its taken
-- slots, and as many waiting occurrences as fit. Neither the length of a queue nor the number of groups that wait for one
-- full key matters.
WITH RECURSIVE groups AS (
    (SELECT slot_group FROM runs WHERE NOT has_slot AND slot_group IS NOT NULL ORDER BY slot_group LIMIT 1)
    UNION ALL
    SELECT (SELECT r.slot_group FROM runs r WHERE NOT r.has_slot AND r.slot_group > g.slot_group
             ORDER BY r.slot_group LIMIT 1)
      FROM groups g WHERE g.slot_group IS NOT NULL
),
-- An edit may have changed the limits, so each occurrence is subject to its own. The larger of the first and the last one
-- tells how many must be read; those of an edit in between wait until they are the first.
ends AS MATERIALIZED (
    SELECT g.slot_group, f.slot_key,
           CASE WHEN f.slot_limit IS NOT NULL AND l.slot_limit IS NOT NULL
                THEN greatest(f.slot_limit, l.slot_limit) END AS job_limit,
           CASE WHEN f.slot_key = l.slot_key THEN greatest(f.slot_key_limit, l.slot_key_limit) END AS key_limit
      FROM groups g
     CROSS JOIN LATERAL (
           SELECT r.slot_limit, r.slot_key, r.slot_key_limit FROM runs r
            WHERE r.slot_group = g.slot_group AND NOT r.has_slot ORDER BY r.priority DESC, r.id LIMIT 1) f
     CROSS JOIN LATERAL (
           SELECT r.slot_limit, r.slot_key, r.slot_key_limit FROM runs r
            WHERE r.slot_group = g.slot_group AND NOT r.has_slot ORDER BY r.priority, r.id DESC LIMIT 1) l
     WHERE g.slot_group IS NOT NULL
),
taken_keys AS MATERIALIZED (
    SELECT k.slot_key, (SELECT count(*) FROM runs t WHERE t.slot_key = k.slot_key AND t.has_slot) AS count
      FROM (SELECT DISTINCT slot_key FROM ends WHERE key_limit IS NOT NULL) k
),
places AS MATERIALIZED (
    SELECT e.slot_group, t.taken, least($1::bigint, e.job_limit - t.taken, e.key_limit - k.count) AS free
      FROM ends e
      LEFT JOIN taken_keys k ON k.slot_key = e.slot_key AND e.key_limit IS NOT NULL
     CROSS JOIN LATERAL (SELECT count(*) AS taken FROM runs t WHERE t.slot_group = e.slot_group AND t.has_slot) t
),
-- The job's own limit comes before the key's: an occurrence that its job holds back takes no place in the key's queue.
waiting AS (
    SELECT w.*, p.taken, row_number() OVER (PARTITION BY p.slot_group ORDER BY w.priority DESC, w.id) AS place
      FROM places p
     CROSS JOIN LATERAL (
           SELECT r.id, r.priority, r.slot_limit, r.slot_key, r.slot_key_limit FROM runs r
            WHERE r.slot_group = p.slot_group AND NOT r.has_slot AND r.status = 'queued'
            ORDER BY r.priority DESC, r.id
            LIMIT greatest(p.free, 0)) w
     WHERE p.free > 0
),
fits_job AS (
    SELECT * FROM waiting WHERE slot_limit IS NULL OR place <= slot_limit - taken
),
by_key AS (
    SELECT f.*, row_number() OVER (PARTITION BY f.slot_key ORDER BY f.priority DESC, f.id) AS key_place FROM fits_job f
),
taken AS (
    SELECT k.slot_key, (SELECT count(*) FROM runs t WHERE t.slot_key = k.slot_key AND t.has_slot) AS count
      FROM (SELECT DISTINCT slot_key FROM by_key WHERE slot_key IS NOT NULL) k
),
chosen AS (
    SELECT b.id FROM by_key b LEFT JOIN taken t ON t.slot_key = b.slot_key
     WHERE b.slot_key IS NULL OR b.key_place <= b.slot_key_limit - t.count
     ORDER BY b.priority DESC, b.id
     LIMIT $1::bigint
)
UPDATE runs
   SET has_slot = true, publish_after = CASE WHEN not_before IS NULL THEN $2::timestamptz END, version = version + 1
 WHERE id = ANY (ARRAY (
           SELECT r.id FROM runs r
            WHERE r.id = ANY (ARRAY (SELECT id FROM chosen)) AND NOT r.has_slot AND r.status = 'queued'
            ORDER BY r.id FOR UPDATE))
RETURNING id, job_id, job_name, worker_id, job_type,
          run_input(id, own_input, has_long_input, job_id, job_version) AS job_data, scheduled_for, attempt, failures,
          max_retries, priority, timeout_seconds, traceparent, parent_id, run_checkpoint(id, attempt) AS checkpoint,
          NOT has_slot AS "is_held!"

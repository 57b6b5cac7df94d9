-- Gives waiting occurrences their slots, most urgent first and among those the oldest. Runs under the slots lock.
WITH taken_by_job AS (
    SELECT job_id, count(*) AS n FROM slots WHERE is_taken GROUP BY job_id
),
taken_by_key AS (
    SELECT key, count(*) AS n FROM slots WHERE is_taken AND key IS NOT NULL GROUP BY key
),
by_job AS (
    SELECT s.*, row_number() OVER (PARTITION BY s.job_id ORDER BY s.priority DESC, s.occurrence_id) AS place
      FROM slots s WHERE NOT s.is_taken
),
-- First the job's own limit, then the key's: one that its own job holds back takes nobody's place in the key's queue.
fits_job AS (
    SELECT b.* FROM by_job b LEFT JOIN taken_by_job t ON t.job_id = b.job_id
     WHERE b.job_limit IS NULL OR b.place <= b.job_limit - coalesce(t.n, 0)
),
by_key AS (
    SELECT f.*, row_number() OVER (PARTITION BY f.key ORDER BY f.priority DESC, f.occurrence_id) AS key_place
      FROM fits_job f
),
chosen AS (
    SELECT b.occurrence_id, b.created_at FROM by_key b LEFT JOIN taken_by_key t ON t.key = b.key
     WHERE b.key IS NULL OR b.key_place <= b.key_limit - coalesce(t.n, 0)
     ORDER BY b.priority DESC, b.occurrence_id
     LIMIT $1
),
taken AS (
    UPDATE slots s SET is_taken = true FROM chosen c WHERE s.occurrence_id = c.occurrence_id
)
UPDATE occurrences o SET is_held = false, version = o.version + 1
  FROM chosen c
 WHERE o.id = c.occurrence_id AND o.created_at = c.created_at AND o.status = 0 AND o.is_held
RETURNING o.id, o.job_id, o.job_name, o.worker_id, o.job_type, o.job_data, o.scheduled_for, o.attempt, o.failures,
          o.max_retries, o.priority, o.timeout_seconds

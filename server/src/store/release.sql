-- Grants slots to waiting occurrences, by descending priority, then oldest first. Runs under the slots lock.
-- $1: the maximum number of grants.
--
-- All slots are read at once and joined with nothing: the cached plan may date from a time without slots, and would
-- compare each of ten thousand slots with every other.
WITH counted AS (
    SELECT s.*,
           count(*) FILTER (WHERE s.is_taken) OVER (PARTITION BY s.job_id) AS taken_of_job,
           count(*) FILTER (WHERE s.is_taken) OVER (PARTITION BY s.key) AS taken_of_key,
           row_number() OVER (PARTITION BY s.job_id, s.is_taken ORDER BY s.priority DESC, s.occurrence_id) AS place
      FROM slots s
),
-- The job's own limit comes before the key's: an occurrence that its job holds back takes no place in the key's queue.
fits_job AS (
    SELECT c.* FROM counted c
     WHERE NOT c.is_taken AND (c.job_limit IS NULL OR c.place <= c.job_limit - c.taken_of_job)
),
by_key AS (
    SELECT f.*, row_number() OVER (PARTITION BY f.key ORDER BY f.priority DESC, f.occurrence_id) AS key_place
      FROM fits_job f
),
chosen AS (
    SELECT b.occurrence_id, b.created_at FROM by_key b
     WHERE b.key IS NULL OR b.key_place <= b.key_limit - b.taken_of_key
     ORDER BY b.priority DESC, b.occurrence_id
     LIMIT $1
),
taken AS (
    -- IS TRUE keeps the planner from turning this into a join.
    UPDATE slots s SET is_taken = true WHERE (s.occurrence_id IN (SELECT c.occurrence_id FROM chosen c)) IS TRUE
)
UPDATE occurrences o SET is_held = false, version = o.version + 1
  FROM chosen c
 WHERE o.id = c.occurrence_id AND o.created_at = c.created_at AND o.status = 0 AND o.is_held
RETURNING o.id, o.job_id, o.job_name, o.worker_id, o.job_type, o.job_data, o.scheduled_for, o.attempt, o.failures,
          o.max_retries, o.priority, o.timeout_seconds

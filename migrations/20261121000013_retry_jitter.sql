-- Retry jitter: occurrences that failed together for one cause, such as an unreachable service, are not retried
-- together.
ALTER TABLE jobs
    ADD COLUMN retry_jitter_percent smallint NOT NULL DEFAULT 0 CHECK (retry_jitter_percent BETWEEN 0 AND 100);
COMMENT ON COLUMN jobs.retry_jitter_percent IS 'Retry jitter: maximum share by which the retry delay is shortened, in percent, drawn for each attempt.';

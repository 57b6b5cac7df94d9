-- Retry jitter: what failed together for one cause, such as a service that is down, need not come back together.
ALTER TABLE jobs
    ADD COLUMN retry_jitter_percent smallint NOT NULL DEFAULT 0 CHECK (retry_jitter_percent BETWEEN 0 AND 100);
COMMENT ON COLUMN jobs.retry_jitter_percent IS 'How much of the pause before a retry may be taken off, drawn for each attempt, in percent of it.';

-- Schedules that the code of workers declares.
--
-- A server that does not know the columns leaves declared jobs as they are, so it can run beside this one.

ALTER TABLE declared_jobs
    ADD COLUMN declared   jsonb,
    ADD COLUMN version    text        NOT NULL DEFAULT '',
    ADD COLUMN retired_at timestamptz;
COMMENT ON COLUMN declared_jobs.declared IS 'Definition that the code declares, as of the last registration; null until one declares the job type.';
COMMENT ON COLUMN declared_jobs.version IS 'Version of the program that declares it.';
COMMENT ON COLUMN declared_jobs.retired_at IS 'Time at which the code no longer declared it; null while it does.';

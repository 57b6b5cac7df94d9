-- Jobs: the definitions of work and of its schedule.
--
-- `next_fire_at` is the authoritative due time of a job. Redis holds a copy that bounds the sleep of the dispatcher. A
-- dispatcher moves this column by compare-and-swap, so that each due time of a job is dispatched once, even if several
-- servers try.

CREATE TABLE jobs (
    id               uuid        PRIMARY KEY,
    key              text        UNIQUE CHECK (key ~ '^[a-z0-9][a-z0-9._-]{0,99}$'),
    display_name     text        NOT NULL CHECK (char_length(display_name) BETWEEN 1 AND 200),
    description      text        NOT NULL DEFAULT '' CHECK (char_length(description) <= 2000),
    tags             text[]      NOT NULL DEFAULT '{}' CHECK (cardinality(tags) <= 20),
    worker_id        text        NOT NULL CHECK (worker_id ~ '^[A-Za-z0-9._-]{1,100}$'),
    job_type         text        NOT NULL CHECK (job_type ~ '^[A-Za-z0-9._-]{1,100}$'),
    job_data         jsonb       NOT NULL DEFAULT '{}' CHECK (octet_length(job_data::text) <= 131072),
    schedule         jsonb       NOT NULL CHECK (schedule ->> 'kind' IN ('cron', 'every', 'once', 'manual')),
    next_fire_at     timestamptz,
    last_fire_at     timestamptz,
    start_at         timestamptz,
    end_at           timestamptz,
    is_active        boolean     NOT NULL DEFAULT true,
    paused_reason    text,
    priority         smallint    NOT NULL DEFAULT 3 CHECK (priority BETWEEN 1 AND 5),
    overlap_policy   smallint    NOT NULL DEFAULT 2 CHECK (overlap_policy BETWEEN 0 AND 3),
    misfire_policy   text        NOT NULL DEFAULT 'fire_once' CHECK (misfire_policy IN ('fire_once', 'skip', 'catch_up')),
    max_retries      smallint    NOT NULL DEFAULT 0 CHECK (max_retries BETWEEN 0 AND 100),
    base_retry_delay_seconds integer NOT NULL DEFAULT 5 CHECK (base_retry_delay_seconds BETWEEN 1 AND 86400),
    timeout_seconds  integer     CHECK (timeout_seconds BETWEEN 1 AND 86400),
    heartbeat_timeout_seconds integer CHECK (heartbeat_timeout_seconds BETWEEN 15 AND 86400),
    auto_disable     jsonb       NOT NULL DEFAULT '{}',
    version          integer     NOT NULL DEFAULT 1,
    created_at       timestamptz NOT NULL,
    created_by       text        NOT NULL,
    modified_at      timestamptz NOT NULL,
    modified_by      text        NOT NULL,
    CONSTRAINT jobs_paused_is_never_due CHECK (is_active OR next_fire_at IS NULL)
);

COMMENT ON TABLE  jobs IS 'Definitions of work and of its schedule.';
COMMENT ON COLUMN jobs.id IS 'UUIDv7, created by the application.';
COMMENT ON COLUMN jobs.key IS 'Optional unique slug, for definitions kept in files under version control.';
COMMENT ON COLUMN jobs.display_name IS 'Name on the pages.';
COMMENT ON COLUMN jobs.description IS 'Purpose of the job.';
COMMENT ON COLUMN jobs.tags IS 'Words for the search.';
COMMENT ON COLUMN jobs.worker_id IS 'Worker that runs the job.';
COMMENT ON COLUMN jobs.job_type IS 'Job type of that worker.';
COMMENT ON COLUMN jobs.job_data IS 'Input, described by the JSON Schema of the job type.';
COMMENT ON COLUMN jobs.schedule IS 'Tagged by kind: cron {expression, zone}, every {seconds}, once {at}, manual.';
COMMENT ON COLUMN jobs.next_fire_at IS 'Next due time; null if the job is paused, manual or finished.';
COMMENT ON COLUMN jobs.last_fire_at IS 'Due time that was dispatched last.';
COMMENT ON COLUMN jobs.start_at IS 'The job is not due before this time.';
COMMENT ON COLUMN jobs.end_at IS 'The job is not due from this time on.';
COMMENT ON COLUMN jobs.is_active IS 'False while the job is paused.';
COMMENT ON COLUMN jobs.paused_reason IS 'Reason for the pause, as a sentence.';
COMMENT ON COLUMN jobs.priority IS 'Priority, from 1 (idle) to 5 (critical).';
COMMENT ON COLUMN jobs.overlap_policy IS 'Rule for a due time while the previous occurrence is open: 0 skip, 1 queue, 2 allow, 3 replace.';
COMMENT ON COLUMN jobs.misfire_policy IS 'Rule for misfires: fire_once, skip or catch_up.';
COMMENT ON COLUMN jobs.max_retries IS 'Maximum number of retries after the first attempt.';
COMMENT ON COLUMN jobs.base_retry_delay_seconds IS 'Delay before the first retry, in seconds; doubled for each further retry.';
COMMENT ON COLUMN jobs.timeout_seconds IS 'Run timeout, in seconds; null means the default of the job type.';
COMMENT ON COLUMN jobs.heartbeat_timeout_seconds IS 'Heartbeat timeout, in seconds, after which a run counts as lost; null means the default of the installation.';
COMMENT ON COLUMN jobs.auto_disable IS 'Auto-disable rule of the job.';
COMMENT ON COLUMN jobs.version IS 'Number of edits; an edit carries the version that it was made from.';

-- Used by the dispatcher and by each rebuild of the due index in Redis.
CREATE INDEX jobs_due ON jobs (next_fire_at) WHERE next_fire_at IS NOT NULL;
-- Used by the list of jobs, with a keyset cursor by name.
CREATE INDEX jobs_by_name ON jobs (lower(display_name), id);

CREATE TABLE job_versions (
    job_id     uuid        NOT NULL,
    version    integer     NOT NULL,
    definition jsonb       NOT NULL,
    changed_at timestamptz NOT NULL,
    changed_by text        NOT NULL,
    PRIMARY KEY (job_id, version)
);
COMMENT ON TABLE  job_versions IS 'All definitions a job has had, the present one included. Kept after the job is deleted.';
COMMENT ON COLUMN job_versions.definition IS 'The definition as the user entered it.';

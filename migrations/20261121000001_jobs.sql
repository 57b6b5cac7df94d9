-- Definitions: what runs, and when.
--
-- `next_fire_at` is the truth about when a job is due. Redis holds a copy to sleep on; whoever fires a job moves this
-- column by compare-and-swap, so that one (job, fire time) is fired once, whoever else tries.

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

COMMENT ON TABLE  jobs IS 'Definitions: what runs and when.';
COMMENT ON COLUMN jobs.id IS 'UUIDv7 made by the application.';
COMMENT ON COLUMN jobs.key IS 'Optional unique slug, for definitions kept in files under version control.';
COMMENT ON COLUMN jobs.display_name IS 'What people call it.';
COMMENT ON COLUMN jobs.description IS 'What it is for.';
COMMENT ON COLUMN jobs.tags IS 'For finding it.';
COMMENT ON COLUMN jobs.worker_id IS 'The worker it is addressed to.';
COMMENT ON COLUMN jobs.job_type IS 'Which of that worker''s job types.';
COMMENT ON COLUMN jobs.job_data IS 'The input, as the type''s JSON Schema describes it.';
COMMENT ON COLUMN jobs.schedule IS 'Tagged by kind: cron {expression, zone}, every {seconds}, once {at}, manual.';
COMMENT ON COLUMN jobs.next_fire_at IS 'When it is due next; null when paused, manual or finished.';
COMMENT ON COLUMN jobs.last_fire_at IS 'The due instant that was fired last.';
COMMENT ON COLUMN jobs.start_at IS 'Not due before this instant.';
COMMENT ON COLUMN jobs.end_at IS 'Not due from this instant on.';
COMMENT ON COLUMN jobs.is_active IS 'False while paused.';
COMMENT ON COLUMN jobs.paused_reason IS 'Why it is paused, in somebody''s words.';
COMMENT ON COLUMN jobs.priority IS '1 idle to 5 critical.';
COMMENT ON COLUMN jobs.overlap_policy IS 'When the previous occurrence still runs: 0 skip, 1 queue, 2 allow, 3 replace.';
COMMENT ON COLUMN jobs.misfire_policy IS 'When fires were missed: fire_once, skip, catch_up.';
COMMENT ON COLUMN jobs.max_retries IS 'Attempts after the first.';
COMMENT ON COLUMN jobs.base_retry_delay_seconds IS 'Pause before the second attempt; doubled for each further one.';
COMMENT ON COLUMN jobs.timeout_seconds IS 'When a run is ended; null means the worker''s default.';
COMMENT ON COLUMN jobs.heartbeat_timeout_seconds IS 'How long without a heartbeat before a run counts as lost; null means the default.';
COMMENT ON COLUMN jobs.auto_disable IS 'Settings and state of the failure breaker.';
COMMENT ON COLUMN jobs.version IS 'Counts edits; an edit names the version it was made from.';

-- The dispatcher's claim and every rebuild of the index in Redis read exactly this.
CREATE INDEX jobs_due ON jobs (next_fire_at) WHERE next_fire_at IS NOT NULL;
-- The list of jobs, keyset by name.
CREATE INDEX jobs_by_name ON jobs (lower(display_name), id);

CREATE TABLE job_versions (
    job_id     uuid        NOT NULL,
    version    integer     NOT NULL,
    definition jsonb       NOT NULL,
    changed_at timestamptz NOT NULL,
    changed_by text        NOT NULL,
    PRIMARY KEY (job_id, version)
);
COMMENT ON TABLE  job_versions IS 'Every definition a job has had, the present one included. Kept after the job is deleted.';
COMMENT ON COLUMN job_versions.definition IS 'The job as people defined it.';

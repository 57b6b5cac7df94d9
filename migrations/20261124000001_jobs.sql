-- Jobs: the definitions of work and of its schedule, and their next due times.
--
-- A due time changes at each fire, a definition only when a user edits it. The due time is therefore in a narrow table
-- of its own, `job_due`: a fire leaves a short dead row there and does not copy the definition.

-- The search in the list of jobs finds parts of words by their trigrams.
CREATE EXTENSION IF NOT EXISTS pg_trgm;

-- Immutable, because array_to_string is for text; PostgreSQL cannot know that.
CREATE FUNCTION job_search_text(display_name text, description text, job_type text, tags text[])
    RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT lower(concat_ws(E'\n', display_name, description, job_type, array_to_string(tags, ' ')))
$$;
COMMENT ON FUNCTION job_search_text IS 'Returns the text in which the list of jobs searches.';

CREATE TABLE jobs (
    id               uuid        PRIMARY KEY,
    key              text        CHECK (key ~ '^[a-z0-9][a-z0-9._-]{0,99}$'),
    display_name     text        NOT NULL CHECK (char_length(display_name) BETWEEN 1 AND 200),
    description      text        NOT NULL DEFAULT '' CHECK (char_length(description) <= 2000),
    tags             text[]      NOT NULL DEFAULT '{}' CHECK (cardinality(tags) <= 20),
    worker_id        text        NOT NULL CHECK (worker_id ~ '^[A-Za-z0-9._-]{1,100}$'),
    job_type         text        NOT NULL CHECK (job_type ~ '^[A-Za-z0-9._-]{1,100}$'),
    job_data         jsonb       NOT NULL DEFAULT '{}' CHECK (octet_length(job_data::text) <= 131072),
    schedule         jsonb       NOT NULL CHECK (schedule ->> 'kind' IN ('cron', 'every', 'once', 'manual')),
    rules            jsonb       NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(rules) = 'object'),
    start_at         timestamptz,
    end_at           timestamptz,
    calendars        uuid[]      NOT NULL DEFAULT '{}' CHECK (cardinality(calendars) <= 10),
    is_active        boolean     NOT NULL DEFAULT true,
    paused_reason    text,
    priority         smallint    NOT NULL DEFAULT 3 CHECK (priority BETWEEN 1 AND 5),
    overlap_policy   smallint    NOT NULL DEFAULT 2 CHECK (overlap_policy BETWEEN 0 AND 3),
    max_concurrent   smallint    CHECK (max_concurrent BETWEEN 1 AND 10000),
    concurrency_key  text        CHECK (char_length(concurrency_key) BETWEEN 1 AND 100),
    concurrency_key_limit smallint CHECK (concurrency_key_limit BETWEEN 1 AND 10000),
    needs_slot       boolean     NOT NULL GENERATED ALWAYS AS
        (overlap_policy <> 2 OR max_concurrent IS NOT NULL OR concurrency_key IS NOT NULL) STORED,
    max_retries      smallint    NOT NULL DEFAULT 0 CHECK (max_retries BETWEEN 0 AND 100),
    timeout_seconds  integer     CHECK (timeout_seconds BETWEEN 1 AND 86400),
    heartbeat_timeout_seconds integer CHECK (heartbeat_timeout_seconds BETWEEN 15 AND 86400),
    unreachable_timeout_seconds integer CHECK (unreachable_timeout_seconds BETWEEN 15 AND 86400),
    on_lost          text        NOT NULL DEFAULT 'requeue' CHECK (on_lost IN ('requeue', 'fail')),
    auto_disable     jsonb       NOT NULL DEFAULT '{}',
    start_within_seconds integer CHECK (start_within_seconds BETWEEN 1 AND 2592000),
    auto_disabled_at timestamptz,
    enable_again_at  timestamptz,
    failures_since   timestamptz,
    source           text        NOT NULL DEFAULT 'dashboard' CHECK (source IN ('dashboard', 'api', 'code', 'file')),
    source_file      text        CHECK (char_length(source_file) BETWEEN 1 AND 200),
    source_version   integer,
    version          integer     NOT NULL DEFAULT 1,
    created_at       timestamptz NOT NULL,
    created_by       text        NOT NULL,
    modified_at      timestamptz NOT NULL,
    modified_by      text        NOT NULL,
    search_text      text        NOT NULL GENERATED ALWAYS AS
        (job_search_text(display_name, description, job_type, tags)) STORED,
    CONSTRAINT jobs_key_and_limit_come_together CHECK ((concurrency_key IS NULL) = (concurrency_key_limit IS NULL))
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
COMMENT ON COLUMN jobs.rules IS 'All rules beside the schedule; those with their default may be left out. No statement reads it: a rule that one reads has a column too.';
COMMENT ON COLUMN jobs.start_at IS 'The job is not due before this time.';
COMMENT ON COLUMN jobs.end_at IS 'The job is not due from this time on.';
COMMENT ON COLUMN jobs.calendars IS 'Blackout calendars of the job.';
COMMENT ON COLUMN jobs.is_active IS 'False while the job is paused.';
COMMENT ON COLUMN jobs.paused_reason IS 'Reason for the pause, as a sentence.';
COMMENT ON COLUMN jobs.priority IS 'Priority, from 1 (idle) to 5 (critical).';
COMMENT ON COLUMN jobs.overlap_policy IS 'Rule for a due time while the previous occurrence is open: 0 skip, 1 queue, 2 allow, 3 replace.';
COMMENT ON COLUMN jobs.max_concurrent IS 'Concurrency limit of the job: maximum number of open occurrences.';
COMMENT ON COLUMN jobs.concurrency_key IS 'Concurrency key, shared by jobs with a common limit.';
COMMENT ON COLUMN jobs.concurrency_key_limit IS 'Concurrency limit of the key: maximum number of open occurrences.';
COMMENT ON COLUMN jobs.needs_slot IS 'True if the number of its concurrent occurrences is limited.';
COMMENT ON COLUMN jobs.max_retries IS 'Maximum number of retries after the first attempt.';
COMMENT ON COLUMN jobs.timeout_seconds IS 'Run timeout, in seconds; null means the default of the job type.';
COMMENT ON COLUMN jobs.heartbeat_timeout_seconds IS 'Heartbeat timeout, in seconds, after which a run counts as lost; null means the default of the installation.';
COMMENT ON COLUMN jobs.unreachable_timeout_seconds IS
    'Time in seconds after which a run is revoked from an instance that is alive and unreachable over the broker; null means the default of the installation.';
COMMENT ON COLUMN jobs.on_lost IS 'Rule for lost runs: requeue them, or fail them after a while.';
COMMENT ON COLUMN jobs.auto_disable IS 'Auto-disable rule of the job: {threshold, windowSeconds, coolDownSeconds}; empty means the default of the installation.';
COMMENT ON COLUMN jobs.start_within_seconds IS 'Time after the due time of an occurrence within which a worker must begin it; null for no limit.';
COMMENT ON COLUMN jobs.auto_disabled_at IS 'Time at which the job was disabled automatically; null if it was not.';
COMMENT ON COLUMN jobs.enable_again_at IS 'Time at which the job is enabled again automatically.';
COMMENT ON COLUMN jobs.failures_since IS 'Failures before this time do not count for auto-disable.';
-- A job from a file belongs to the file, so its page names the file, and an edit elsewhere is found by comparing versions:
-- no other statement has to know about files.
COMMENT ON COLUMN jobs.source IS 'Door through which the job was defined: dashboard, api, code or file.';
COMMENT ON COLUMN jobs.source_file IS 'File from which the job comes; null for other sources.';
COMMENT ON COLUMN jobs.source_version IS
    'Version that the file had when it was last applied; null for other sources. A later version was edited elsewhere.';
COMMENT ON COLUMN jobs.version IS 'Number of edits; an edit carries the version that it was made from.';
COMMENT ON COLUMN jobs.search_text IS 'Name, description, job type and tags in lower case, for the search.';

-- Few jobs have a key.
CREATE UNIQUE INDEX jobs_key_key ON jobs (key) WHERE key IS NOT NULL;
-- Used by the list of jobs, with a keyset cursor by name.
CREATE INDEX jobs_by_name ON jobs (lower(display_name), id);
-- The same for active or paused jobs alone, and the number of each for the overview.
CREATE INDEX jobs_by_activity ON jobs (is_active, lower(display_name), id);
-- Used by the search in the list of jobs.
CREATE INDEX jobs_by_text ON jobs USING gin (search_text gin_trgm_ops);
-- Jobs whose pause counts from the end of a run.
CREATE INDEX jobs_pausing ON jobs (id) WHERE is_active AND schedule ->> 'from' = 'end';
-- Used by auto-disable to enable jobs again.
CREATE INDEX jobs_enable_again ON jobs (enable_again_at) WHERE enable_again_at IS NOT NULL;
-- Jobs that use a calendar, for edits of the calendar.
CREATE INDEX jobs_by_calendar ON jobs USING gin (calendars) WHERE cardinality(calendars) > 0;
-- The list of jobs with a tag.
CREATE INDEX jobs_by_tag ON jobs USING gin (tags) WHERE cardinality(tags) > 0;
-- The jobs that came from a file, for the warnings of a plan about those that the file no longer has.
CREATE INDEX jobs_by_source_file ON jobs (source_file) WHERE source = 'file';

-- `next_fire_at` is the authoritative due time. Redis holds a copy that bounds the sleep of the dispatcher. A dispatcher
-- moves the column by compare-and-swap, so that each due time of a job is dispatched once, even if several servers try.
CREATE TABLE job_due (
    job_id       uuid        PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
    priority     smallint    NOT NULL,
    next_fire_at timestamptz,
    last_fire_at timestamptz,
    version      integer     NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
        autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
COMMENT ON TABLE  job_due IS 'Due times, one row for each job.';
COMMENT ON COLUMN job_due.priority IS 'Priority of the job.';
COMMENT ON COLUMN job_due.next_fire_at IS 'Next due time; null if the job is paused, manual or finished.';
COMMENT ON COLUMN job_due.last_fire_at IS 'Due time that was dispatched or skipped last.';
COMMENT ON COLUMN job_due.version IS 'Version of the job to which the due time belongs. A job is dispatched only while both versions are equal.';
-- The dispatcher orders by priority, then by due time: one probe of this index for each priority.
CREATE INDEX job_due_by_time ON job_due (priority, next_fire_at) WHERE next_fire_at IS NOT NULL;

CREATE TABLE job_versions (
    job_id     uuid        NOT NULL,
    version    integer     NOT NULL,
    definition jsonb       NOT NULL,
    changed_at timestamptz NOT NULL,
    changed_by text        NOT NULL,
    PRIMARY KEY (job_id, version)
);
COMMENT ON TABLE  job_versions IS
    'All definitions that a job has had, the present one included. Kept after the job is deleted. Occurrences without an input of their own use the input of their version.';
COMMENT ON COLUMN job_versions.definition IS 'The definition as the user entered it.';

CREATE TABLE calendars (
    id              uuid        PRIMARY KEY,
    name            text        NOT NULL UNIQUE CHECK (char_length(name) BETWEEN 1 AND 100),
    definition      jsonb       NOT NULL,
    version         integer     NOT NULL DEFAULT 1,
    modified_at     timestamptz NOT NULL,
    modified_by     text        NOT NULL,
    applied_version integer     NOT NULL DEFAULT 1,
    applied_to      uuid
);
COMMENT ON TABLE  calendars IS 'Named blackout calendars: sets of days and weekly windows in which the jobs that use them do not run.';
COMMENT ON COLUMN calendars.definition IS '{name, zone, dates, windows}.';
COMMENT ON COLUMN calendars.version IS 'Number of edits; an edit carries the version that it was made from.';
COMMENT ON COLUMN calendars.applied_version IS 'Version by which the due times of all jobs that use the calendar were computed.';
COMMENT ON COLUMN calendars.applied_to IS 'Last job, in the order of ids, whose due time was computed by the present version; null before the first and after the last.';

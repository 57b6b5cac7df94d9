-- The rules of the scheduling engine and the state they need: misfires, overlap, concurrency keys, blackouts and
-- auto-disable.

-- Jobs ---------------------------------------------------------------------------------------------------------------

ALTER TABLE jobs
    ADD COLUMN jitter_seconds          integer  NOT NULL DEFAULT 0       CHECK (jitter_seconds BETWEEN 0 AND 86400),
    ADD COLUMN calendars               uuid[]   NOT NULL DEFAULT '{}'    CHECK (cardinality(calendars) <= 10),
    ADD COLUMN blackout                text     NOT NULL DEFAULT 'skip'  CHECK (blackout IN ('skip', 'postpone')),
    ADD COLUMN catch_up_limit          integer  NOT NULL DEFAULT 100     CHECK (catch_up_limit BETWEEN 1 AND 10000),
    ADD COLUMN catch_up_window_seconds integer  NOT NULL DEFAULT 3600    CHECK (catch_up_window_seconds BETWEEN 1 AND 2592000),
    ADD COLUMN max_concurrent          smallint CHECK (max_concurrent BETWEEN 1 AND 10000),
    ADD COLUMN concurrency_key         text     CHECK (char_length(concurrency_key) BETWEEN 1 AND 100),
    ADD COLUMN concurrency_key_limit   smallint CHECK (concurrency_key_limit BETWEEN 1 AND 10000),
    ADD COLUMN on_lost                 text     NOT NULL DEFAULT 'requeue' CHECK (on_lost IN ('requeue', 'fail')),
    ADD COLUMN auto_disabled_at        timestamptz,
    ADD COLUMN enable_again_at         timestamptz,
    ADD COLUMN failures_since          timestamptz,
    ADD CONSTRAINT jobs_key_and_limit_come_together
        CHECK ((concurrency_key IS NULL) = (concurrency_key_limit IS NULL));

COMMENT ON COLUMN jobs.jitter_seconds IS 'Maximum schedule jitter, in seconds; the delay of one job is the same every time.';
COMMENT ON COLUMN jobs.calendars IS 'Blackout calendars of the job.';
COMMENT ON COLUMN jobs.blackout IS 'Rule for a due time in a blackout: skip it, or postpone it to the end of the blackout.';
COMMENT ON COLUMN jobs.catch_up_limit IS 'Maximum number of misfires that catch_up runs.';
COMMENT ON COLUMN jobs.catch_up_window_seconds IS 'Maximum age of a misfire that catch_up runs, in seconds.';
COMMENT ON COLUMN jobs.max_concurrent IS 'Concurrency limit of the job: maximum number of open occurrences.';
COMMENT ON COLUMN jobs.concurrency_key IS 'Concurrency key, shared by jobs with a common limit.';
COMMENT ON COLUMN jobs.concurrency_key_limit IS 'Concurrency limit of the key: maximum number of open occurrences.';
COMMENT ON COLUMN jobs.on_lost IS 'Rule for lost runs: requeue them, or fail them after a while.';
COMMENT ON COLUMN jobs.auto_disable IS 'Auto-disable rule of the job: {threshold, windowSeconds, coolDownSeconds}; empty means the default of the installation.';
COMMENT ON COLUMN jobs.auto_disabled_at IS 'Time at which the job was disabled automatically; null if it was not.';
COMMENT ON COLUMN jobs.enable_again_at IS 'Time at which the job is enabled again automatically.';
COMMENT ON COLUMN jobs.failures_since IS 'Failures before this time do not count for auto-disable.';

-- The dispatcher orders by priority, then by due time: one probe of this index for each priority.
DROP INDEX jobs_due;
CREATE INDEX jobs_due ON jobs (priority, next_fire_at) WHERE next_fire_at IS NOT NULL;
-- Jobs that wait for the end of their run, from which their pause is counted.
CREATE INDEX jobs_pausing ON jobs (id) WHERE is_active AND next_fire_at IS NULL AND schedule ->> 'from' = 'end';
-- Few jobs have a key, and an index entry for jobs without one would be written at every dispatch.
ALTER TABLE jobs DROP CONSTRAINT jobs_key_key;
CREATE UNIQUE INDEX jobs_key_key ON jobs (key) WHERE key IS NOT NULL;
-- Used by auto-disable to enable jobs again.
CREATE INDEX jobs_enable_again ON jobs (enable_again_at) WHERE enable_again_at IS NOT NULL;
-- Jobs that use a calendar, for edits of the calendar.
CREATE INDEX jobs_by_calendar ON jobs USING gin (calendars) WHERE cardinality(calendars) > 0;

CREATE TABLE calendars (
    id          uuid        PRIMARY KEY,
    name        text        NOT NULL UNIQUE CHECK (char_length(name) BETWEEN 1 AND 100),
    definition  jsonb       NOT NULL,
    version     integer     NOT NULL DEFAULT 1,
    modified_at timestamptz NOT NULL,
    modified_by text        NOT NULL
);
COMMENT ON TABLE  calendars IS 'Named blackout calendars: sets of days and weekly windows in which the jobs that use them do not run.';
COMMENT ON COLUMN calendars.definition IS '{name, zone, dates, windows}.';
COMMENT ON COLUMN calendars.version IS 'Number of edits; an edit carries the version that it was made from.';

-- At most one row. While it exists, no server dispatches jobs, releases delayed occurrences or grants slots.
CREATE TABLE cluster_pause (
    is_on   boolean     PRIMARY KEY DEFAULT true CHECK (is_on),
    since   timestamptz NOT NULL,
    by_whom text       NOT NULL,
    reason  text        NOT NULL CHECK (char_length(reason) BETWEEN 1 AND 500)
);
COMMENT ON TABLE cluster_pause IS 'Cluster pause, which stops every dispatcher, with its author and reason.';

-- Occurrences --------------------------------------------------------------------------------------------------------

ALTER TABLE occurrences
    ADD COLUMN is_held             boolean  NOT NULL DEFAULT false,
    ADD COLUMN pause_after_seconds bigint,
    ADD COLUMN rescues             smallint NOT NULL DEFAULT 0,
    ADD COLUMN on_lost             text     NOT NULL DEFAULT 'requeue',
    ADD COLUMN heartbeat_timeout_seconds integer,
    ADD COLUMN retry_of            uuid,
    ADD COLUMN cancel_requested_at timestamptz,
    ADD COLUMN cancel_requested_by text;

COMMENT ON COLUMN occurrences.is_held IS 'True while a queued occurrence waits for a slot or is delayed: its message must not be published yet.';
COMMENT ON COLUMN occurrences.pause_after_seconds IS 'Time from the end of the occurrence to the next due time of its job, in seconds.';
COMMENT ON COLUMN occurrences.rescues IS 'Number of times it was requeued as a lost run.';
COMMENT ON COLUMN occurrences.on_lost IS 'Rule of the job for lost runs at the time of creation.';
COMMENT ON COLUMN occurrences.heartbeat_timeout_seconds IS 'Heartbeat timeout of the job at the time of creation, in seconds.';
COMMENT ON COLUMN occurrences.retry_of IS 'Failed occurrence that this one retries.';
COMMENT ON COLUMN occurrences.cancel_requested_at IS 'Time at which a user requested the cancellation of the running occurrence.';

-- Used by the republisher. Held occurrences must not be published, so they are not in the index.
DROP INDEX occurrences_unpublished;
CREATE INDEX occurrences_unpublished ON occurrences (created_at) WHERE published_at IS NULL AND status = 0 AND NOT is_held;

-- Nearly every row becomes Completed, and finding those needs no index, because they are everywhere. Leaving them out
-- saves an index entry in the most frequent update, and so does one index over the open statuses instead of two.
-- Filters contain the status as a literal, so that the planner uses these partial indexes.
DROP INDEX occurrences_by_status;
DROP INDEX occurrences_open_by_job;
CREATE INDEX occurrences_open ON occurrences (status, id DESC) WHERE status IN (0, 1, 6);
CREATE INDEX occurrences_by_status ON occurrences (status, id DESC) WHERE status IN (3, 4, 5, 7);
-- The failures of a job among its million completed runs; also used by auto-disable.
CREATE INDEX occurrences_by_job_status ON occurrences (job_id, status, id DESC) WHERE status IN (3, 4, 5, 6, 7);

-- Open occurrences that count against a concurrency limit: those of jobs that must not overlap, of jobs with a limit,
-- and of jobs that share a key. The table is small and its rows are short-lived, so that counting never reads the big
-- table, and jobs without such rules never write to this one.
CREATE TABLE slots (
    occurrence_id uuid     PRIMARY KEY,
    created_at    timestamptz NOT NULL,
    job_id        uuid     NOT NULL,
    priority      smallint NOT NULL,
    is_taken      boolean  NOT NULL,
    job_limit     smallint,
    key           text,
    key_limit     smallint,
    replaces      boolean  NOT NULL DEFAULT false
);
COMMENT ON TABLE  slots IS 'Open occurrences that count against a concurrency limit, running ones and waiting ones.';
COMMENT ON COLUMN slots.is_taken IS 'False while the occurrence waits for the slot.';
COMMENT ON COLUMN slots.job_limit IS 'Maximum number of taken slots of this job.';
COMMENT ON COLUMN slots.key_limit IS 'Maximum number of taken slots with this key.';
COMMENT ON COLUMN slots.replaces IS 'True if earlier occurrences of the job are cancelled while this one waits.';
CREATE INDEX slots_by_job ON slots (job_id);
CREATE INDEX slots_by_key ON slots (key) WHERE key IS NOT NULL;

-- Two requests for a manual run with the same key create one run.
CREATE TABLE trigger_keys (
    job_id        uuid        NOT NULL,
    key           text        NOT NULL CHECK (char_length(key) BETWEEN 1 AND 200),
    occurrence_id uuid        NOT NULL,
    created_at    timestamptz NOT NULL,
    PRIMARY KEY (job_id, key)
);
COMMENT ON TABLE trigger_keys IS 'Idempotency keys of manual runs, kept for seven days.';
CREATE INDEX trigger_keys_by_age ON trigger_keys (created_at);

-- Failures -----------------------------------------------------------------------------------------------------------

ALTER TABLE failed_occurrences
    ADD COLUMN job_version integer  NOT NULL DEFAULT 1,
    ADD COLUMN worker_id   text     NOT NULL DEFAULT '',
    ADD COLUMN job_type    text     NOT NULL DEFAULT '',
    ADD COLUMN attempt     integer  NOT NULL DEFAULT 1,
    ADD COLUMN retried_as  uuid;
COMMENT ON COLUMN failed_occurrences.cause IS 'failed, permanent, exhausted, timed_out, rejected, poison or lost.';
COMMENT ON COLUMN failed_occurrences.retried_as IS 'Occurrence that retries this one.';
CREATE INDEX failed_open ON failed_occurrences (failed_at DESC, occurrence_id) WHERE resolved_at IS NULL;
CREATE INDEX failed_by_fingerprint ON failed_occurrences (fingerprint, failed_at DESC);
CREATE INDEX failed_by_job ON failed_occurrences (job_id, failed_at DESC);
CREATE INDEX failed_by_age ON failed_occurrences (failed_at);

CREATE TABLE dead_letters (
    id            uuid        PRIMARY KEY,
    received_at   timestamptz NOT NULL,
    digest        text        NOT NULL UNIQUE,
    reason        text        NOT NULL,
    source        text        NOT NULL,
    headers       jsonb       NOT NULL DEFAULT '{}',
    body          bytea       NOT NULL CHECK (octet_length(body) <= 65536),
    body_bytes    bigint      NOT NULL,
    copies        integer     NOT NULL DEFAULT 1,
    resolved_at   timestamptz,
    resolved_by   text,
    resolution_note text
);
COMMENT ON TABLE  dead_letters IS 'Messages from the dead letter queue that belong to no known occurrence.';
COMMENT ON COLUMN dead_letters.digest IS 'Digest of the whole body and its source, so that a duplicate is counted and not stored again.';
COMMENT ON COLUMN dead_letters.body IS 'First 64 KiB of the body.';
COMMENT ON COLUMN dead_letters.body_bytes IS 'Length of the whole body, in bytes.';
CREATE INDEX dead_letters_by_age ON dead_letters (received_at);

-- Workers ------------------------------------------------------------------------------------------------------------

ALTER TABLE worker_instances ADD COLUMN running_ids uuid[] NOT NULL DEFAULT '{}';
COMMENT ON COLUMN worker_instances.running_ids IS 'Running occurrences at the last heartbeat.';

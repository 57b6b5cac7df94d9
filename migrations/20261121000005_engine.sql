-- The scheduling engine's rules and the state they need: what a job does about missed fires, about itself still
-- running, about others that share a key, about blackouts and about failing; and what the server keeps to honour that.

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

COMMENT ON COLUMN jobs.jitter_seconds IS 'Each fire comes this much later at most; the same for one job every time.';
COMMENT ON COLUMN jobs.calendars IS 'Blackouts it keeps to.';
COMMENT ON COLUMN jobs.blackout IS 'A fire in a blackout: skip it, or postpone it to the blackout''s end.';
COMMENT ON COLUMN jobs.catch_up_limit IS 'How many missed fires catch_up repeats at most.';
COMMENT ON COLUMN jobs.catch_up_window_seconds IS 'How far back catch_up looks.';
COMMENT ON COLUMN jobs.max_concurrent IS 'At most so many of its occurrences are open at once.';
COMMENT ON COLUMN jobs.concurrency_key IS 'Shared with other jobs that must not run all at once.';
COMMENT ON COLUMN jobs.concurrency_key_limit IS 'At most so many occurrences with that key are open at once.';
COMMENT ON COLUMN jobs.on_lost IS 'A run whose worker fell silent: requeue it, or fail it after a while.';
COMMENT ON COLUMN jobs.auto_disable IS 'The job''s own breaker {threshold, windowSeconds, coolDownSeconds}; empty means the installation''s.';
COMMENT ON COLUMN jobs.auto_disabled_at IS 'When the breaker disabled it; null when people did, or nobody.';
COMMENT ON COLUMN jobs.enable_again_at IS 'When the breaker enables it again by itself.';
COMMENT ON COLUMN jobs.failures_since IS 'Failures before this instant no longer count for the breaker.';

-- The dispatcher takes the most urgent first, whatever waits longer: one probe of this index for each priority.
DROP INDEX jobs_due;
CREATE INDEX jobs_due ON jobs (priority, next_fire_at) WHERE next_fire_at IS NOT NULL;
-- Jobs that wait for the end of a run of theirs, from which their pause is counted.
CREATE INDEX jobs_pausing ON jobs (id) WHERE is_active AND next_fire_at IS NULL AND schedule ->> 'from' = 'end';
-- Hardly any job has a key, and an entry for those that have none would be written at every fire.
ALTER TABLE jobs DROP CONSTRAINT jobs_key_key;
CREATE UNIQUE INDEX jobs_key_key ON jobs (key) WHERE key IS NOT NULL;
-- The breaker's own clock.
CREATE INDEX jobs_enable_again ON jobs (enable_again_at) WHERE enable_again_at IS NOT NULL;
-- Which jobs a changed calendar concerns.
CREATE INDEX jobs_by_calendar ON jobs USING gin (calendars) WHERE cardinality(calendars) > 0;

CREATE TABLE calendars (
    id          uuid        PRIMARY KEY,
    name        text        NOT NULL UNIQUE CHECK (char_length(name) BETWEEN 1 AND 100),
    definition  jsonb       NOT NULL,
    version     integer     NOT NULL DEFAULT 1,
    modified_at timestamptz NOT NULL,
    modified_by text        NOT NULL
);
COMMENT ON TABLE  calendars IS 'Named sets of days and weekly windows in which jobs that name them do not run.';
COMMENT ON COLUMN calendars.definition IS '{name, zone, dates, windows}.';
COMMENT ON COLUMN calendars.version IS 'Counts edits; an edit names the version it was made from.';

-- One row at most: while it is there, no server fires or releases anything.
CREATE TABLE cluster_pause (
    is_on   boolean     PRIMARY KEY DEFAULT true CHECK (is_on),
    since   timestamptz NOT NULL,
    by_whom text       NOT NULL,
    reason  text        NOT NULL CHECK (char_length(reason) BETWEEN 1 AND 500)
);
COMMENT ON TABLE cluster_pause IS 'The switch that stops every dispatcher, with who threw it and why.';

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

COMMENT ON COLUMN occurrences.is_held IS 'Queued, but waiting for a slot: not to be published yet.';
COMMENT ON COLUMN occurrences.pause_after_seconds IS 'Its end makes the job due again after so many seconds.';
COMMENT ON COLUMN occurrences.rescues IS 'How often it was queued again because its worker fell silent.';
COMMENT ON COLUMN occurrences.on_lost IS 'The job''s rule for that at the time.';
COMMENT ON COLUMN occurrences.heartbeat_timeout_seconds IS 'The job''s own limit of silence at the time.';
COMMENT ON COLUMN occurrences.retry_of IS 'The failed occurrence that it repeats.';
COMMENT ON COLUMN occurrences.cancel_requested_at IS 'When somebody asked for the running occurrence to end.';

-- The republisher: what waits for a slot is not to be published, so it is not in here.
DROP INDEX occurrences_unpublished;
CREATE INDEX occurrences_unpublished ON occurrences (created_at) WHERE published_at IS NULL AND status = 0 AND NOT is_held;

-- Nearly every row becomes Completed, and finding those needs no index: they are wherever one looks. Leaving them out
-- spares the hottest update an entry, and so does one index over the open states where there were two. Filters name the
-- status as a literal, so that these are used.
DROP INDEX occurrences_by_status;
DROP INDEX occurrences_open_by_job;
CREATE INDEX occurrences_open ON occurrences (status, id DESC) WHERE status IN (0, 1, 6);
CREATE INDEX occurrences_by_status ON occurrences (status, id DESC) WHERE status IN (3, 4, 5, 7);
-- A job's failures among its million good runs; the breaker reads this too.
CREATE INDEX occurrences_by_job_status ON occurrences (job_id, status, id DESC) WHERE status IN (3, 4, 5, 6, 7);

-- Occurrences that are counted against each other, while they are open: of jobs that take turns, of jobs with a limit,
-- of jobs that share a key. Small and short-lived, so that counting them never touches the big table, and jobs without
-- such rules never touch this one.
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
COMMENT ON TABLE  slots IS 'Open occurrences that count against a limit: taken ones and waiting ones.';
COMMENT ON COLUMN slots.is_taken IS 'False while the occurrence waits.';
COMMENT ON COLUMN slots.job_limit IS 'At most so many of this job are taken.';
COMMENT ON COLUMN slots.key_limit IS 'At most so many with this key are taken.';
COMMENT ON COLUMN slots.replaces IS 'While it waits, the job''s earlier occurrences are cancelled.';
CREATE INDEX slots_by_job ON slots (job_id);
CREATE INDEX slots_by_key ON slots (key) WHERE key IS NOT NULL;

-- A manual run that was asked for twice with the same key is one run.
CREATE TABLE trigger_keys (
    job_id        uuid        NOT NULL,
    key           text        NOT NULL CHECK (char_length(key) BETWEEN 1 AND 200),
    occurrence_id uuid        NOT NULL,
    created_at    timestamptz NOT NULL,
    PRIMARY KEY (job_id, key)
);
COMMENT ON TABLE trigger_keys IS 'Idempotency keys of manual runs, kept for a week.';
CREATE INDEX trigger_keys_by_age ON trigger_keys (created_at);

-- Failures -----------------------------------------------------------------------------------------------------------

ALTER TABLE failed_occurrences
    ADD COLUMN job_version integer  NOT NULL DEFAULT 1,
    ADD COLUMN worker_id   text     NOT NULL DEFAULT '',
    ADD COLUMN job_type    text     NOT NULL DEFAULT '',
    ADD COLUMN attempt     integer  NOT NULL DEFAULT 1,
    ADD COLUMN retried_as  uuid;
COMMENT ON COLUMN failed_occurrences.cause IS 'failed, permanent, exhausted, timed_out, rejected, poison or lost.';
COMMENT ON COLUMN failed_occurrences.retried_as IS 'The occurrence that repeats it.';
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
COMMENT ON TABLE  dead_letters IS 'Messages that ended in the dead letter queue and belong to no occurrence we know.';
COMMENT ON COLUMN dead_letters.digest IS 'Of the whole body and its source, so that a copy is counted and not stored again.';
COMMENT ON COLUMN dead_letters.body IS 'The first 64 KiB.';
COMMENT ON COLUMN dead_letters.body_bytes IS 'How long it was.';
CREATE INDEX dead_letters_by_age ON dead_letters (received_at);

-- Workers ------------------------------------------------------------------------------------------------------------

ALTER TABLE worker_instances ADD COLUMN running_ids uuid[] NOT NULL DEFAULT '{}';
COMMENT ON COLUMN worker_instances.running_ids IS 'What it said it runs at its last heartbeat.';

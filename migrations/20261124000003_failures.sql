-- What went wrong: late or second starts, reports that could not be read, failed occurrences, and messages that belong to
-- no occurrence.

CREATE TABLE late_starts (
    run_id      uuid        NOT NULL,
    attempt     integer     NOT NULL CHECK (attempt >= 1),
    instance_id text        NOT NULL,
    at          timestamptz NOT NULL,
    is_after_end boolean    NOT NULL,
    PRIMARY KEY (run_id, attempt, instance_id)
);
COMMENT ON TABLE  late_starts IS
    'Starts of attempts that another instance had started before, or whose occurrence had ended before: the claim that prevents both was lost with the data of Redis, or the worker makes none. They cannot be undone, so they are shown.';
COMMENT ON COLUMN late_starts.at IS 'Time of the report, by the clock of the instance.';
COMMENT ON COLUMN late_starts.is_after_end IS 'True if the occurrence had ended when the start became known. Such a row counts as a change of the occurrence.';
CREATE INDEX late_starts_by_age ON late_starts (at);

-- Notes on occurrences: a report of the worker that could not be read, or not in part. The report of an end may be among
-- them, when the row is in the history, which never changes; so a note is a row of its own.
CREATE TABLE run_notes (
    run_id      uuid        NOT NULL,
    attempt     integer     NOT NULL,
    instance_id text        NOT NULL DEFAULT '',
    at          timestamptz NOT NULL,
    text        text        NOT NULL CHECK (octet_length(text) <= 1000),
    PRIMARY KEY (run_id, attempt, instance_id, text)
);
COMMENT ON TABLE  run_notes IS 'Notes about reports of workers that could not be read, shown in the timeline of the occurrence.';
COMMENT ON COLUMN run_notes.run_id IS 'Occurrence.';
COMMENT ON COLUMN run_notes.attempt IS 'Attempt that the report named.';
COMMENT ON COLUMN run_notes.instance_id IS 'Instance that the report named; empty if it could not be read.';
COMMENT ON COLUMN run_notes.at IS 'Time of arrival, by the server''s clock.';
COMMENT ON COLUMN run_notes.text IS 'What could not be read: the field and the reason.';
CREATE INDEX run_notes_by_time ON run_notes (at);

CREATE TABLE failed_occurrences (
    occurrence_id     uuid        PRIMARY KEY,
    job_id            uuid        NOT NULL,
    job_name          text        NOT NULL,
    job_version       integer     NOT NULL,
    worker_id         text        NOT NULL,
    job_type          text        NOT NULL,
    attempt           integer     NOT NULL,
    failed_at         timestamptz NOT NULL,
    cause             text        NOT NULL,
    exception         text,
    fingerprint       text        NOT NULL,
    job_data          jsonb       NOT NULL,
    uniqueness_key    text,
    resolved_at       timestamptz,
    resolved_by       text,
    resolution_note   text,
    resolution_action text,
    retried_as        uuid
);
COMMENT ON TABLE  failed_occurrences IS 'Occurrences that failed for good, until a user resolves them; kept longer than the occurrences.';
COMMENT ON COLUMN failed_occurrences.failed_at IS 'Time at which the server recorded the failure.';
COMMENT ON COLUMN failed_occurrences.cause IS 'failed, permanent, exhausted, timed_out, rejected, poison or lost.';
COMMENT ON COLUMN failed_occurrences.fingerprint IS 'Equal for failures with the same cause, for grouping.';
COMMENT ON COLUMN failed_occurrences.job_data IS 'Input, for a retry.';
COMMENT ON COLUMN failed_occurrences.uniqueness_key IS 'Uniqueness key of the occurrence, which a retry takes again; null for none, and for a message that was given up after its occurrence had ended.';
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

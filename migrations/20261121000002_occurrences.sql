-- Occurrences and their logs. These are the big tables. They are partitioned by day from the first day, so that
-- retention drops partitions and never deletes rows.

CREATE TABLE occurrences (
    id             uuid        NOT NULL,
    created_at     timestamptz NOT NULL,
    job_id         uuid        NOT NULL,
    job_name       text        NOT NULL,
    job_version    integer     NOT NULL,
    worker_id      text        NOT NULL,
    job_type       text        NOT NULL,
    job_data       jsonb       NOT NULL,
    scheduled_for  timestamptz NOT NULL,
    trigger        text        NOT NULL CHECK (trigger IN ('schedule', 'manual', 'api', 'retry')),
    triggered_by   text,
    trigger_reason text,
    status         smallint    NOT NULL CHECK (status BETWEEN 0 AND 7),
    version        integer     NOT NULL DEFAULT 1,
    priority       smallint    NOT NULL CHECK (priority BETWEEN 1 AND 5),
    attempt        integer     NOT NULL DEFAULT 1 CHECK (attempt >= 1),
    max_retries    smallint    NOT NULL DEFAULT 0,
    timeout_seconds integer,
    instance_id    text,
    started_at     timestamptz,
    ended_at       timestamptz,
    duration_ms    bigint      CHECK (duration_ms >= 0),
    result         text,
    exception      text,
    note           text,
    status_changes jsonb       NOT NULL DEFAULT '[]',
    last_heartbeat timestamptz,
    published_at   timestamptz,
    progress       jsonb,
    PRIMARY KEY (id, created_at),
    -- The final statuses 2, 3, 4, 5 and 7 have an end; the open statuses 0, 1 and 6 have none.
    CONSTRAINT occurrences_end_matches_status CHECK ((status IN (2, 3, 4, 5, 7)) = (ended_at IS NOT NULL))
) PARTITION BY RANGE (created_at);

COMMENT ON TABLE  occurrences IS 'Executions of jobs, partitioned by day of created_at.';
COMMENT ON COLUMN occurrences.id IS 'UUIDv7; its timestamp is created_at, so the partition is found from the id.';
COMMENT ON COLUMN occurrences.created_at IS 'Timestamp of the id, to the millisecond.';
COMMENT ON COLUMN occurrences.job_name IS 'Display name of the job at the time of creation.';
COMMENT ON COLUMN occurrences.job_version IS 'Version of the definition that applies.';
COMMENT ON COLUMN occurrences.worker_id IS 'Worker that runs it.';
COMMENT ON COLUMN occurrences.job_type IS 'Job type.';
COMMENT ON COLUMN occurrences.job_data IS 'Input.';
COMMENT ON COLUMN occurrences.scheduled_for IS 'Due time.';
COMMENT ON COLUMN occurrences.trigger IS 'Origin: schedule, manual, api or retry.';
COMMENT ON COLUMN occurrences.triggered_by IS 'User or token that requested it; null for scheduled occurrences.';
COMMENT ON COLUMN occurrences.trigger_reason IS 'Reason for the request.';
COMMENT ON COLUMN occurrences.status IS '0 Queued, 1 Running, 2 Completed, 3 Failed, 4 Cancelled, 5 TimedOut, 6 Unknown, 7 Skipped.';
COMMENT ON COLUMN occurrences.version IS 'Number of changes, so that a reader can determine the newer of two rows.';
COMMENT ON COLUMN occurrences.attempt IS 'Attempt in force, from 1.';
COMMENT ON COLUMN occurrences.instance_id IS 'Worker instance that runs or ran it.';
COMMENT ON COLUMN occurrences.started_at IS 'Start of the latest attempt, by the worker''s clock.';
COMMENT ON COLUMN occurrences.ended_at IS 'End; set exactly in final statuses.';
COMMENT ON COLUMN occurrences.duration_ms IS 'Duration of the latest attempt, in milliseconds.';
COMMENT ON COLUMN occurrences.note IS 'First line of the exception, or the reason for a skip.';
COMMENT ON COLUMN occurrences.status_changes IS 'Status history: [{status, at, attempt, by, note}].';
COMMENT ON COLUMN occurrences.last_heartbeat IS 'Last report of the run, by the server''s clock.';
COMMENT ON COLUMN occurrences.published_at IS 'Time at which the broker confirmed the message; null while it is unsent.';
COMMENT ON COLUMN occurrences.progress IS 'Last reported progress: {percent, message}.';

-- Used by the republisher: occurrences that are committed but not confirmed by the broker.
CREATE INDEX occurrences_unpublished ON occurrences (created_at) WHERE published_at IS NULL AND status = 0;
-- Open occurrences: used by overlap decisions and by the lost run detector.
CREATE INDEX occurrences_open_by_job ON occurrences (job_id) WHERE status IN (0, 1, 6);
-- Used by the page of a job.
CREATE INDEX occurrences_by_job ON occurrences (job_id, id DESC);
-- Used by the list filtered by status. Open statuses are few and final ones many; both are listed newest first.
CREATE INDEX occurrences_by_status ON occurrences (status, id DESC);

CREATE TABLE occurrence_logs (
    occurrence_id uuid        NOT NULL,
    created_at    timestamptz NOT NULL,
    seq           bigint      NOT NULL,
    at            timestamptz NOT NULL,
    level         smallint    NOT NULL CHECK (level BETWEEN 0 AND 3),
    message       text        NOT NULL,
    data          jsonb,
    category      text,
    PRIMARY KEY (occurrence_id, seq, created_at)
) PARTITION BY RANGE (created_at);

COMMENT ON TABLE  occurrence_logs IS 'Log lines of occurrences, partitioned by the day of their occurrence.';
COMMENT ON COLUMN occurrence_logs.created_at IS 'The created_at of the occurrence, so that all its lines are in one partition.';
COMMENT ON COLUMN occurrence_logs.seq IS 'attempt × 1,000,000 + line number; assigned by the worker, so that a duplicate delivery stores no line twice.';
COMMENT ON COLUMN occurrence_logs.at IS 'Time of the line, by the worker''s clock.';
COMMENT ON COLUMN occurrence_logs.level IS '0 debug, 1 info, 2 warn, 3 error.';
COMMENT ON COLUMN occurrence_logs.category IS 'Part of the job that wrote the line.';

CREATE TABLE failed_occurrences (
    occurrence_id     uuid        PRIMARY KEY,
    job_id            uuid        NOT NULL,
    job_name          text        NOT NULL,
    failed_at         timestamptz NOT NULL,
    cause             text        NOT NULL,
    exception         text,
    fingerprint       text        NOT NULL,
    job_data          jsonb       NOT NULL,
    resolved_at       timestamptz,
    resolved_by       text,
    resolution_note   text,
    resolution_action text
);
COMMENT ON TABLE  failed_occurrences IS 'Occurrences that used up their retries, until a user resolves them.';
COMMENT ON COLUMN failed_occurrences.cause IS 'exhausted, permanent, rejected or poison.';
COMMENT ON COLUMN failed_occurrences.fingerprint IS 'Equal for failures with the same cause, for grouping.';

-- Creates the missing partitions of both tables for each day in [from_day, upto_day]. Idempotent, and safe to call from
-- several servers at once: an advisory lock serializes the calls.
CREATE FUNCTION ensure_partitions(from_day date, upto_day date) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    d date := from_day;
    made integer := 0;
    base text;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('milvaion.ensure_partitions'));
    WHILE d <= upto_day LOOP
        FOREACH base IN ARRAY ARRAY['occurrences', 'occurrence_logs'] LOOP
            IF to_regclass(format('%I', base || '_' || to_char(d, 'YYYYMMDD'))) IS NULL THEN
                EXECUTE format(
                    'CREATE TABLE %I PARTITION OF %I FOR VALUES FROM (%L) TO (%L)',
                    base || '_' || to_char(d, 'YYYYMMDD'), base,
                    d::timestamp AT TIME ZONE 'UTC', (d + 1)::timestamp AT TIME ZONE 'UTC');
                made := made + 1;
            END IF;
        END LOOP;
        d := d + 1;
    END LOOP;
    RETURN made;
END $$;
COMMENT ON FUNCTION ensure_partitions(date, date) IS 'Creates missing daily partitions; returns their number.';

-- Number of occurrences that reached a status in a minute. Written in the transaction that changes the status; the
-- dashboard reads this table and never counts the big one. `shard` spreads writers over several rows, so that two
-- servers do not wait for each other on the current minute.
CREATE TABLE stats_minute (
    minute      timestamptz NOT NULL,
    status      smallint    NOT NULL CHECK (status BETWEEN 0 AND 7),
    shard       smallint    NOT NULL DEFAULT 0,
    count       bigint      NOT NULL,
    duration_ms bigint      NOT NULL DEFAULT 0,
    PRIMARY KEY (minute, status, shard)
);
COMMENT ON TABLE  stats_minute IS 'Roll-up of status changes by minute.';
COMMENT ON COLUMN stats_minute.count IS 'Number of occurrences that reached this status in this minute.';
COMMENT ON COLUMN stats_minute.duration_ms IS 'Sum of their durations, in milliseconds, for final statuses.';

-- Occurrences and their logs: the big tables, partitioned by day from the first day, so that retention is dropping a
-- partition and never a DELETE.

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
    -- Final states 2 3 4 5 7 have an end, open states 0 1 6 have none: the state machine, said once more.
    CONSTRAINT occurrences_end_matches_status CHECK ((status IN (2, 3, 4, 5, 7)) = (ended_at IS NOT NULL))
) PARTITION BY RANGE (created_at);

COMMENT ON TABLE  occurrences IS 'One row for each execution of a job, partitioned by day of created_at.';
COMMENT ON COLUMN occurrences.id IS 'UUIDv7; its timestamp is created_at, so the partition is found from the id.';
COMMENT ON COLUMN occurrences.created_at IS 'The timestamp inside the id, to the millisecond.';
COMMENT ON COLUMN occurrences.job_name IS 'The job''s name at that time.';
COMMENT ON COLUMN occurrences.job_version IS 'The definition it follows.';
COMMENT ON COLUMN occurrences.worker_id IS 'The worker it is addressed to.';
COMMENT ON COLUMN occurrences.job_type IS 'What it runs.';
COMMENT ON COLUMN occurrences.job_data IS 'The input it was given.';
COMMENT ON COLUMN occurrences.scheduled_for IS 'When it was due.';
COMMENT ON COLUMN occurrences.trigger IS 'Why it exists: schedule, manual, api, retry.';
COMMENT ON COLUMN occurrences.triggered_by IS 'Who asked, when a person or token did.';
COMMENT ON COLUMN occurrences.trigger_reason IS 'Why they asked.';
COMMENT ON COLUMN occurrences.status IS '0 Queued, 1 Running, 2 Completed, 3 Failed, 4 Cancelled, 5 TimedOut, 6 Unknown, 7 Skipped.';
COMMENT ON COLUMN occurrences.version IS 'Counts changes, so that a reader can tell which of two rows is newer.';
COMMENT ON COLUMN occurrences.attempt IS 'The attempt in force, from 1.';
COMMENT ON COLUMN occurrences.instance_id IS 'The worker instance that has or had it.';
COMMENT ON COLUMN occurrences.started_at IS 'When the latest attempt began, by the worker''s clock.';
COMMENT ON COLUMN occurrences.ended_at IS 'When it ended; set exactly in final states.';
COMMENT ON COLUMN occurrences.duration_ms IS 'How long the latest attempt ran, in milliseconds.';
COMMENT ON COLUMN occurrences.note IS 'First line of the exception, or why it was skipped.';
COMMENT ON COLUMN occurrences.status_changes IS 'Its life so far: [{status, at, attempt, by, note}].';
COMMENT ON COLUMN occurrences.last_heartbeat IS 'The last sign of life of the run, by the server''s clock.';
COMMENT ON COLUMN occurrences.published_at IS 'When the broker confirmed its message; null means it is still to be published.';
COMMENT ON COLUMN occurrences.progress IS '{percent, message}.';

-- The republisher: committed, but not known to have reached the broker.
CREATE INDEX occurrences_unpublished ON occurrences (created_at) WHERE published_at IS NULL AND status = 0;
-- What is open: overlap decisions, and the detector of lost runs.
CREATE INDEX occurrences_open_by_job ON occurrences (job_id) WHERE status IN (0, 1, 6);
-- A job's page.
CREATE INDEX occurrences_by_job ON occurrences (job_id, id DESC);
-- The list filtered by status; open states are few and final ones many, and both want newest first.
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

COMMENT ON TABLE  occurrence_logs IS 'What occurrences wrote, partitioned by the day of their occurrence.';
COMMENT ON COLUMN occurrence_logs.created_at IS 'The created_at of the occurrence: all its lines lie in one partition.';
COMMENT ON COLUMN occurrence_logs.seq IS 'attempt × 1,000,000 + line; given by the worker, so that a second copy stores nothing twice.';
COMMENT ON COLUMN occurrence_logs.at IS 'When it was written, by the worker''s clock.';
COMMENT ON COLUMN occurrence_logs.level IS '0 debug, 1 info, 2 warn, 3 error.';
COMMENT ON COLUMN occurrence_logs.category IS 'Where in the job it came from.';

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
COMMENT ON TABLE  failed_occurrences IS 'Occurrences that used up their attempts, until somebody settles them.';
COMMENT ON COLUMN failed_occurrences.cause IS 'exhausted, permanent, rejected or poison.';
COMMENT ON COLUMN failed_occurrences.fingerprint IS 'Equal for failures with the same cause, for grouping.';

-- Creates the partitions of both tables for every day in [from, upto] that has none. Idempotent, and safe to call from
-- several servers at once: the advisory lock lets one of them work.
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
COMMENT ON FUNCTION ensure_partitions(date, date) IS 'Creates missing daily partitions; returns how many.';

-- One row for each minute and status: how many occurrences became that. Written in the transaction that changes the
-- status; dashboards read this and never count the big table. `shard` spreads writers over several rows, so that two
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
COMMENT ON COLUMN stats_minute.count IS 'How many occurrences became this status in this minute.';
COMMENT ON COLUMN stats_minute.duration_ms IS 'Sum of their durations, for final states.';

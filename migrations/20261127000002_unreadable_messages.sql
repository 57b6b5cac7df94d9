-- What an instance declares in its registration, which parts of it were refused, and its messages that cannot be read.
--
-- A server that does not know the columns writes none of them, so it can run beside this one.

ALTER TABLE worker_instances
    ADD COLUMN protocol           integer     NOT NULL DEFAULT 1,
    ADD COLUMN features           text[]      NOT NULL DEFAULT '{}',
    ADD COLUMN declared           jsonb       NOT NULL DEFAULT '{}',
    ADD COLUMN problems           jsonb       NOT NULL DEFAULT '[]',
    ADD COLUMN unreadable         bigint      NOT NULL DEFAULT 0,
    ADD COLUMN unreadable_at      timestamptz,
    ADD COLUMN unreadable_reason  text        CHECK (octet_length(unreadable_reason) <= 500);
COMMENT ON COLUMN worker_instances.protocol IS 'Version of the protocol that the program implements.';
COMMENT ON COLUMN worker_instances.features IS 'Optional parts of the protocol that the program implements.';
COMMENT ON COLUMN worker_instances.declared IS
    'Rules and schedules that the code of this instance declares: {jobType: {defaults, schedules}}, without what was refused. A job type that declares nothing is left out.';
COMMENT ON COLUMN worker_instances.problems IS
    'Parts of the last registration that were refused: a list of {jobType, schedule, text}.';
COMMENT ON COLUMN worker_instances.unreadable IS
    'Number of messages of the instance, or parts of messages, that could not be read.';
COMMENT ON COLUMN worker_instances.unreadable_at IS 'Time of the last message that could not be read.';
COMMENT ON COLUMN worker_instances.unreadable_reason IS 'Field and reason of the last one.';

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

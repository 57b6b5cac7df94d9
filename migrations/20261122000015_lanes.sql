-- Lanes: a run that was lost with its worker three times begins only when no other such run of that worker has just begun.
-- Whoever ends its process then ends it alone, and those that were beside it are not taken for such a one too.

ALTER TABLE waits ADD COLUMN lane text;
COMMENT ON COLUMN waits.lane IS 'The worker among whose runs it takes turns, because it was lost too often; null: it need not.';

DROP INDEX waits_by_time;
CREATE INDEX waits_by_time ON waits (until) WHERE lane IS NULL;
CREATE INDEX waits_by_lane ON waits (lane, until) WHERE lane IS NOT NULL;

CREATE TABLE lanes (
    worker_id     text        PRIMARY KEY,
    occurrence_id uuid        NOT NULL,
    created_at    timestamptz NOT NULL,
    attempt       integer     NOT NULL,
    since         timestamptz NOT NULL
);
COMMENT ON TABLE  lanes IS 'Whose turn it is among the runs of a worker that were lost too often; one row for each worker that ever had one.';
COMMENT ON COLUMN lanes.created_at IS 'The occurrence''s, so that its partition is found.';
COMMENT ON COLUMN lanes.attempt IS 'The attempt that has the turn; a later one would have to take a new turn.';
COMMENT ON COLUMN lanes.since IS 'When it was let go.';

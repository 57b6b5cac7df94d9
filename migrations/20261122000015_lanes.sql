-- Quarantine: runs that were lost with their worker three times are started one after the other, so that a poison run
-- ends its process alone, and the runs beside it are not failed as poison too. The column and the table named "lane"
-- hold it.

ALTER TABLE waits ADD COLUMN lane text;
COMMENT ON COLUMN waits.lane IS 'Worker in whose quarantine the run waits; null if it is not quarantined.';

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
COMMENT ON TABLE  lanes IS 'Quarantines: the run that was released last, one row for each worker that ever had a quarantined run.';
COMMENT ON COLUMN lanes.created_at IS 'The created_at of the occurrence, which locates its partition.';
COMMENT ON COLUMN lanes.attempt IS 'Attempt that was released; a later attempt needs a new release.';
COMMENT ON COLUMN lanes.since IS 'Time of the release.';

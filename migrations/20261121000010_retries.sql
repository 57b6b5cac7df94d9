-- Retries: a failed attempt with another one left is no end. Its occurrence is queued again and waits here, in no
-- worker's place and in no queue of the broker's, so that a thousand that wait cost nobody anything.

ALTER TABLE occurrences
    ADD COLUMN failures    smallint NOT NULL DEFAULT 0 CHECK (failures >= 0),
    ADD COLUMN waits_until timestamptz;

COMMENT ON COLUMN occurrences.failures IS 'How many attempts have failed and were followed by another.';
COMMENT ON COLUMN occurrences.waits_until IS 'Queued, but not before this instant: a retry, or what was handed back for a while.';

CREATE TABLE waits (
    occurrence_id uuid        PRIMARY KEY,
    created_at    timestamptz NOT NULL,
    until         timestamptz NOT NULL
);
COMMENT ON TABLE  waits IS 'Occurrences whose next attempt is not to begin yet; small and short-lived, as slots are.';
COMMENT ON COLUMN waits.created_at IS 'The occurrence''s, so that its partition is found.';
COMMENT ON COLUMN waits.until IS 'When it is let go.';
CREATE INDEX waits_by_time ON waits (until);

-- Retries: a failed attempt with a retry left does not end its occurrence. The occurrence is queued again and delayed
-- in this table. It uses no worker permit and no queue of the broker, so a thousand pending retries use no other
-- resources.

ALTER TABLE occurrences
    ADD COLUMN failures    smallint NOT NULL DEFAULT 0 CHECK (failures >= 0),
    ADD COLUMN waits_until timestamptz;

COMMENT ON COLUMN occurrences.failures IS 'Number of failed attempts that were followed by a retry.';
COMMENT ON COLUMN occurrences.waits_until IS 'Time until which a queued occurrence is delayed: a retry, or an attempt that was handed back with a delay.';

CREATE TABLE waits (
    occurrence_id uuid        PRIMARY KEY,
    created_at    timestamptz NOT NULL,
    until         timestamptz NOT NULL
);
COMMENT ON TABLE  waits IS 'Delayed occurrences; small, with short-lived rows, like slots.';
COMMENT ON COLUMN waits.created_at IS 'The created_at of the occurrence, which locates its partition.';
COMMENT ON COLUMN waits.until IS 'Time until which the occurrence is delayed.';
CREATE INDEX waits_by_time ON waits (until);

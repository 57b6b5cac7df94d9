-- An attempt that two instances have started, because a message came twice and nobody claimed it: rare, impossible to
-- undo, and therefore counted. Both starts stand in status_changes.
ALTER TABLE occurrences ADD COLUMN duplicate_starts smallint NOT NULL DEFAULT 0 CHECK (duplicate_starts >= 0);
COMMENT ON COLUMN occurrences.duplicate_starts IS 'How many starts of its attempts were not the first one of their attempt.';

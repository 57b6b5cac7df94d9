-- Duplicate starts: attempts that two instances have started, because a message was delivered twice and the claim did
-- not prevent it. They are rare and cannot be undone, so they are counted. Both starts are recorded in status_changes.
ALTER TABLE occurrences ADD COLUMN duplicate_starts smallint NOT NULL DEFAULT 0 CHECK (duplicate_starts >= 0);
COMMENT ON COLUMN occurrences.duplicate_starts IS 'Number of starts that were not the first start of their attempt.';

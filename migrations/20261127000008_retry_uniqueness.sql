-- Uniqueness keys of failures: a retry takes the key of the failed occurrence again, and is refused while another one has it.
--
-- A server that does not know the columns leaves them null, and retries its failures without their keys, so it can run
-- beside this one.

ALTER TABLE runs ADD COLUMN uniqueness_key text;
COMMENT ON COLUMN runs.uniqueness_key IS 'Uniqueness key that it has taken; null for none.';
ALTER TABLE failed_occurrences ADD COLUMN uniqueness_key text;
COMMENT ON COLUMN failed_occurrences.uniqueness_key IS 'Uniqueness key of the occurrence, which a retry takes again; null for none, and for a message that was given up after its occurrence had ended.';

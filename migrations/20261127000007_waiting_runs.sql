-- The end of occurrences that wait for too long looks for old ones each minute. Those that are sent or unsent are found by
-- runs_published and runs_unsent. Without this index, those that wait for a slot would be found only by reading all of them,
-- or all open occurrences, of which ten million may be delayed.
--
-- Only occurrences that wait for a slot are in it, so the dispatch of others does not pay for it.
CREATE INDEX runs_waiting_since ON runs (scheduled_for) WHERE NOT has_slot AND slot_group IS NOT NULL;

-- The search for lost messages counts the queued occurrences whose message the broker has, every few seconds. Without this
-- index it would read all open occurrences, and ten million delayed ones, which have no message, would cost it seconds.
--
-- The confirm of a message and the start of a run write all indexes anyway (see runs_unsent and runs_begun_or_quarantined).
-- The times ascend, so the entries are appended.
CREATE INDEX runs_published ON runs (published_at) WHERE status = 'queued' AND published_at IS NOT NULL;

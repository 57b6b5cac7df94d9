-- Problems that an instance reports about itself, so that users see them on the pages and not only in its log.
ALTER TABLE worker_instances ADD COLUMN notice text CHECK (octet_length(notice) <= 500);
COMMENT ON COLUMN worker_instances.notice IS 'Problem that the instance reported at its last heartbeat; null if there was none.';

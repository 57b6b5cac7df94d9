-- What an instance says is wrong with it, so that it is read where people look and not only in its own log.
ALTER TABLE worker_instances ADD COLUMN notice text CHECK (octet_length(notice) <= 500);
COMMENT ON COLUMN worker_instances.notice IS 'What was wrong with it at its last heartbeat, in its own words; null when nothing was.';

-- Instances that announce that they stop.
--
-- A run that is lost with such an instance was not lost by its own fault: the process was ended from outside before it could
-- hand the run back. A server that does not know the column leaves it false, and counts the loss as before.

ALTER TABLE worker_instances ADD COLUMN stopping boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN worker_instances.stopping IS
    'True if the last heartbeat announced that the instance stops: it takes no new work and ends or hands back what it runs.';

-- Cancelling what runs takes until its worker has heard of it, so the wish is repeated until the occurrence has ended.
-- Few rows are ever in here, and the task that repeats asks each second while there are any.
CREATE INDEX occurrences_cancel_requested ON occurrences (created_at)
    WHERE cancel_requested_at IS NOT NULL AND status IN (0, 1, 6);

-- Cancelling a running occurrence takes until its worker has received the request, so the request is repeated until the
-- occurrence has ended. The index holds few rows; the task that repeats requests reads it each second while there are
-- any.
CREATE INDEX occurrences_cancel_requested ON occurrences (created_at)
    WHERE cancel_requested_at IS NOT NULL AND status IN (0, 1, 6);

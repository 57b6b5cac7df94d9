-- Delayed occurrences of a job: its page counts them, the list shows them, and one request cancels all of them.

-- A job may have millions of them beside as many that are ready, so none of the other indexes finds some without reading
-- many. Only delayed rows are in this one, and a dispatch creates none.
CREATE INDEX runs_delayed_by_job ON runs (job_id, id) WHERE not_before IS NOT NULL;

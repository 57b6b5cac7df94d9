-- Lists of a time window hold what ended in it. Nearly all of that was created at most ten minutes before the window and
-- is found by its id. This index finds the rest: it holds only occurrences that took longer, so that the update that
-- ends a short run writes no entry. It cannot be built CONCURRENTLY, because the table is partitioned; building it reads
-- each partition once.
CREATE INDEX occurrences_slow_end ON occurrences (ended_at) WHERE ended_at - created_at > interval '10 minutes';

-- Occurrences: the open ones in `runs`, the ended ones in `history`.
--
-- An open occurrence changes several times and is looked for in many ways: unsent, delayed, waiting for a slot, running.
-- An ended one never changes. One table for both would carry the indexes of the open ones through millions of rows. The
-- end of an occurrence moves its row, so the row is kept small: inputs stay where they are, and results and exceptions
-- are written with the end.

CREATE TYPE run_status AS ENUM
    ('queued', 'running', 'completed', 'failed', 'cancelled', 'timed-out', 'unknown', 'skipped');
COMMENT ON TYPE run_status IS 'Status of an occurrence. The order is that of the numbers on the wire, from 0.';

CREATE TABLE runs (
    id             uuid        PRIMARY KEY,
    created_at     timestamptz NOT NULL,
    job_id         uuid        NOT NULL,
    job_name       text        NOT NULL,
    job_version    integer     NOT NULL,
    worker_id      text        NOT NULL,
    job_type       text        NOT NULL,
    own_input      jsonb       CHECK (octet_length(own_input::text) <= 1024),
    has_long_input boolean     NOT NULL DEFAULT false,
    scheduled_for  timestamptz NOT NULL,
    trigger        text        NOT NULL CHECK (trigger IN ('schedule', 'manual', 'api', 'retry', 'enqueue')),
    triggered_by   text,
    trigger_token  text        DEFAULT nullif(current_setting('milvaion.token', true), ''),
    trigger_reason text,
    retry_of       uuid,
    parent_id      uuid,
    traceparent    text        CONSTRAINT runs_traceparent_is_well_formed
        CHECK (traceparent ~ '^00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]$'),
    uniqueness_key text,
    status         run_status  NOT NULL CHECK (status IN ('queued', 'running', 'unknown')),
    version        integer     NOT NULL DEFAULT 1,
    priority       smallint    NOT NULL CHECK (priority BETWEEN 1 AND 5),
    attempt        integer     NOT NULL DEFAULT 1 CHECK (attempt >= 1),
    failures       smallint    NOT NULL DEFAULT 0 CHECK (failures >= 0),
    requeues       smallint    NOT NULL DEFAULT 0 CHECK (requeues >= 0),
    max_retries    smallint    NOT NULL DEFAULT 0,
    timeout_seconds integer,
    on_lost        text        NOT NULL DEFAULT 'requeue',
    heartbeat_timeout_seconds integer,
    pause_after_seconds bigint,
    publish_after  timestamptz,
    published_at   timestamptz,
    in_critical_queue boolean  NOT NULL DEFAULT false,
    not_before     timestamptz,
    start_before   timestamptz,
    is_quarantined boolean     NOT NULL DEFAULT false,
    slot_group     uuid,
    slot_limit     smallint,
    slot_key       text,
    slot_key_limit smallint,
    has_slot       boolean     NOT NULL DEFAULT true,
    replaces       boolean     NOT NULL DEFAULT false,
    instance_id    text,
    started_at     timestamptz,
    begun_at       timestamptz,
    last_heartbeat timestamptz,
    progress       jsonb,
    progress_at    timestamptz,
    exception      text,
    note           text,
    status_changes jsonb       NOT NULL DEFAULT '[]',
    cancel_requested_at timestamptz,
    cancel_requested_by text,
    -- A message must not be sent while its run waits for a slot or for an instant, and needs none while it runs.
    CONSTRAINT runs_only_ready_ones_are_sent
        CHECK (publish_after IS NULL OR (status = 'queued' AND has_slot AND not_before IS NULL))
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
        autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);

COMMENT ON TABLE  runs IS 'Open occurrences: Queued, Running and Unknown ones.';
COMMENT ON COLUMN runs.id IS 'UUIDv7; its timestamp is created_at.';
COMMENT ON COLUMN runs.created_at IS 'Timestamp of the id, to the millisecond.';
COMMENT ON COLUMN runs.job_name IS 'Display name of the job at the time of creation.';
COMMENT ON COLUMN runs.job_version IS 'Version of the definition that applies.';
COMMENT ON COLUMN runs.worker_id IS 'Worker that runs it.';
COMMENT ON COLUMN runs.job_type IS 'Job type.';
COMMENT ON COLUMN runs.own_input IS 'Input of this occurrence alone, up to 1 KiB; null if it uses the input of its job version or has a longer one.';
COMMENT ON COLUMN runs.has_long_input IS 'True if its own input is in run_inputs.';
COMMENT ON COLUMN runs.scheduled_for IS 'Due time.';
COMMENT ON COLUMN runs.trigger IS 'Origin: schedule, manual, api, retry or enqueue.';
COMMENT ON COLUMN runs.triggered_by IS 'User or token that requested it; null for scheduled occurrences.';
COMMENT ON COLUMN runs.trigger_token IS
    'API token of the request that created it, as name and last characters of its secret; null if no token did. The server sets it for the transaction of a request.';
COMMENT ON COLUMN runs.trigger_reason IS 'Reason for the request.';
COMMENT ON COLUMN runs.retry_of IS 'Failed occurrence that this one retries.';
COMMENT ON COLUMN runs.parent_id IS 'Occurrence that enqueued it; null if none did. It may have been deleted since.';
-- Nearly all occurrences have no trace here: the trace of one that no request created follows from its id. A null takes no
-- space in the row, so the busiest table grows by nothing.
COMMENT ON COLUMN runs.traceparent IS
    'Position in the trace of the request that created it, as a W3C traceparent; null if its trace is its own, with its id as the trace id.';
COMMENT ON COLUMN runs.uniqueness_key IS 'Uniqueness key that it has taken; null for none.';
COMMENT ON COLUMN runs.version IS 'Number of changes, so that a reader can determine the newer of two rows.';
COMMENT ON COLUMN runs.attempt IS 'Attempt in force, from 1.';
COMMENT ON COLUMN runs.failures IS 'Number of failed attempts that were followed by a retry.';
COMMENT ON COLUMN runs.requeues IS 'Number of times it was requeued as a lost run.';
COMMENT ON COLUMN runs.on_lost IS 'Rule of the job for lost runs at the time of creation.';
COMMENT ON COLUMN runs.heartbeat_timeout_seconds IS 'Heartbeat timeout of the job at the time of creation, in seconds.';
COMMENT ON COLUMN runs.pause_after_seconds IS 'Time from the end of the occurrence to the next due time of its job, in seconds.';
COMMENT ON COLUMN runs.publish_after IS
    'Time from which its message may be sent; null if the broker has confirmed the message, or if it must not be sent yet.';
COMMENT ON COLUMN runs.published_at IS
    'Time at which the broker confirmed the message; null while it is unsent. Beside publish_after, it is unsent too: the time at which a bundle with it was rejected whose confirm was not stored before, and counts no more.';
-- A critical run may be in one of two queues, and the search for lost messages compares each with its own runs.
COMMENT ON COLUMN runs.in_critical_queue IS
    'True if the message that the broker confirmed last was sent to the queue of critical runs; of no meaning while the message is unsent.';
COMMENT ON COLUMN runs.not_before IS 'Time until which a queued occurrence is delayed: a retry, or an attempt that was handed back.';
COMMENT ON COLUMN runs.start_before IS
    'Time by which a worker must begin the first attempt, by the start limit of the job at the time of creation; null for no limit.';
COMMENT ON COLUMN runs.is_quarantined IS 'True if it was lost so often that it runs beside no other such run of its worker.';
COMMENT ON COLUMN runs.slot_group IS 'Its job, if the number of concurrent occurrences of the job is limited.';
COMMENT ON COLUMN runs.slot_limit IS 'Maximum number of taken slots in the group; null means no limit but that of the key.';
COMMENT ON COLUMN runs.slot_key IS 'Concurrency key.';
COMMENT ON COLUMN runs.slot_key_limit IS 'Maximum number of taken slots with the key.';
COMMENT ON COLUMN runs.has_slot IS 'False while it waits for a slot.';
COMMENT ON COLUMN runs.replaces IS 'True if earlier occurrences of the job are cancelled while this one waits.';
COMMENT ON COLUMN runs.instance_id IS 'Worker instance that runs it.';
COMMENT ON COLUMN runs.started_at IS 'Start of the attempt, by the worker''s clock.';
COMMENT ON COLUMN runs.begun_at IS 'Time at which the server stored that the attempt runs; null before and for another attempt.';
COMMENT ON COLUMN runs.last_heartbeat IS 'Last report of the run, by the server''s clock.';
COMMENT ON COLUMN runs.progress IS 'Last reported progress: {percent, message}.';
COMMENT ON COLUMN runs.progress_at IS 'Time of that report, by the worker''s clock; an earlier one that arrives later changes nothing.';
COMMENT ON COLUMN runs.exception IS 'Exception of the previous attempt.';
COMMENT ON COLUMN runs.note IS 'First line of the exception, or the reason for a cancellation request.';
COMMENT ON COLUMN runs.status_changes IS 'Status history: [{status, at, attempt, by, note}], with the numbers of the statuses.';
COMMENT ON COLUMN runs.cancel_requested_at IS 'Time at which a user requested the cancellation of the running occurrence.';

-- No index names a column that a heartbeat or a progress report changes. An index that names the status makes each change
-- of it write all indexes anew, so there is one, and the start of a run is the only update that pays for it.
-- No second index has the id without a condition: while the table is empty, PostgreSQL could not tell it from the primary
-- key, and would keep a plan that reads all of it for each row. The newest occurrences of a job are therefore found by
-- the time of their creation, which is the timestamp of the id.
CREATE INDEX runs_by_job ON runs (job_id, created_at);
CREATE INDEX runs_begun_or_quarantined ON runs (id) WHERE status <> 'queued' OR is_quarantined;
CREATE INDEX runs_unsent ON runs (publish_after) WHERE publish_after IS NOT NULL;
CREATE INDEX runs_delayed ON runs (not_before) WHERE not_before IS NOT NULL;
CREATE INDEX runs_cancel_requested ON runs (cancel_requested_at) WHERE cancel_requested_at IS NOT NULL;
-- Queues for a slot may be long, so what waits and what has a slot are looked up apart.
CREATE INDEX runs_waiting ON runs (slot_group, priority DESC, id) WHERE NOT has_slot AND slot_group IS NOT NULL;
CREATE INDEX runs_replacing ON runs (slot_group, id DESC) WHERE replaces AND NOT has_slot AND slot_group IS NOT NULL;
CREATE INDEX runs_with_slot ON runs (slot_group) WHERE has_slot AND slot_group IS NOT NULL;
CREATE INDEX runs_with_key ON runs (slot_key) WHERE has_slot AND slot_key IS NOT NULL;
-- The children of an occurrence. Nearly no row has a parent, so nearly no row is in this index.
CREATE INDEX runs_by_parent ON runs (parent_id, id) WHERE parent_id IS NOT NULL;
-- The page of a job counts its delayed occurrences, the list shows them, and one request cancels all of them. A job may have
-- millions of them beside as many that are ready, so none of the other indexes finds some without reading many. Only
-- delayed rows are in this one, and a dispatch creates none.
CREATE INDEX runs_delayed_by_job ON runs (job_id, id) WHERE not_before IS NOT NULL;
-- The search for lost messages counts the queued occurrences whose message the broker has, every few seconds. Without this
-- index it would read all open occurrences, and ten million delayed ones, which have no message, would cost it seconds.
--
-- The confirm of a message and the start of a run write all indexes anyway (see runs_unsent and runs_begun_or_quarantined).
-- The times ascend, so the entries are appended.
CREATE INDEX runs_published ON runs (published_at) WHERE status = 'queued' AND published_at IS NOT NULL;
-- The end of occurrences that wait for too long looks for old ones every few seconds. Those that are sent or unsent are
-- found by runs_published and runs_unsent. Without this index, those that wait for a slot would be found only by reading all
-- of them, or all open occurrences, of which ten million may be delayed.
--
-- Only occurrences that wait for a slot are in it, so the dispatch of others does not pay for it.
CREATE INDEX runs_waiting_since ON runs (scheduled_for) WHERE NOT has_slot AND slot_group IS NOT NULL;
-- The occurrences that have passed their start limit, for the same task. Only first attempts with a limit are in it, so the
-- dispatch of others does not pay for it. An attempt changes only with the status or the delay, which are in indexes already.
CREATE INDEX runs_start_before ON runs (start_before, id)
    WHERE start_before IS NOT NULL AND status = 'queued' AND attempt = 1;

CREATE TABLE run_inputs (
    run_id     uuid        NOT NULL,
    created_at timestamptz NOT NULL,
    input      jsonb       NOT NULL CHECK (octet_length(input::text) <= 131072),
    PRIMARY KEY (run_id, created_at)
) PARTITION BY RANGE (created_at);
COMMENT ON TABLE  run_inputs IS 'Inputs over 1 KiB of single occurrences. Written once; the end of the occurrence does not move them.';
COMMENT ON COLUMN run_inputs.created_at IS 'The created_at of the occurrence.';

CREATE TABLE receipts (
    run_id     uuid        NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (run_id, created_at)
) PARTITION BY RANGE (created_at);
COMMENT ON TABLE  receipts IS
    'Ids of requested occurrences, kept for seven days. A request that arrives again finds its id here, even if its occurrence has ended meanwhile.';
COMMENT ON COLUMN receipts.created_at IS 'The created_at of the occurrence.';

CREATE TABLE run_uniqueness (
    job_id     uuid        NOT NULL,
    key        text        NOT NULL CHECK (char_length(key) BETWEEN 1 AND 200),
    run_id     uuid,
    until      timestamptz,
    claimed_at timestamptz NOT NULL,
    PRIMARY KEY (job_id, key)
) WITH (fillfactor = 70);
COMMENT ON TABLE  run_uniqueness IS
    'Uniqueness keys: a key of a job is taken while the occurrence of its row is open, and until a time after its creation.';
COMMENT ON COLUMN run_uniqueness.job_id IS 'Job of the occurrence.';
COMMENT ON COLUMN run_uniqueness.key IS 'Uniqueness key.';
COMMENT ON COLUMN run_uniqueness.run_id IS 'Occurrence that took the key last; null if none did.';
COMMENT ON COLUMN run_uniqueness.until IS 'Time until which the key is taken even if the occurrence has ended; null for no such time.';
COMMENT ON COLUMN run_uniqueness.claimed_at IS
    'Time of the last request for the key. A row that is deleted is older than an hour, so no request can be under way.';

CREATE TABLE run_checkpoints (
    run_id      uuid        PRIMARY KEY,
    attempt     integer     NOT NULL CHECK (attempt >= 1),
    checkpoint  jsonb       NOT NULL CHECK (octet_length(checkpoint::text) <= 65536),
    reported_at timestamptz NOT NULL,
    stored_at   timestamptz NOT NULL
) WITH (fillfactor = 70);
COMMENT ON TABLE  run_checkpoints IS 'Last checkpoints of occurrences, for their next attempts. Deleted some time after the end.';
COMMENT ON COLUMN run_checkpoints.run_id IS 'Occurrence.';
COMMENT ON COLUMN run_checkpoints.attempt IS 'Attempt that reported it.';
COMMENT ON COLUMN run_checkpoints.checkpoint IS 'The value, up to 32 KiB as the worker wrote it.';
COMMENT ON COLUMN run_checkpoints.reported_at IS 'Time of the report, by the worker''s clock; an earlier one that arrives later changes nothing.';
COMMENT ON COLUMN run_checkpoints.stored_at IS 'Time at which the server stored it.';
CREATE INDEX run_checkpoints_by_age ON run_checkpoints (stored_at);

CREATE FUNCTION run_checkpoint(run_id uuid, attempt integer) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN attempt > 1 THEN (SELECT c.checkpoint FROM run_checkpoints c WHERE c.run_id = $1) END
$$;
COMMENT ON FUNCTION run_checkpoint IS 'Returns the last checkpoint of an occurrence for its next attempt; null for the first attempt.';

CREATE TABLE history (
    id             uuid        NOT NULL,
    created_at     timestamptz NOT NULL,
    job_id         uuid        NOT NULL,
    job_name       text        NOT NULL,
    job_version    integer     NOT NULL,
    worker_id      text        NOT NULL,
    job_type       text        NOT NULL,
    own_input      jsonb,
    has_long_input boolean     NOT NULL DEFAULT false,
    scheduled_for  timestamptz NOT NULL,
    trigger        text        NOT NULL,
    triggered_by   text,
    trigger_token  text        DEFAULT nullif(current_setting('milvaion.token', true), ''),
    trigger_reason text,
    retry_of       uuid,
    parent_id      uuid,
    traceparent    text,
    status         run_status  NOT NULL CHECK (status IN ('completed', 'failed', 'cancelled', 'timed-out', 'skipped')),
    version        integer     NOT NULL,
    priority       smallint    NOT NULL,
    attempt        integer     NOT NULL,
    failures       smallint    NOT NULL DEFAULT 0,
    requeues       smallint    NOT NULL DEFAULT 0,
    max_retries    smallint    NOT NULL,
    timeout_seconds integer,
    published_at   timestamptz,
    instance_id    text,
    started_at     timestamptz,
    ended_at       timestamptz NOT NULL,
    duration_ms    bigint      CHECK (duration_ms >= 0),
    progress       jsonb,
    result         text,
    exception      text,
    note           text,
    status_changes jsonb       NOT NULL,
    cancel_requested_at timestamptz,
    cancel_requested_by text,
    filed_at       timestamptz NOT NULL,
    PRIMARY KEY (id, filed_at)
) PARTITION BY RANGE (filed_at);

COMMENT ON TABLE  history IS
    'Ended occurrences. Rows are only inserted. Partitioned by the time at which the server recorded the end, so that no row is ever too late for its partition.';
COMMENT ON COLUMN history.parent_id IS 'As in runs.';
COMMENT ON COLUMN history.traceparent IS 'As in runs.';
COMMENT ON COLUMN history.trigger_token IS 'As in runs. The default is for occurrences that are skipped when they are created.';
COMMENT ON COLUMN history.ended_at IS 'End, by the worker''s clock if a worker ended it.';
COMMENT ON COLUMN history.duration_ms IS 'Duration of the latest attempt, in milliseconds.';
COMMENT ON COLUMN history.result IS 'Return value of the job.';
COMMENT ON COLUMN history.exception IS 'Error text of the latest attempt.';
COMMENT ON COLUMN history.note IS 'First line of the exception, or the reason for a skip or a cancellation.';
COMMENT ON COLUMN history.filed_at IS 'Time at which the server recorded the end.';

-- Used by the page of a job.
CREATE INDEX history_by_job ON history (job_id, id DESC);
-- Nearly every row is Completed, and finding those needs no index.
CREATE INDEX history_by_status ON history (status, id DESC) WHERE status IN ('failed', 'cancelled', 'timed-out', 'skipped');
-- The failures of a job among its million completed runs.
CREATE INDEX history_by_job_status ON history (job_id, status, id DESC)
    WHERE status IN ('failed', 'cancelled', 'timed-out', 'skipped');
-- Lists of a time window hold what ended in it. Nearly all of that was created at most ten minutes before the window and
-- is found by its id; this index finds the rest.
CREATE INDEX history_slow_end ON history (ended_at) WHERE ended_at - created_at > interval '10 minutes';
-- The children of an occurrence.
CREATE INDEX history_by_parent ON history (parent_id, id) WHERE parent_id IS NOT NULL;

CREATE FUNCTION run_input(run_id uuid, own_input jsonb, has_long_input boolean, job_id uuid, job_version integer)
    RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN own_input IS NOT NULL THEN own_input
                WHEN has_long_input THEN (SELECT i.input FROM run_inputs i WHERE i.run_id = $1 LIMIT 1)
                ELSE (SELECT v.definition -> 'jobData' FROM job_versions v WHERE v.job_id = $4 AND v.version = $5) END
$$;
COMMENT ON FUNCTION run_input IS 'Returns the input of an occurrence; null if its retention has ended.';

CREATE VIEW occurrences AS
    SELECT id, created_at, job_id, job_name, job_version, worker_id, job_type,
           run_input(id, own_input, has_long_input, job_id, job_version) AS job_data,
           scheduled_for, trigger, triggered_by, trigger_reason, retry_of, status, version, priority, attempt, failures,
           requeues, max_retries, timeout_seconds,
           CASE WHEN publish_after IS NULL THEN published_at END AS published_at, not_before,
           status = 'queued' AND (not_before IS NOT NULL OR NOT has_slot) AS is_held,
           instance_id, started_at, NULL::timestamptz AS ended_at, NULL::bigint AS duration_ms, last_heartbeat, progress,
           NULL::text AS result, exception, note, status_changes, cancel_requested_at, cancel_requested_by,
           'infinity'::timestamptz AS filed_at, traceparent, parent_id, trigger_token
      FROM runs
    UNION ALL
    SELECT id, created_at, job_id, job_name, job_version, worker_id, job_type,
           run_input(id, own_input, has_long_input, job_id, job_version),
           scheduled_for, trigger, triggered_by, trigger_reason, retry_of, status, version, priority, attempt, failures,
           requeues, max_retries, timeout_seconds, published_at, NULL::timestamptz,
           false,
           instance_id, started_at, ended_at, duration_ms, filed_at, progress,
           result, exception, note, status_changes, cancel_requested_at, cancel_requested_by,
           filed_at, traceparent, parent_id, trigger_token
      FROM history;
COMMENT ON VIEW occurrences IS 'All occurrences, open and ended. Lists, pages and exports read this view.';
COMMENT ON COLUMN occurrences.is_held IS 'True while its message must not be sent: it is delayed or waits for a slot.';
COMMENT ON COLUMN occurrences.filed_at IS 'Time at which the server recorded the end; infinity for an open occurrence.';
COMMENT ON COLUMN occurrences.traceparent IS 'As in runs.';
COMMENT ON COLUMN occurrences.parent_id IS 'As in runs.';
COMMENT ON COLUMN occurrences.trigger_token IS 'As in runs.';

CREATE TABLE occurrence_logs (
    occurrence_id uuid        NOT NULL,
    arrived_at    timestamptz NOT NULL,
    seq           bigint      NOT NULL,
    at            timestamptz NOT NULL,
    level         smallint    NOT NULL CHECK (level BETWEEN 0 AND 3),
    message       text        NOT NULL,
    data          jsonb
) PARTITION BY RANGE (arrived_at);
COMMENT ON TABLE  occurrence_logs IS
    'Log lines of occurrences, partitioned by arrival. A line that was delivered twice may be stored twice; readers take one row for each number.';
COMMENT ON COLUMN occurrence_logs.arrived_at IS 'Time at which the server stored the line.';
COMMENT ON COLUMN occurrence_logs.seq IS 'attempt × 1,000,000 + line number; assigned by the worker.';
COMMENT ON COLUMN occurrence_logs.at IS 'Time of the line, by the worker''s clock.';
COMMENT ON COLUMN occurrence_logs.level IS '0 debug, 1 info, 2 warn, 3 error.';
CREATE INDEX occurrence_logs_by_occurrence ON occurrence_logs (occurrence_id, seq);

-- Two requests for a manual run with the same key create one run.
CREATE TABLE trigger_keys (
    job_id        uuid        NOT NULL,
    key           text        NOT NULL CHECK (char_length(key) BETWEEN 1 AND 200),
    occurrence_id uuid        NOT NULL,
    created_at    timestamptz NOT NULL,
    PRIMARY KEY (job_id, key)
);
COMMENT ON TABLE trigger_keys IS 'Idempotency keys of manual runs, kept for seven days.';
CREATE INDEX trigger_keys_by_age ON trigger_keys (created_at);

-- Counts of reached statuses by minute. They are appended and folded later, because updates of one row per minute would
-- make servers wait for each other. The dashboard reads them and never counts occurrences.
CREATE TABLE stats_folded (
    minute      timestamptz NOT NULL,
    status      run_status  NOT NULL,
    count       bigint      NOT NULL,
    duration_ms bigint      NOT NULL,
    PRIMARY KEY (minute, status)
);
COMMENT ON TABLE  stats_folded IS 'Number of occurrences that reached a status in a minute, without the latest.';
COMMENT ON COLUMN stats_folded.count IS 'Number of occurrences.';
COMMENT ON COLUMN stats_folded.duration_ms IS 'Sum of their durations, in milliseconds, for final statuses.';

-- Rows live for some seconds, so autovacuum must not wait until a fifth of a table that is empty most of the time is dead.
CREATE TABLE stats_deltas (
    minute      timestamptz NOT NULL,
    status      run_status  NOT NULL,
    count       bigint      NOT NULL,
    duration_ms bigint      NOT NULL DEFAULT 0
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
        vacuum_truncate = off);
COMMENT ON TABLE  stats_deltas IS 'Counts that are not folded into stats_folded yet; written in the statement that changes the statuses.';
COMMENT ON COLUMN stats_deltas.count IS 'Number of occurrences.';
COMMENT ON COLUMN stats_deltas.duration_ms IS 'Sum of their durations, in milliseconds, for final statuses.';

CREATE VIEW stats_minute AS
    SELECT minute, status, sum(count)::bigint AS count, sum(duration_ms)::bigint AS duration_ms
      FROM (SELECT * FROM stats_folded UNION ALL SELECT * FROM stats_deltas) both_parts
     GROUP BY minute, status;
COMMENT ON VIEW stats_minute IS 'Number of occurrences that reached a status in a minute.';

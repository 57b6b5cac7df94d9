-- Workers, their instances and their job types, as the workers report them.

CREATE TABLE workers (
    id            text        PRIMARY KEY CHECK (id ~ '^[A-Za-z0-9._-]{1,100}$'),
    first_seen_at timestamptz NOT NULL,
    last_seen_at  timestamptz NOT NULL
);
COMMENT ON TABLE workers IS 'Groups of worker processes. Jobs are addressed to a worker.';

CREATE TABLE worker_instances (
    id                text        PRIMARY KEY CHECK (char_length(id) BETWEEN 1 AND 200),
    worker_id         text        NOT NULL REFERENCES workers (id) ON DELETE CASCADE,
    host              text        NOT NULL DEFAULT '',
    pid               integer     NOT NULL DEFAULT 0,
    version           text        NOT NULL DEFAULT '',
    capacity          integer     NOT NULL DEFAULT 0,
    running           integer     NOT NULL DEFAULT 0,
    started_at        timestamptz NOT NULL,
    last_heartbeat_at timestamptz NOT NULL,
    stopped_at        timestamptz,
    seen_in_redis_at  timestamptz,
    running_ids       uuid[]      NOT NULL DEFAULT '{}',
    notice            text        CHECK (octet_length(notice) <= 500)
);
COMMENT ON TABLE  worker_instances IS 'Processes of workers.';
COMMENT ON COLUMN worker_instances.running IS 'Number of running occurrences at the last heartbeat.';
COMMENT ON COLUMN worker_instances.running_ids IS 'Running occurrences at the last heartbeat.';
COMMENT ON COLUMN worker_instances.notice IS 'Problem that the instance reported at its last heartbeat; null if there was none.';
COMMENT ON COLUMN worker_instances.last_heartbeat_at IS 'Time of the last heartbeat, by the server''s clock.';
COMMENT ON COLUMN worker_instances.stopped_at IS 'Time at which it reported its shutdown; null while it runs, or if it was lost.';
COMMENT ON COLUMN worker_instances.seen_in_redis_at IS
    'Last time at which its heartbeat in Redis showed that it is alive although it sent none over the broker.';
CREATE INDEX worker_instances_by_worker ON worker_instances (worker_id);
CREATE INDEX worker_instances_by_heartbeat ON worker_instances (last_heartbeat_at);

CREATE TABLE worker_job_types (
    worker_id       text        NOT NULL REFERENCES workers (id) ON DELETE CASCADE,
    job_type        text        NOT NULL CHECK (job_type ~ '^[A-Za-z0-9._-]{1,100}$'),
    description     text        NOT NULL DEFAULT '',
    -- The type jsonb would sort the properties; an input form shows its fields in the author's order.
    schema          json        NOT NULL DEFAULT '{}',
    concurrency     integer     NOT NULL DEFAULT 0,
    timeout_seconds integer,
    announced_at    timestamptz NOT NULL,
    PRIMARY KEY (worker_id, job_type)
);
COMMENT ON TABLE  worker_job_types IS 'Job types of a worker, as it announced them last.';
COMMENT ON COLUMN worker_job_types.schema IS 'JSON Schema of the input, with its properties in the announced order.';

CREATE TABLE instance_job_types (
    instance_id text NOT NULL REFERENCES worker_instances (id) ON DELETE CASCADE,
    job_type    text NOT NULL,
    PRIMARY KEY (instance_id, job_type)
);
COMMENT ON TABLE instance_job_types IS 'Job types of each instance; two releases of a worker may differ.';

CREATE TABLE buckets (
    id          uuid        PRIMARY KEY,
    instance_id text        NOT NULL,
    priority    smallint    NOT NULL CHECK (priority BETWEEN 1 AND 5),
    state       text        NOT NULL CHECK (state IN ('active', 'completing', 'lost', 'draining', 'ready_to_delete')),
    epoch       bigint      NOT NULL DEFAULT 1,
    changed_at  timestamptz NOT NULL
);
COMMENT ON TABLE buckets IS 'Queues owned by one worker instance, with preloaded occurrences.';

-- Workers, their instances and their job types, as the workers report them, and the jobs that their code declares.

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
    critical_slots    integer     NOT NULL DEFAULT 0,
    running           integer     NOT NULL DEFAULT 0,
    started_at        timestamptz NOT NULL,
    last_heartbeat_at timestamptz NOT NULL,
    stopping          boolean     NOT NULL DEFAULT false,
    stopped_at        timestamptz,
    seen_in_redis_at  timestamptz,
    running_ids       uuid[]      NOT NULL DEFAULT '{}',
    priorities        jsonb       NOT NULL DEFAULT '[]',
    notice            text        CHECK (octet_length(notice) <= 500),
    protocol          integer     NOT NULL DEFAULT 1,
    features          text[]      NOT NULL DEFAULT '{}',
    declared          jsonb       NOT NULL DEFAULT '{}',
    problems          jsonb       NOT NULL DEFAULT '[]',
    unreadable        bigint      NOT NULL DEFAULT 0,
    unreadable_at     timestamptz,
    unreadable_reason text        CHECK (octet_length(unreadable_reason) <= 500)
);
COMMENT ON TABLE  worker_instances IS 'Processes of workers.';
COMMENT ON COLUMN worker_instances.critical_slots IS 'Number of concurrent runs that it reserves for the priority 5 (critical).';
COMMENT ON COLUMN worker_instances.running IS 'Number of running occurrences at the last heartbeat.';
COMMENT ON COLUMN worker_instances.running_ids IS 'Running occurrences at the last heartbeat.';
COMMENT ON COLUMN worker_instances.priorities IS
    'Runs by priority at the last heartbeat: a list of {priority, running, waiting}; empty if the instance does not count them.';
COMMENT ON COLUMN worker_instances.notice IS 'Problem that the instance reported at its last heartbeat; null if there was none.';
COMMENT ON COLUMN worker_instances.last_heartbeat_at IS 'Time of the last heartbeat, by the server''s clock.';
-- A run that is lost with an instance that stops was not lost by its own fault: the process was ended from outside before it
-- could hand the run back.
COMMENT ON COLUMN worker_instances.stopping IS
    'True if the last heartbeat announced that the instance stops: it takes no new work and ends or hands back what it runs.';
COMMENT ON COLUMN worker_instances.stopped_at IS 'Time at which it reported its shutdown; null while it runs, or if it was lost.';
COMMENT ON COLUMN worker_instances.seen_in_redis_at IS
    'Last time at which its heartbeat in Redis showed that it is alive although it sent none over the broker.';
COMMENT ON COLUMN worker_instances.protocol IS 'Version of the protocol that the program implements.';
COMMENT ON COLUMN worker_instances.features IS 'Optional parts of the protocol that the program implements.';
COMMENT ON COLUMN worker_instances.declared IS
    'Rules and schedules that the code of this instance declares: {jobType: {defaults, schedules}}, without what was refused. A job type that declares nothing is left out.';
COMMENT ON COLUMN worker_instances.problems IS
    'Parts of the last registration that were refused: a list of {jobType, schedule, text}.';
COMMENT ON COLUMN worker_instances.unreadable IS
    'Number of messages of the instance, or parts of messages, that could not be read.';
COMMENT ON COLUMN worker_instances.unreadable_at IS 'Time of the last message that could not be read.';
COMMENT ON COLUMN worker_instances.unreadable_reason IS 'Field and reason of the last one.';
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
    bundle_size     integer     NOT NULL DEFAULT 1 CHECK (bundle_size BETWEEN 1 AND 10),
    announced_at    timestamptz NOT NULL,
    PRIMARY KEY (worker_id, job_type)
);
COMMENT ON TABLE  worker_job_types IS 'Job types of a worker, as it announced them last.';
COMMENT ON COLUMN worker_job_types.schema IS 'JSON Schema of the input, with its properties in the announced order.';
COMMENT ON COLUMN worker_job_types.bundle_size IS 'Maximum number of runs in one message, as announced last; 1 for no bundles.';

CREATE TABLE instance_job_types (
    instance_id text    NOT NULL REFERENCES worker_instances (id) ON DELETE CASCADE,
    job_type    text    NOT NULL,
    bundle_size integer NOT NULL DEFAULT 1 CHECK (bundle_size BETWEEN 1 AND 10),
    PRIMARY KEY (instance_id, job_type)
);
COMMENT ON TABLE  instance_job_types IS 'Job types of each instance; two releases of a worker may differ.';
COMMENT ON COLUMN instance_job_types.bundle_size IS 'Maximum number of runs in one message that the instance takes; 1 for no bundles.';
-- Queues are named in lower case, so an instance also receives the messages of a type that another release spells otherwise.
CREATE INDEX instance_job_types_by_queue ON instance_job_types (instance_id, lower(job_type));

-- The search for lost messages compares runs with messages, so it must know how many runs a message may have. What is
-- announced now does not tell: the messages that wait may have been sent before.
CREATE TABLE sent_bundles (
    worker_id text        NOT NULL,
    job_type  text        NOT NULL,
    size      integer     NOT NULL CHECK (size BETWEEN 2 AND 10),
    sent_at   timestamptz NOT NULL,
    PRIMARY KEY (worker_id, job_type)
);
COMMENT ON TABLE  sent_bundles IS 'Job types of which a message with several runs may wait at the broker or in an instance.';
COMMENT ON COLUMN sent_bundles.worker_id IS 'Worker.';
COMMENT ON COLUMN sent_bundles.job_type IS 'Job type of that worker.';
COMMENT ON COLUMN sent_bundles.size IS 'Largest number of runs in one of these messages.';
COMMENT ON COLUMN sent_bundles.sent_at IS
    'Time of the last message with several runs, to some seconds. The row is deleted later, when no message of the type is left.';

CREATE TABLE declared_jobs (
    worker_id  text        NOT NULL,
    job_type   text        NOT NULL,
    name       text        NOT NULL,
    job_id     uuid        NOT NULL UNIQUE REFERENCES jobs (id) ON DELETE CASCADE,
    declared   jsonb,
    version    text        NOT NULL DEFAULT '',
    retired_at timestamptz,
    PRIMARY KEY (worker_id, job_type, name)
);
COMMENT ON TABLE  declared_jobs IS 'Jobs that the server keeps for the job types of workers.';
COMMENT ON COLUMN declared_jobs.worker_id IS 'Worker.';
COMMENT ON COLUMN declared_jobs.job_type IS 'Job type of that worker.';
COMMENT ON COLUMN declared_jobs.name IS 'Name of the schedule; empty for the job of the occurrences that are enqueued by job type.';
COMMENT ON COLUMN declared_jobs.job_id IS 'The job.';
COMMENT ON COLUMN declared_jobs.declared IS 'Definition that the code declares, as of the last registration; null until one declares the job type.';
COMMENT ON COLUMN declared_jobs.version IS 'Version of the program that declares it.';
COMMENT ON COLUMN declared_jobs.retired_at IS 'Time at which the code no longer declared it; null while it does.';

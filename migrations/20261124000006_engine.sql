-- State that the servers share: leases, the cluster pause, disabled singleton loops, and messages that were delivered again.

CREATE TABLE leases (
    role       text        PRIMARY KEY,
    epoch      bigint      NOT NULL DEFAULT 0,
    holder     text,
    changed_at timestamptz NOT NULL
);
COMMENT ON TABLE  leases IS 'Roles with their fencing epochs: a writer in a role checks that its epoch is still the newest.';

-- At most one row. While it exists, no server dispatches jobs, releases delayed occurrences or grants slots.
CREATE TABLE cluster_pause (
    is_on   boolean     PRIMARY KEY DEFAULT true CHECK (is_on),
    since   timestamptz NOT NULL,
    by_whom text       NOT NULL,
    reason  text        NOT NULL CHECK (char_length(reason) BETWEEN 1 AND 500)
);
COMMENT ON TABLE cluster_pause IS 'Cluster pause, which stops every dispatcher, with its author and reason.';

-- Everything else about a singleton loop is in Redis, which may lose it. A loop that an operator disabled must not run
-- again because of that, so its name is stored here, and the servers write the key in Redis again.
CREATE TABLE disabled_loops (
    name        text        PRIMARY KEY CHECK (octet_length(name) BETWEEN 1 AND 100),
    disabled_at timestamptz NOT NULL,
    disabled_by text        NOT NULL
);
COMMENT ON TABLE  disabled_loops IS 'Singleton loops that an operator disabled. An enabled loop has no row.';
COMMENT ON COLUMN disabled_loops.name IS 'Name of the loop.';
COMMENT ON COLUMN disabled_loops.disabled_at IS 'Time at which the loop was disabled.';
COMMENT ON COLUMN disabled_loops.disabled_by IS 'E-mail address of the user who disabled the loop.';

-- At most one row. A clock that is a month ahead when the servers start must not delete a month of data.
CREATE TABLE maintenance_state (
    is_only      boolean     PRIMARY KEY DEFAULT true CHECK (is_only),
    last_tick_at timestamptz NOT NULL,
    held_until   timestamptz
);
COMMENT ON TABLE  maintenance_state IS 'When expired data was looked for, so that a jump of the time is noticed.';
COMMENT ON COLUMN maintenance_state.last_tick_at IS 'Time of the last look.';
COMMENT ON COLUMN maintenance_state.held_until IS 'Time before which nothing is deleted, because the time jumped; null if it never did.';

-- No message may end every server in turn.
CREATE TABLE redeliveries (
    message_hash bytea       PRIMARY KEY CHECK (octet_length(message_hash) = 32),
    processes    integer     NOT NULL CHECK (processes > 0),
    last_process uuid        NOT NULL,
    last_at      timestamptz NOT NULL
);
COMMENT ON TABLE redeliveries IS
    'Messages that were delivered before and are being handled again. A row is deleted when its message was handled, so a row that stays belongs to a process that has ended.';
COMMENT ON COLUMN redeliveries.message_hash IS 'SHA-256 of the queue and the body of the message.';
COMMENT ON COLUMN redeliveries.processes IS 'The number of processes of a server that began to handle the message after its first delivery, in their order.';
COMMENT ON COLUMN redeliveries.last_process IS 'A random id of the last of them. A process that begins twice in a row counts once.';
COMMENT ON COLUMN redeliveries.last_at IS 'The begin of the last attempt.';
CREATE INDEX redeliveries_by_age ON redeliveries (last_at);

-- One row. A server refuses to start if the migration is newer than those that it knows.
CREATE TABLE schema_compatibility (
    is_only            boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    required_migration bigint  NOT NULL
);
COMMENT ON TABLE  schema_compatibility IS 'The versions of the server that can work with the tables.';
COMMENT ON COLUMN schema_compatibility.required_migration IS 'The newest migration that a server must know.';
INSERT INTO schema_compatibility (required_migration) VALUES (20261124000006);

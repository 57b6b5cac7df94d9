-- Messages of workers that a server was handling when its process ended, so that none can end every server in turn.

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

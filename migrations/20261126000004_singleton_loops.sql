-- Singleton loops: those that an operator disabled, and the alert rule about loops without a leader.
--
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

-- A rule of the user may have this name already.
INSERT INTO alert_rules (id, name, condition, severity, is_enabled, modified_at, modified_by) VALUES
    ('019ac000-0000-7000-8000-00000000000c', 'Singleton loop without leader', '{"kind": "loop_without_leader"}', 'critical', true, now(), 'system')
    ON CONFLICT DO NOTHING;

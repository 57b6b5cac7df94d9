-- Users, their sessions, invitations and API tokens, and the audit log.

CREATE TABLE users (
    id              uuid        PRIMARY KEY,
    name            text        NOT NULL CHECK (char_length(name) BETWEEN 1 AND 100),
    email           text        NOT NULL CHECK (email = lower(email) AND char_length(email) <= 254),
    passphrase_hash text        NOT NULL,
    role            text        NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
    is_active       boolean     NOT NULL DEFAULT true,
    created_at      timestamptz NOT NULL,
    last_sign_in_at timestamptz,
    CONSTRAINT users_email_is_unique UNIQUE (email)
);
COMMENT ON COLUMN users.passphrase_hash IS 'argon2id, in PHC string format.';

CREATE TABLE sessions (
    id_hash    bytea       PRIMARY KEY CHECK (octet_length(id_hash) = 32),
    data       jsonb       NOT NULL,
    user_id    uuid        REFERENCES users (id) ON DELETE CASCADE,
    expires_at timestamptz NOT NULL
);
COMMENT ON TABLE  sessions IS 'Server-side sessions. The cookie holds the id; this table holds only its SHA-256.';
COMMENT ON COLUMN sessions.data IS 'Content of the session.';
COMMENT ON COLUMN sessions.expires_at IS 'Expiry unless the session is used.';
CREATE INDEX sessions_by_expiry ON sessions (expires_at);

CREATE TABLE invites (
    id         uuid        PRIMARY KEY,
    token_hash bytea       NOT NULL UNIQUE CHECK (octet_length(token_hash) = 32),
    is_setup   boolean     NOT NULL DEFAULT false,
    name       text        NOT NULL DEFAULT '',
    role       text        NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
    invited_by text        NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    used_at    timestamptz
);
COMMENT ON TABLE  invites IS 'One-time links. The link holds the token; this table holds only its SHA-256.';
COMMENT ON COLUMN invites.is_setup IS 'True for the link that creates the first admin; valid only while there is no user.';

CREATE TABLE sign_in_failures (
    subject      text        PRIMARY KEY,
    failures     integer     NOT NULL,
    last_at      timestamptz NOT NULL,
    locked_until timestamptz
);
COMMENT ON TABLE  sign_in_failures IS 'Failed sign-in attempts, for backoff.';
COMMENT ON COLUMN sign_in_failures.subject IS 'SHA-256 of the throttled account or network address.';

CREATE TABLE api_tokens (
    id           uuid        PRIMARY KEY,
    user_id      uuid        NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    name         text        NOT NULL,
    token_hash   bytea       NOT NULL UNIQUE CHECK (octet_length(token_hash) = 32),
    role         text        NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
    created_at   timestamptz NOT NULL,
    expires_at   timestamptz,
    last_used_at timestamptz,
    revoked_at   timestamptz
);
COMMENT ON TABLE api_tokens IS 'Tokens for scripts; only the hash is stored.';

CREATE TABLE audit_log (
    id      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at      timestamptz NOT NULL,
    who     text        NOT NULL,
    action  text        NOT NULL,
    object  text        NOT NULL,
    before  jsonb,
    after   jsonb,
    address text
);
COMMENT ON TABLE  audit_log IS 'Changes with author, time and network address. Append-only.';
COMMENT ON COLUMN audit_log.object IS 'Object of the change, as kind:id.';

CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit log is only ever added to';
END $$;
CREATE TRIGGER audit_log_is_append_only BEFORE UPDATE OR DELETE ON audit_log
    FOR EACH ROW EXECUTE FUNCTION refuse_change();

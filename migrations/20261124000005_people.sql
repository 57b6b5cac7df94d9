-- Users, their sessions and devices, one-time links and API tokens, and the audit log.

CREATE TABLE users (
    id              uuid        PRIMARY KEY,
    name            text        NOT NULL CHECK (char_length(name) BETWEEN 1 AND 100),
    email           text        NOT NULL CHECK (email = lower(email) AND char_length(email) <= 254),
    passphrase_hash text        NOT NULL,
    role            text        NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
    is_active       boolean     NOT NULL DEFAULT true,
    created_at      timestamptz NOT NULL,
    last_sign_in_at timestamptz,
    last_seen_at    timestamptz,
    deactivated_at  timestamptz,
    passphrase_changed_at timestamptz,
    CONSTRAINT users_email_is_unique UNIQUE (email)
);
COMMENT ON COLUMN users.passphrase_hash IS 'argon2id, in PHC string format.';
COMMENT ON COLUMN users.last_seen_at IS 'Last use of a session of the user, to the minute.';
COMMENT ON COLUMN users.deactivated_at IS 'Time of the deactivation; null while the user is active.';
COMMENT ON COLUMN users.passphrase_changed_at IS 'Last change of the passphrase; null since the user was created.';

CREATE TABLE sessions (
    id_hash    bytea       PRIMARY KEY CHECK (octet_length(id_hash) = 32),
    data       jsonb       NOT NULL,
    user_id    uuid        REFERENCES users (id) ON DELETE CASCADE,
    expires_at timestamptz NOT NULL,
    id           uuid        NOT NULL DEFAULT gen_random_uuid() UNIQUE,
    created_at   timestamptz NOT NULL DEFAULT now(),
    last_seen_at timestamptz NOT NULL DEFAULT now(),
    address      text,
    user_agent   text        CHECK (char_length(user_agent) <= 300),
    end_reason   text        CHECK (end_reason IN ('revoked', 'passphrase'))
);
COMMENT ON TABLE  sessions IS 'Server-side sessions. The cookie holds the id; this table holds only its SHA-256.';
COMMENT ON COLUMN sessions.data IS 'Content of the session.';
COMMENT ON COLUMN sessions.expires_at IS 'Expiry unless the session is used.';
COMMENT ON COLUMN sessions.id IS 'Identifier for lists and revocation. It grants nothing: only the id in the cookie does.';
COMMENT ON COLUMN sessions.created_at IS 'Time of the sign-in.';
COMMENT ON COLUMN sessions.last_seen_at IS 'Last request, to the minute.';
COMMENT ON COLUMN sessions.address IS 'Network address of the sign-in, if it was known.';
COMMENT ON COLUMN sessions.user_agent IS 'Header User-Agent of the sign-in, shortened.';
COMMENT ON COLUMN sessions.end_reason IS
    'Why the session was ended before its expiry; null while it is valid. The row stays until its expiry, so that an open page can state the reason.';
CREATE INDEX sessions_by_user ON sessions (user_id) WHERE user_id IS NOT NULL;
CREATE INDEX sessions_by_expiry ON sessions (expires_at);

CREATE TABLE one_time_links (
    id         uuid        PRIMARY KEY,
    kind       text        NOT NULL CHECK (kind IN ('setup', 'invite', 'reset')),
    token_hash bytea       NOT NULL UNIQUE CHECK (octet_length(token_hash) = 32),
    user_id    uuid        UNIQUE REFERENCES users (id) ON DELETE CASCADE,
    name       text,
    role       text        CHECK (role IN ('viewer', 'operator', 'admin')),
    created_by text        NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    CONSTRAINT one_time_links_reset_has_a_user CHECK ((kind = 'reset') = (user_id IS NOT NULL)),
    CONSTRAINT one_time_links_others_have_a_role CHECK ((kind = 'reset') = (role IS NULL)),
    CONSTRAINT one_time_links_invite_has_a_name CHECK ((kind = 'invite') = (name IS NOT NULL))
);
COMMENT ON TABLE  one_time_links IS
    'Links that are neither used nor revoked; using or revoking one deletes its row. The link holds the token; this table holds only its SHA-256.';
COMMENT ON COLUMN one_time_links.id IS 'Identifier for lists and revocation. It grants nothing: only the token does.';
COMMENT ON COLUMN one_time_links.kind IS
    'setup creates the first Admin and is valid only while there is no user; invite creates a user; reset sets a new passphrase.';
COMMENT ON COLUMN one_time_links.token_hash IS 'SHA-256 of the token.';
COMMENT ON COLUMN one_time_links.user_id IS 'User who chooses a new passphrase, with at most one link; null for other links.';
COMMENT ON COLUMN one_time_links.name IS 'Name of the invited user; null for other links.';
COMMENT ON COLUMN one_time_links.role IS 'Role of the user that the link creates; null for a link for a new passphrase.';
COMMENT ON COLUMN one_time_links.created_by IS
    'Name of the inviting Admin; for a new passphrase the e-mail address of the Admin, or system for the command line; the server for a setup link.';
COMMENT ON COLUMN one_time_links.created_at IS 'Creation; a renewal of an invitation keeps it.';
COMMENT ON COLUMN one_time_links.expires_at IS 'Expiry. The row stays for a while, so that an expired invitation can be renewed.';

CREATE TABLE known_devices (
    token_hash      bytea       PRIMARY KEY CHECK (octet_length(token_hash) = 32),
    user_id         uuid        NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    created_at      timestamptz NOT NULL,
    last_used_at    timestamptz NOT NULL,
    failures        integer     NOT NULL DEFAULT 0,
    last_failure_at timestamptz,
    locked_until    timestamptz
);
COMMENT ON TABLE  known_devices IS
    'Browsers from which a user has signed in. Such a browser has a sign-in limit of its own, so that failed sign-ins of strangers cannot lock it out.';
COMMENT ON COLUMN known_devices.token_hash IS 'SHA-256 of the token in the cookie of the device.';
COMMENT ON COLUMN known_devices.failures IS 'Consecutive failed sign-ins from this device.';
COMMENT ON COLUMN known_devices.locked_until IS 'Time until which sign-ins from this device are refused.';
CREATE INDEX known_devices_by_user ON known_devices (user_id, last_used_at);

-- Failed sign-ins are counted in a fixed number of slots, so that no number of accounts or addresses that outsiders
-- make up can grow the table.
CREATE TABLE sign_in_throttle (
    kind         text        NOT NULL CHECK (kind IN ('account', 'address')),
    slot         integer     NOT NULL CHECK (slot BETWEEN 0 AND 65535),
    failures     integer     NOT NULL,
    last_at      timestamptz NOT NULL,
    locked_until timestamptz,
    PRIMARY KEY (kind, slot)
);
COMMENT ON TABLE  sign_in_throttle IS 'Failed sign-in attempts, for backoff.';
COMMENT ON COLUMN sign_in_throttle.slot IS 'The first 16 bits of the SHA-256 of the account or network address.';

CREATE TABLE api_tokens (
    id                uuid        PRIMARY KEY,
    user_id           uuid        REFERENCES users (id) ON DELETE CASCADE,
    name              text        NOT NULL,
    token_hash        bytea       NOT NULL UNIQUE CHECK (octet_length(token_hash) = 32),
    role              text        NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
    read_only         boolean     NOT NULL DEFAULT false,
    tag               text        CHECK (char_length(tag) BETWEEN 1 AND 50),
    hint              text        NOT NULL DEFAULT '',
    lifetime_days     integer     CHECK (lifetime_days BETWEEN 1 AND 3650),
    created_by        text        NOT NULL DEFAULT 'system',
    created_at        timestamptz NOT NULL,
    expires_at        timestamptz,
    last_used_at      timestamptz,
    last_used_address text,
    last_used_route   text,
    rotated_at        timestamptz,
    revoked_at        timestamptz
);
COMMENT ON TABLE api_tokens IS 'Tokens for scripts; only the hash is stored.';
COMMENT ON COLUMN api_tokens.user_id IS 'Owner, whose role limits that of the token; null for a service token.';
COMMENT ON COLUMN api_tokens.name IS 'Name on the pages.';
COMMENT ON COLUMN api_tokens.token_hash IS 'SHA-256 of the secret.';
COMMENT ON COLUMN api_tokens.role IS 'Role; the lower one of this and the owner''s applies.';
COMMENT ON COLUMN api_tokens.expires_at IS 'Time from which the token is refused; null means never.';
COMMENT ON COLUMN api_tokens.last_used_at IS 'Last use, to the minute.';
COMMENT ON COLUMN api_tokens.revoked_at IS 'Time of the revocation. The record remains.';
COMMENT ON COLUMN api_tokens.read_only IS 'True if the token may only read.';
COMMENT ON COLUMN api_tokens.tag IS 'Limits the token to jobs with this tag and to their occurrences; null means no limit.';
COMMENT ON COLUMN api_tokens.hint IS 'Last four characters of the secret, by which people recognise the token.';
COMMENT ON COLUMN api_tokens.lifetime_days IS 'Lifetime in days that was chosen at creation, for the token that replaces this one; null means no end.';
COMMENT ON COLUMN api_tokens.created_by IS 'Author: an e-mail address, or system.';
COMMENT ON COLUMN api_tokens.last_used_address IS 'Network address of the last use, if it was known.';
COMMENT ON COLUMN api_tokens.last_used_route IS 'Operation of the last use, as in GET /api/v1/jobs.';
COMMENT ON COLUMN api_tokens.rotated_at IS 'Time at which another token replaced this one; it still works until expires_at.';
CREATE INDEX api_tokens_by_owner ON api_tokens (user_id, created_at);

CREATE SEQUENCE audit_log_ids;
CREATE TABLE audit_log (
    id                  bigint      NOT NULL DEFAULT nextval('audit_log_ids'),
    at                  timestamptz NOT NULL,
    who                 text        NOT NULL,
    -- Statements all over the server write audit rows. None of them passes the token on: the server sets it for the
    -- transaction of a request, and the default of the column reads it.
    token               text        DEFAULT nullif(current_setting('milvaion.token', true), ''),
    action              text        COLLATE "C" NOT NULL,
    object              text        NOT NULL,
    result              text        NOT NULL DEFAULT 'done' CHECK (result IN ('done', 'refused')),
    before              jsonb,
    after               jsonb,
    address             text,
    repeats             integer     NOT NULL DEFAULT 1 CHECK (repeats >= 1),
    last_at             timestamptz,
    has_other_addresses boolean     NOT NULL DEFAULT false,
    repeat_key          text,
    PRIMARY KEY (at, id)
) PARTITION BY RANGE (at);
ALTER SEQUENCE audit_log_ids OWNED BY audit_log.id;
COMMENT ON TABLE  audit_log IS
    'Actions with author, time and network address. Append-only, except that the count of a refusal grows.';
COMMENT ON COLUMN audit_log.who IS 'Author: an e-mail address, or system, or unknown.';
COMMENT ON COLUMN audit_log.token IS
    'API token of the request, as name and last characters of its secret; null for a session or for the system.';
COMMENT ON COLUMN audit_log.action IS 'Action, as noun.verb. In byte order, so that all actions of a noun are one range.';
COMMENT ON COLUMN audit_log.object IS 'Object of the action, as kind:id.';
COMMENT ON COLUMN audit_log.result IS 'refused if the action was not allowed or failed.';
COMMENT ON COLUMN audit_log.repeats IS 'Number of refusals that this row stands for; 1 for everything else.';
COMMENT ON COLUMN audit_log.last_at IS 'Time of the last of several refusals; null for one.';
COMMENT ON COLUMN audit_log.has_other_addresses IS 'True if later refusals came from another network address.';
COMMENT ON COLUMN audit_log.repeat_key IS 'Equal for refusals that are counted in one row; null for everything else.';
CREATE INDEX audit_log_by_author ON audit_log (who, at, id);
CREATE INDEX audit_log_by_object ON audit_log (object, at, id);
CREATE INDEX audit_log_by_action ON audit_log (action, at, id);
CREATE INDEX audit_log_of_refusals ON audit_log (at, id) WHERE result = 'refused';
CREATE INDEX audit_log_by_repeat_key ON audit_log (repeat_key, at) WHERE repeat_key IS NOT NULL;

CREATE FUNCTION ensure_audit_partitions(from_day date, upto_day date) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    m date := date_trunc('month', from_day);
    made integer := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('milvaion.ensure_partitions'));
    WHILE m <= upto_day LOOP
        IF to_regclass(format('%I', 'audit_log_' || to_char(m, 'YYYYMM'))) IS NULL THEN
            EXECUTE format(
                'CREATE TABLE %I PARTITION OF audit_log FOR VALUES FROM (%L) TO (%L)',
                'audit_log_' || to_char(m, 'YYYYMM'),
                m::timestamp AT TIME ZONE 'UTC', (m + interval '1 month')::timestamp AT TIME ZONE 'UTC');
            EXECUTE format(
                'CREATE TRIGGER is_never_emptied BEFORE TRUNCATE ON %I FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()',
                'audit_log_' || to_char(m, 'YYYYMM'));
            made := made + 1;
        END IF;
        m := m + interval '1 month';
    END LOOP;
    RETURN made;
END $$;
COMMENT ON FUNCTION ensure_audit_partitions(date, date) IS
    'Creates the missing partitions of the audit log for the months between two days; returns their number.';

CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND OLD.result = 'refused' AND NEW.repeats > OLD.repeats
        AND (NEW.id, NEW.at, NEW.who, NEW.token, NEW.action, NEW.object, NEW.result, NEW.address, NEW.repeat_key)
            IS NOT DISTINCT FROM
            (OLD.id, OLD.at, OLD.who, OLD.token, OLD.action, OLD.object, OLD.result, OLD.address, OLD.repeat_key)
        AND NEW.before IS NOT DISTINCT FROM OLD.before
        AND NEW.after IS NOT DISTINCT FROM OLD.after THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'the audit log is only ever added to';
END $$;
CREATE TRIGGER audit_log_is_append_only BEFORE UPDATE OR DELETE ON audit_log
    FOR EACH ROW EXECUTE FUNCTION refuse_change();

-- The REST API: what tokens may do and when they were used, and the answers to requests with an idempotency key.

ALTER TABLE api_tokens ALTER COLUMN user_id DROP NOT NULL;
ALTER TABLE api_tokens
    ADD COLUMN read_only         boolean     NOT NULL DEFAULT false,
    ADD COLUMN tag               text        CHECK (char_length(tag) BETWEEN 1 AND 50),
    ADD COLUMN hint              text        NOT NULL DEFAULT '',
    ADD COLUMN lifetime_days     integer     CHECK (lifetime_days BETWEEN 1 AND 3650),
    ADD COLUMN created_by        text        NOT NULL DEFAULT 'system',
    ADD COLUMN last_used_address text,
    ADD COLUMN last_used_route   text,
    ADD COLUMN rotated_at        timestamptz;
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
-- The list of jobs with a tag.
CREATE INDEX jobs_by_tag ON jobs USING gin (tags) WHERE cardinality(tags) > 0;

CREATE INDEX api_tokens_by_owner ON api_tokens (user_id, created_at);

CREATE TABLE api_requests (
    caller       text        NOT NULL,
    key          text        NOT NULL CHECK (char_length(key) BETWEEN 1 AND 200),
    fingerprint  bytea       NOT NULL CHECK (octet_length(fingerprint) = 32),
    created_at   timestamptz NOT NULL,
    status       smallint    CHECK (status BETWEEN 100 AND 599),
    headers      jsonb,
    body         bytea,
    PRIMARY KEY (caller, key)
);
COMMENT ON TABLE  api_requests IS 'POST requests with an idempotency key, kept for a day: a repeated key gets the stored answer.';
COMMENT ON COLUMN api_requests.caller IS 'Caller, as token:id or user:id. Keys of different callers are independent.';
COMMENT ON COLUMN api_requests.key IS 'Value of the header Idempotency-Key.';
COMMENT ON COLUMN api_requests.fingerprint IS 'SHA-256 of method, path, query and body. Another request with the same key is refused.';
COMMENT ON COLUMN api_requests.created_at IS 'Arrival of the first request.';
COMMENT ON COLUMN api_requests.status IS 'HTTP status of the answer; null until there is one.';
COMMENT ON COLUMN api_requests.headers IS 'Headers of the answer that a repetition gets too.';
COMMENT ON COLUMN api_requests.body IS 'Body of the answer; null for an answer with a secret, which is not stored.';
CREATE INDEX api_requests_by_age ON api_requests (created_at);

-- The REST API: the answers to requests with an idempotency key.

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

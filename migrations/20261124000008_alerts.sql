-- Alerts: rules, channels, what fires, and the messages about it.
--
-- An event that may cause an alert is a row of `alert_events`, inserted in the transaction of the event itself, so that a
-- crash loses none. A background task of the leader deletes such rows, and in the same transaction writes the alerts and
-- their messages. Any server then sends the messages.

CREATE TABLE alert_channels (
    id          uuid        PRIMARY KEY,
    name        text        NOT NULL UNIQUE CHECK (char_length(name) BETWEEN 1 AND 100),
    target      jsonb       NOT NULL CHECK (target ->> 'kind' IN ('email', 'webhook', 'slack')),
    is_enabled  boolean     NOT NULL DEFAULT true,
    version     integer     NOT NULL DEFAULT 1,
    last_sent_at timestamptz,
    last_error  text,
    modified_at timestamptz NOT NULL,
    modified_by text        NOT NULL
);
COMMENT ON TABLE  alert_channels IS 'Destinations of messages about alerts. They name secrets and contain none.';
COMMENT ON COLUMN alert_channels.target IS 'Tagged by kind: email {to}, webhook {url, signingSecret}, slack {urlSecret}.';
COMMENT ON COLUMN alert_channels.is_enabled IS 'False if its messages are dropped.';
COMMENT ON COLUMN alert_channels.version IS 'Number of edits; an edit carries the version that it was made from.';
COMMENT ON COLUMN alert_channels.last_sent_at IS 'Time at which a receiver last accepted a message.';
COMMENT ON COLUMN alert_channels.last_error IS 'Error of the last attempt; null if it succeeded.';

CREATE TABLE alert_rules (
    id          uuid        PRIMARY KEY,
    name        text        NOT NULL UNIQUE CHECK (char_length(name) BETWEEN 1 AND 100),
    condition   jsonb       NOT NULL CHECK (condition ->> 'kind' IS NOT NULL),
    jobs        text[]      NOT NULL DEFAULT '{}' CHECK (cardinality(jobs) <= 50),
    tags        text[]      NOT NULL DEFAULT '{}' CHECK (cardinality(tags) <= 50),
    severity    text        NOT NULL CHECK (severity IN ('warning', 'critical')),
    is_enabled  boolean     NOT NULL DEFAULT true,
    muted_until timestamptz,
    version     integer     NOT NULL DEFAULT 1,
    modified_at timestamptz NOT NULL,
    modified_by text        NOT NULL
);
COMMENT ON TABLE  alert_rules IS 'Conditions under which an alert fires.';
COMMENT ON COLUMN alert_rules.condition IS 'Tagged by kind, with the numbers of the condition.';
COMMENT ON COLUMN alert_rules.jobs IS 'Keys or ids of the jobs that the rule is about; empty means every job.';
COMMENT ON COLUMN alert_rules.tags IS 'The rule is about jobs with one of these tags; empty means every job.';
COMMENT ON COLUMN alert_rules.is_enabled IS 'False if the rule is switched off; its alerts are then resolved.';
COMMENT ON COLUMN alert_rules.muted_until IS 'Time until which no messages are made; null or past if the rule is not muted.';
COMMENT ON COLUMN alert_rules.version IS 'Number of edits; an edit carries the version that it was made from.';

CREATE TABLE alert_rule_channels (
    rule_id    uuid NOT NULL REFERENCES alert_rules (id) ON DELETE CASCADE,
    channel_id uuid NOT NULL REFERENCES alert_channels (id),
    PRIMARY KEY (rule_id, channel_id)
);
COMMENT ON TABLE alert_rule_channels IS 'Channels of each rule. A channel with rules cannot be deleted.';
CREATE INDEX alert_rule_channels_by_channel ON alert_rule_channels (channel_id);

CREATE TABLE alert_events (
    id            bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind          text        NOT NULL,
    at            timestamptz NOT NULL,
    job_id        uuid,
    job_name      text,
    occurrence_id uuid,
    cause         text,
    subject       text,
    detail        text
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, vacuum_truncate = off);
COMMENT ON TABLE  alert_events IS 'Events that no rule was applied to yet. Rows live for some seconds.';
COMMENT ON COLUMN alert_events.kind IS 'Kind of the condition of rules that apply: occurrence_failed, misfire, lost_run, auto_disabled or dead_letter.';
COMMENT ON COLUMN alert_events.cause IS 'Cause of a failure.';
COMMENT ON COLUMN alert_events.subject IS 'Source of an event that is about no job.';
COMMENT ON COLUMN alert_events.detail IS 'Details in one line.';

CREATE TABLE alert_states (
    id            uuid        PRIMARY KEY,
    rule_id       uuid        NOT NULL REFERENCES alert_rules (id) ON DELETE CASCADE,
    group_key     text        NOT NULL CHECK (octet_length(group_key) <= 500),
    title         text        NOT NULL CHECK (char_length(title) <= 500),
    detail        text        NOT NULL DEFAULT '' CHECK (char_length(detail) <= 2000),
    job_id        uuid,
    job_name      text,
    occurrence_id uuid,
    count         bigint      NOT NULL DEFAULT 1,
    first_at      timestamptz NOT NULL,
    last_at       timestamptz NOT NULL,
    resolved_at   timestamptz,
    resolution    text,
    is_announced  boolean     NOT NULL DEFAULT false
);
COMMENT ON TABLE  alert_states IS 'Alerts: episodes in which a rule fires for one cause. Resolved ones are kept for 90 days.';
COMMENT ON COLUMN alert_states.id IS 'UUIDv7; its timestamp is the begin of the episode.';
COMMENT ON COLUMN alert_states.group_key IS 'Job, worker, queue or service that the alert is about; one alert of a rule fires for it at a time.';
COMMENT ON COLUMN alert_states.occurrence_id IS 'Latest occurrence of the episode.';
COMMENT ON COLUMN alert_states.count IS 'Number of events; 1 for a condition that lasts.';
COMMENT ON COLUMN alert_states.last_at IS 'Time of the latest event, or of the last check that found the condition true.';
COMMENT ON COLUMN alert_states.resolution IS 'Reason for the resolution, as a sentence.';
COMMENT ON COLUMN alert_states.is_announced IS 'True if messages about it were made; only then there are messages about its resolution.';
CREATE UNIQUE INDEX alert_states_firing ON alert_states (rule_id, group_key) WHERE resolved_at IS NULL;
CREATE INDEX alert_states_by_rule ON alert_states (rule_id, id DESC);
CREATE INDEX alert_states_by_age ON alert_states (resolved_at) WHERE resolved_at IS NOT NULL;

CREATE TABLE alert_deliveries (
    id            uuid        PRIMARY KEY,
    alert_id      uuid        NOT NULL REFERENCES alert_states (id) ON DELETE CASCADE,
    rule_id       uuid        NOT NULL,
    channel_id    uuid        NOT NULL REFERENCES alert_channels (id) ON DELETE CASCADE,
    is_resolution boolean     NOT NULL,
    created_at    timestamptz NOT NULL,
    not_before    timestamptz,
    attempts      integer     NOT NULL DEFAULT 0,
    message_id    uuid,
    sent_at       timestamptz,
    failed_at     timestamptz,
    error         text
);
COMMENT ON TABLE  alert_deliveries IS 'Messages about alerts: the outbox of the channels, and its history.';
COMMENT ON COLUMN alert_deliveries.is_resolution IS 'True for the message that the alert is resolved.';
COMMENT ON COLUMN alert_deliveries.not_before IS 'Time of the next attempt; null once the message was accepted or given up.';
COMMENT ON COLUMN alert_deliveries.attempts IS 'Number of attempts.';
COMMENT ON COLUMN alert_deliveries.message_id IS 'Id of the message that it was part of; the same for each attempt.';
COMMENT ON COLUMN alert_deliveries.sent_at IS 'Time at which the receiver accepted it.';
COMMENT ON COLUMN alert_deliveries.failed_at IS 'Time at which the server gave up.';
COMMENT ON COLUMN alert_deliveries.error IS 'Error of the last attempt that failed.';
CREATE INDEX alert_deliveries_due ON alert_deliveries (not_before) WHERE not_before IS NOT NULL;
CREATE INDEX alert_deliveries_by_message ON alert_deliveries (message_id) WHERE message_id IS NOT NULL;
CREATE INDEX alert_deliveries_by_alert ON alert_deliveries (alert_id);
CREATE INDEX alert_deliveries_by_route ON alert_deliveries (rule_id, channel_id, sent_at DESC) WHERE sent_at IS NOT NULL;

-- The rules of a fresh installation. They show on the dashboard and send no messages until a user adds channels.
INSERT INTO alert_rules (id, name, condition, severity, is_enabled, modified_at, modified_by) VALUES
    ('019ac000-0000-7000-8000-000000000001', 'Occurrence failed', '{"kind": "occurrence_failed"}', 'warning', true, now(), 'system'),
    ('019ac000-0000-7000-8000-000000000002', 'Run lost', '{"kind": "lost_run"}', 'warning', true, now(), 'system'),
    ('019ac000-0000-7000-8000-000000000003', 'Misfire', '{"kind": "misfire"}', 'warning', true, now(), 'system'),
    ('019ac000-0000-7000-8000-000000000004', 'Job disabled automatically', '{"kind": "auto_disabled"}', 'critical', true, now(), 'system'),
    ('019ac000-0000-7000-8000-000000000005', 'No live worker', '{"kind": "no_live_worker", "seconds": 60}', 'critical', true, now(), 'system'),
    ('019ac000-0000-7000-8000-000000000006', 'Worker instance gone', '{"kind": "worker_gone"}', 'warning', true, now(), 'system'),
    ('019ac000-0000-7000-8000-000000000007', 'Old queue', '{"kind": "queue_age", "seconds": 900}', 'warning', true, now(), 'system'),
    ('019ac000-0000-7000-8000-000000000008', 'Late start', '{"kind": "late_start", "seconds": 1800}', 'warning', true, now(), 'system'),
    ('019ac000-0000-7000-8000-000000000009', 'Long run', '{"kind": "long_run", "timesMedian": 10}', 'warning', true, now(), 'system'),
    ('019ac000-0000-7000-8000-00000000000a', 'Dead letter', '{"kind": "dead_letter"}', 'warning', true, now(), 'system'),
    ('019ac000-0000-7000-8000-00000000000b', 'Background task unhealthy', '{"kind": "service_unhealthy"}', 'critical', true, now(), 'system'),
    ('019ac000-0000-7000-8000-00000000000c', 'Singleton loop without leader', '{"kind": "loop_without_leader"}', 'critical', true, now(), 'system');

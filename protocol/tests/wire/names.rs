//! Status numbers, level names, broker and Redis names, and limits.

use milvaion_protocol::{
    message::{self, LogLevel},
    status::{ALL_STATUSES, OccurrenceStatus},
    topology::{self, RedisKeys, Topology},
};
use serde_json::json;

use crate::{CONTRACT_RULE, golden, occurrence};

#[test]
fn every_status_keeps_its_number() {
    let numbers = [
        (OccurrenceStatus::Queued, 0),
        (OccurrenceStatus::Running, 1),
        (OccurrenceStatus::Completed, 2),
        (OccurrenceStatus::Failed, 3),
        (OccurrenceStatus::Cancelled, 4),
        (OccurrenceStatus::TimedOut, 5),
        (OccurrenceStatus::Unknown, 6),
        (OccurrenceStatus::Skipped, 7),
    ];
    assert_eq!(numbers.map(|(status, _)| status), ALL_STATUSES, "this table lists every status");
    for (status, number) in numbers {
        golden(&status, json!(number));
        assert_eq!(status.code(), number, "the database stores the same number; {CONTRACT_RULE}");
    }
    for invalid in [json!(8), json!(-1), json!("Completed"), json!(null), json!(70_000)] {
        assert!(serde_json::from_value::<OccurrenceStatus>(invalid.clone()).is_err(), "{invalid} is not a status");
    }
}

#[test]
fn log_levels_keep_their_names() {
    for (level, word, code) in [
        (LogLevel::Debug, "debug", 0),
        (LogLevel::Info, "info", 1),
        (LogLevel::Warn, "warn", 2),
        (LogLevel::Error, "error", 3),
    ] {
        golden(&level, json!(word));
        assert_eq!((level.code(), LogLevel::from_code(code)), (code, level), "{CONTRACT_RULE}");
    }
}

#[test]
fn broker_and_redis_names_are_pinned() {
    let names = Topology::default();
    assert_eq!(
        [
            names.jobs_exchange(),
            names.dead_letter_exchange(),
            names.dead_letter_queue(),
            names.status(),
            names.logs(),
            names.registration(),
            names.claims(),
            names.ingest(),
            names.job_queue("Mail.EU", "send_letter"),
            Topology::job_binding("Mail.EU", "send_letter"),
            Topology::routing_key("Mail.EU", "send_letter", occurrence()),
            names.critical_queue("Mail.EU", "send_letter"),
            Topology::critical_binding("Mail.EU", "send_letter"),
            Topology::critical_routing_key("Mail.EU", "send_letter", occurrence()),
        ],
        [
            "milvaion.jobs",
            "milvaion.dlx",
            "milvaion.dlq",
            "milvaion.status",
            "milvaion.logs",
            "milvaion.registration",
            "milvaion.claims",
            "milvaion.ingest",
            "milvaion.jobs.mail_deu.send__letter",
            "mail_deu.send__letter.*",
            "mail_deu.send__letter.019a9b3f-7c00-7abc-8def-0123456789ab",
            "milvaion.jobs.mail_deu.send__letter.critical",
            "mail_deu.send__letter.*.critical",
            "mail_deu.send__letter.019a9b3f-7c00-7abc-8def-0123456789ab.critical",
        ],
        "{CONTRACT_RULE}"
    );
    assert_eq!(
        [
            topology::HEADER_RETRY_COUNT,
            topology::HEADER_MAX_RETRIES,
            topology::HEADER_CORRELATION_ID,
            topology::HEADER_REPUBLISH,
        ],
        ["x-retry-count", "x-max-retries", "x-original-correlation-id", "x-republish"],
        "{CONTRACT_RULE}"
    );
    let keys = RedisKeys::default();
    assert_eq!(
        [
            keys.schedule(),
            keys.wake_channel(),
            keys.events_channel(),
            keys.cancellation_channel(),
            keys.heartbeat("w-1"),
            keys.running(occurrence()),
            keys.cancel_request(occurrence()),
            keys.singleton_lease("price-feed"),
            keys.singleton_epoch("price-feed"),
            keys.singleton_state("price-feed"),
            keys.singleton_disabled("price-feed"),
            keys.singleton_yield("price-feed"),
            keys.singleton_instances("price-feed"),
            keys.singletons(),
            keys.singleton_channel(),
        ],
        [
            "Milvaion:JobScheduler:schedule",
            "Milvaion:JobScheduler:wake",
            "Milvaion:JobScheduler:events",
            "Milvaion:JobScheduler:cancellation_channel",
            "Milvaion:JobScheduler:heartbeat:w-1",
            "Milvaion:JobScheduler:running:019a9b3f-7c00-7abc-8def-0123456789ab",
            "Milvaion:JobScheduler:cancel:019a9b3f-7c00-7abc-8def-0123456789ab",
            "Milvaion:JobScheduler:locks:singleton:price-feed",
            "Milvaion:JobScheduler:singleton:price-feed:epoch",
            "Milvaion:JobScheduler:singleton:price-feed",
            "Milvaion:JobScheduler:singleton:price-feed:disabled",
            "Milvaion:JobScheduler:singleton:price-feed:yield",
            "Milvaion:JobScheduler:singleton:price-feed:instances",
            "Milvaion:JobScheduler:singletons",
            "Milvaion:JobScheduler:singleton_channel",
        ],
        "{CONTRACT_RULE}"
    );
}

#[test]
fn limits_are_pinned() {
    // A queue is declared with its number of priorities, and the broker refuses a declaration with another number.
    assert_eq!(topology::MAX_PRIORITY, 5, "{CONTRACT_RULE}");
    assert_eq!((message::MAX_MESSAGE_BYTES, message::MAX_JOB_DATA_BYTES), (1_048_576, 65_536), "{CONTRACT_RULE}");
    assert_eq!((message::MAX_RESULT_BYTES, message::MAX_LOG_LINE_BYTES), (65_536, 8_192), "{CONTRACT_RULE}");
    assert_eq!((message::HEARTBEAT_INTERVAL_SECONDS, message::INSTANCE_TIMEOUT_SECONDS), (5, 15), "{CONTRACT_RULE}");
    assert_eq!([message::first_log_seq(1), message::first_log_seq(3)], [1_000_000, 3_000_000], "{CONTRACT_RULE}");
}

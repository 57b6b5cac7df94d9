//! The documents of singleton loops, which the REST API sends.

use milvaion_api::singletons::{EndedLoopRun, LoopDisabled, LoopInstance, LoopLeader, LoopStatus, SingletonLoop};
use milvaion_protocol::singleton::{LoopKind, LoopOutcome};
use serde_json::json;

use crate::{DUE_TIME, LATER_TIME, at, golden, minimal};

#[test]
fn singleton_loop_keeps_its_fields() {
    let value = SingletonLoop {
        name: "price-feed".into(),
        status: LoopStatus::Leading,
        is_enabled: true,
        disabled: Some(LoopDisabled { at: at(DUE_TIME), by: "ada@example.org".into() }),
        leader: Some(LoopLeader {
            instance_id: "prices-1".into(),
            worker_id: "prices".into(),
            host: "a".into(),
            epoch: 7,
            since: Some(at(DUE_TIME)),
            lease_remaining_ms: 9_000,
        }),
        is_yield_requested: true,
        epoch: 7,
        lease_ms: 10_000,
        heartbeat_ms: 3_000,
        kind: LoopKind::FixedRate,
        schedule: "fixed rate 100ms".into(),
        ticks: 12,
        runs: 10,
        dropped: 2,
        errors: 1,
        p50_ms: 1.5,
        p99_ms: 20.0,
        late_p50_ms: 0.5,
        late_p99_ms: 1.25,
        running_since: Some(at(LATER_TIME)),
        last_started_at: Some(at(DUE_TIME)),
        last_ended_at: Some(at(LATER_TIME)),
        recent: vec![EndedLoopRun {
            started_at: at(DUE_TIME),
            duration_ms: 20.5,
            late_ms: 0.5,
            outcome: LoopOutcome::Error,
        }],
        last_error: Some("no price".into()),
        last_error_at: Some(at(LATER_TIME)),
        updated_at: Some(at(LATER_TIME)),
        instance_count: 1,
        instances: vec![LoopInstance { id: "prices-1".into(), last_heartbeat_at: at(LATER_TIME) }],
        last_seen_at: Some(at(LATER_TIME)),
    };
    let json = json!({
        "name": "price-feed",
        "status": "leading",
        "isEnabled": true,
        "disabled": { "at": DUE_TIME, "by": "ada@example.org" },
        "leader": {
            "instanceId": "prices-1",
            "workerId": "prices",
            "host": "a",
            "epoch": 7,
            "since": DUE_TIME,
            "leaseRemainingMs": 9_000,
        },
        "isYieldRequested": true,
        "epoch": 7,
        "leaseMs": 10_000,
        "heartbeatMs": 3_000,
        "kind": "fixed-rate",
        "schedule": "fixed rate 100ms",
        "ticks": 12,
        "runs": 10,
        "dropped": 2,
        "errors": 1,
        "p50Ms": 1.5,
        "p99Ms": 20.0,
        "lateP50Ms": 0.5,
        "lateP99Ms": 1.25,
        "runningSince": LATER_TIME,
        "lastStartedAt": DUE_TIME,
        "lastEndedAt": LATER_TIME,
        "recent": [{ "startedAt": DUE_TIME, "durationMs": 20.5, "lateMs": 0.5, "outcome": "error" }],
        "lastError": "no price",
        "lastErrorAt": LATER_TIME,
        "updatedAt": LATER_TIME,
        "instanceCount": 1,
        "instances": [{ "id": "prices-1", "lastHeartbeatAt": LATER_TIME }],
        "lastSeenAt": LATER_TIME,
    });
    golden(&value, json);
}

#[test]
fn loop_without_a_state_has_no_leader() {
    minimal(json!({ "name": "price-feed" }), &SingletonLoop { name: "price-feed".into(), ..SingletonLoop::default() });
}

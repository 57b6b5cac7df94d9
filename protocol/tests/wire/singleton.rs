//! The scripts of singleton loops, which workers in other languages copy from the protocol page, and the fields of the
//! state.

use milvaion_protocol::singleton::{
    HEARTBEAT_SCRIPT, LoopKind, LoopOutcome, LoopRun, LoopState, MAX_LOOP_ERROR_BYTES, MAX_LOOP_NAME_BYTES,
    RECENT_RUNS, RELEASE_SCRIPT,
};
use serde_json::json;

use crate::{CONTRACT_RULE, golden};

const PAGE: &str = include_str!("../../../docs/protocol/README.md");
const PYTHON: &str = include_str!("../../../examples/python-worker/singleton.py");

#[test]
fn scripts_are_those_of_the_page_and_the_example() {
    for (name, script) in [("heartbeat", HEARTBEAT_SCRIPT), ("release", RELEASE_SCRIPT)] {
        let (_, block) =
            PAGE.split_once(&format!("<!-- {name}-script -->\n```lua\n")).expect("the page has the script");
        let (shown, _) = block.split_once("```").expect("the block ends");
        assert_eq!(shown, script, "docs/protocol/README.md shows another script; {CONTRACT_RULE}");
        let assigned = format!("{}_SCRIPT = r\"\"\"{script}\"\"\"", name.to_uppercase());
        assert!(PYTHON.contains(&assigned), "singleton.py has another {name} script");
    }
}

#[test]
fn page_has_every_field_of_the_state() {
    let state = LoopState { last_start: Some(1), last_end: Some(2), last_error_at: Some(2), ..LoopState::default() };
    let state = LoopState { last_error: Some("no price".to_owned()), ..state };
    let (_, section) = PAGE.split_once("### State of a loop").expect("the page describes the state");
    let (section, _) = section.split_once("###").expect("another section follows");
    for (field, _) in state.fields() {
        assert!(section.contains(&format!("`{field}`")), "docs/protocol/README.md does not describe {field}");
    }
}

#[test]
fn state_of_a_loop_is_pinned() {
    for (kind, text) in
        [(LoopKind::Interval, "interval"), (LoopKind::FixedRate, "fixed-rate"), (LoopKind::Cron, "cron")]
    {
        golden(&kind, json!(text));
        assert_eq!(kind.slug(), text, "{CONTRACT_RULE}");
    }
    let run = LoopRun { start: 1_764_061_200_000, duration_ms: 1.5, late_ms: 0.2, outcome: LoopOutcome::Ok };
    golden(&run, json!({ "start": 1_764_061_200_000_i64, "durationMs": 1.5, "lateMs": 0.2, "outcome": "ok" }));
    golden(&LoopOutcome::Error, json!("error"));
    golden(&LoopOutcome::Cancelled, json!("cancelled"));
    assert_eq!((MAX_LOOP_NAME_BYTES, MAX_LOOP_ERROR_BYTES, RECENT_RUNS), (100, 500, 20), "{CONTRACT_RULE}");
}

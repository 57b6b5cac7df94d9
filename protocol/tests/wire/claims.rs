//! The scripts of claims, which workers in other languages copy from the protocol page.

use milvaion_protocol::{
    claims::{
        CLAIM_LEASE_MS, CLAIM_RETENTION_MS, CLAIM_SCRIPT, CLAIM_SINCE_SCRIPT, DONE_SCRIPT, RELEASE_SCRIPT, RENEW_SCRIPT,
    },
    message::INSTANCE_TIMEOUT_SECONDS,
};

use crate::CONTRACT_RULE;

const PAGE: &str = include_str!("../../../docs/protocol/README.md");
const PYTHON: &str = include_str!("../../../examples/python-worker/worker.py");

#[test]
fn scripts_are_those_of_the_page_and_the_example() {
    // In a formatted text of Python, braces are doubled.
    let since = CLAIM_SINCE_SCRIPT.replace('{', "{{").replace('}', "}}").replace("    -- the script above", "{CLAIM}");
    for (name, script, python, assigned) in [
        ("claim", CLAIM_SCRIPT, CLAIM_SCRIPT, "CLAIM = "),
        ("claim-since", CLAIM_SINCE_SCRIPT, &since, "CLAIM_SINCE = f"),
        ("renew", RENEW_SCRIPT, RENEW_SCRIPT, "RENEW = "),
        ("done", DONE_SCRIPT, DONE_SCRIPT, "END = "),
        ("release-claim", RELEASE_SCRIPT, RELEASE_SCRIPT, "GIVE_BACK = "),
    ] {
        let (_, block) =
            PAGE.split_once(&format!("<!-- {name}-script -->\n```lua\n")).expect("the page has the script");
        let (shown, _) = block.split_once("```").expect("the block ends");
        assert_eq!(shown, script, "docs/protocol/README.md shows another {name} script; {CONTRACT_RULE}");
        let assigned = format!("\n{assigned}\"\"\"\n{python}\"\"\"");
        assert!(PYTHON.contains(&assigned), "worker.py has another {name} script");
    }
}

#[test]
fn times_of_a_claim_are_those_of_the_page() {
    assert_eq!(CLAIM_LEASE_MS, INSTANCE_TIMEOUT_SECONDS * 1_000);
    let total = (CLAIM_LEASE_MS + CLAIM_RETENTION_MS).to_string();
    assert!(PAGE.contains(&total) && PAGE.contains(&CLAIM_RETENTION_MS.to_string()), "{total}");
}

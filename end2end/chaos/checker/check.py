"""Checks the evidence of one scenario: `python3 check.py FOLDER`.

Writes verdict.json and timeline.svg into the folder. The exit code is 0 if the scenario passed, 1 if it failed, and 2
if the evidence cannot be read.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from evidence import Evidence, EvidenceError, load
from measure import lateness, recovery, totals
from timeline import timeline
from verdicts import judge, passed

# The maximum number of findings listed for each verdict; all of them are counted.
SHOWN = 20


def report(evidence: Evidence) -> dict[str, Any]:
    """Returns the content of verdict.json."""
    run = evidence.run
    findings = judge(evidence)
    return {
        "scenario": run.scenario,
        "seed": run.seed,
        "round": run.round,
        "passed": passed(evidence, findings),
        "verdicts": {name: found[:SHOWN] for name, found in findings.items()},
        "counts": {name: len(found) for name, found in findings.items()},
        "tolerated": {
            name: {"reason": reason, "count": len(findings[name])} for name, reason in run.tolerate.items()
        },
        "totals": totals(evidence),
        "lateness": lateness(evidence),
        "recovery": recovery(evidence),
    }


def summary(verdict: dict[str, Any]) -> str:
    """Returns the report as a few lines of text."""
    total = verdict["totals"]
    lines = [
        f"{'PASS' if verdict['passed'] else 'FAIL'} {verdict['scenario']}"
        f" (seed {verdict['seed']}, round {verdict['round']}): {total['jobs']} jobs, {total['due']} due,"
        f" {total['triggers']} triggers, {total['enqueued']} enqueued, {total['occurrences']} occurrences, {total['starts']} starts,"
        f" {total['ends']} ends, {total['further_attempts']} further attempts, {total['faults']} faults"
    ]
    for name, found in verdict["verdicts"].items():
        if found:
            tolerated = verdict["tolerated"].get(name)
            why = f" (tolerated: {tolerated['reason']})" if tolerated else ""
            lines.append(f"  {name}: {verdict['counts'][name]}{why}: {found[0]}")
    for phase, spread in verdict["lateness"].items():
        if spread["n"]:
            lines.append(
                f"  lateness {phase} the faults: {spread['n']} starts, p50 {spread['p50_ms']} ms,"
                f" p99 {spread['p99_ms']} ms, max {spread['max_ms']} ms"
            )
    for fault in verdict["recovery"]:
        lines.append(
            f"  after {fault['fault']} {fault['target']} ({fault['length_ms']} ms): dispatch {_ms(fault['dispatch_ms'])},"
            f" orphans {fault['orphans']} (longest {_ms(fault['orphan_max_ms'])}), drained {_ms(fault['drained_ms'])}"
        )
    return "\n".join(lines)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value} ms"


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python3 check.py FOLDER", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    try:
        evidence = load(folder)
        verdict = report(evidence)
    except EvidenceError as error:
        print(f"the evidence cannot be checked: {error}", file=sys.stderr)
        return 2
    (folder / "verdict.json").write_text(json.dumps(verdict, indent=2) + "\n", encoding="utf-8")
    (folder / "timeline.svg").write_text(timeline(evidence), encoding="utf-8")
    print(summary(verdict))
    return 0 if verdict["passed"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

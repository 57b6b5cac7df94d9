"""Checks the evidence of a scenario about singleton loops: `python3 check_loops.py FOLDER`.

Writes verdict.json into the folder. The exit code is 0 if the scenario passed, 1 if it failed, and 2 if the evidence
cannot be read. EVIDENCE.md specifies the files and the verdicts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

# The maximum number of findings listed for each verdict; all of them are counted.
SHOWN = 20
VERDICTS = ("loop_overlap", "run_overlap", "epoch_twice", "loop_gap", "loop_missing")
# Faults after which Redis may have forgotten a lease.
FORGETS = ("flush", "stale", "restart")
# A gap counts as an outage of its loop if it is longer than this many periods: one tick may be late, or dropped.
OUTAGE_PERIODS = 5


def read_lines(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text().splitlines()
    return [json.loads(line) for line in lines]


def percentile(values: list[float], percent: float) -> float:
    ordered = sorted(values)
    if not ordered:
        return 0.0
    return ordered[max(0, -(-len(ordered) * int(percent) // 100) - 1)]


def overlaps(name: str, events: list[dict[str, Any]], run: dict[str, Any], faults: list[dict[str, Any]]) -> list[str]:
    """Returns the steps with an epoch lower than one that was seen before, except shortly after Redis lost a lease."""
    allowance = run["overlap_allowance_ms"] * 1000
    excused = [(fault["began"], fault["ended"] + allowance) for fault in faults if fault["fault"] in FORGETS]
    found, highest = [], events[0]
    for event in events:
        if event["epoch"] >= highest["epoch"]:
            highest = event
        elif not any(began <= event["made"] <= ended for began, ended in excused):
            found.append(
                f"{name}: {event['process']} made a step with epoch {event['epoch']} after {highest['process']}"
                f" had made one with epoch {highest['epoch']}, {event['made'] - highest['made']} us later"
            )
    return found


def run_overlaps(name: str, events: list[dict[str, Any]]) -> list[str]:
    """Returns the runs that started within a term before the run before them had ended."""
    found, running = [], {}
    for event in events:
        term = (event["epoch"], event["pid"])
        if event["what"] == "start":
            if term in running:
                found.append(f"{name}: run {event['number']} of epoch {event['epoch']} began during run {running[term]}")
            running[term] = event["number"]
        elif event["what"] == "end":
            running.pop(term, None)
    return found


def shared_epochs(name: str, events: list[dict[str, Any]]) -> list[str]:
    """Returns the epochs that two processes had."""
    holders: dict[int, set[int]] = {}
    for event in events:
        holders.setdefault(event["epoch"], set()).add(event["pid"])
    return [f"{name}: epoch {epoch} was granted to {len(pids)} processes" for epoch, pids in holders.items() if len(pids) > 1]


def gaps(
    name: str, events: list[dict[str, Any]], run: dict[str, Any], faults: list[dict[str, Any]]
) -> tuple[list[str], list[tuple[str, float]]]:
    """Returns the gaps that are longer than their faults allow, and the longest gap of each kind of fault."""
    limit_ms, outage_ms = run["max_gap_ms"], OUTAGE_PERIODS * run["period_ms"]
    found, measured = [], []
    for before, after in zip(events, events[1:]):
        gap_ms = (after["made"] - before["made"]) / 1000
        if gap_ms <= outage_ms:
            continue
        # The fault that began last before the loop went on, and not before the gap by more than its own effect.
        causes = [
            fault
            for fault in faults
            if fault["fault"] in limit_ms
            and fault["began"] <= after["made"]
            and fault["ended"] + limit_ms[fault["fault"]] * 1000 >= before["made"]
        ]
        if not causes:
            found.append(f"{name}: no run for {gap_ms:.0f} ms without a fault")
            continue
        cause = max(causes, key=lambda fault: limit_ms[fault["fault"]])
        allowed = limit_ms[cause["fault"]]
        if cause["fault"] == "restart":
            # While Redis is away, no instance can lead.
            allowed += (cause["ended"] - cause["began"]) / 1000
        measured.append((cause["fault"], gap_ms))
        if gap_ms > allowed:
            found.append(f"{name}: no run for {gap_ms:.0f} ms after {cause['fault']} of {cause['target']}, more than {allowed:.0f}")
    return found, measured


def report(folder: Path) -> dict[str, Any]:
    """Returns the content of verdict.json."""
    run = json.loads((folder / "run.json").read_text())
    faults = read_lines(folder / "nemesis.jsonl")
    loops: dict[str, list[dict[str, Any]]] = {}
    lateness = []
    for event in sorted(read_lines(folder / "witness.jsonl"), key=lambda event: event["made"]):
        loops.setdefault(event["loop"], []).append(event)
        if event["what"] == "start":
            lateness.append(event["late_us"] / 1000)
    findings: dict[str, list[str]] = {name: [] for name in VERDICTS}
    longest: dict[str, float] = {}
    if len(loops) != run["loops"]:
        findings["loop_missing"].append(f"{run['loops'] - len(loops)} of {run['loops']} loops never ran")
    for name, all_events in sorted(loops.items()):
        findings["loop_overlap"] += overlaps(name, all_events, run, faults)
        findings["run_overlap"] += run_overlaps(name, all_events)
        findings["epoch_twice"] += shared_epochs(name, all_events)
        events = [event for event in all_events if run["began"] <= event["made"] <= run["cut"]]
        found, measured = gaps(name, events, run, faults)
        findings["loop_gap"] += found
        for fault, gap_ms in measured:
            longest[fault] = max(longest.get(fault, 0.0), gap_ms)
    tolerated = run["tolerate"]
    return {
        "scenario": run["scenario"],
        "seed": run["seed"],
        "passed": not any(found for name, found in findings.items() if name not in tolerated),
        "verdicts": {name: found[:SHOWN] for name, found in findings.items()},
        "counts": {name: len(found) for name, found in findings.items()},
        "tolerated": {name: {"reason": reason} for name, reason in tolerated.items()},
        "totals": {
            "starts": len(lateness),
            "hand_overs": sum(len({event["epoch"] for event in events}) - 1 for events in loops.values()),
        },
        "gaps": {"max_ms": max(longest.values(), default=0.0), **{f"{fault}_ms": gap for fault, gap in longest.items()}},
        "lateness": {"all": {"p50_ms": percentile(lateness, 50), "p99_ms": percentile(lateness, 99)}},
        "recovery": [],
    }


def main() -> int:
    folder = Path(sys.argv[1])
    try:
        verdict = report(folder)
    except (OSError, ValueError, KeyError) as error:
        print(f"the evidence in {folder} cannot be read: {error!r}", file=sys.stderr)
        return 2
    (folder / "verdict.json").write_text(json.dumps(verdict, indent=1))
    print("PASS" if verdict["passed"] else "FAIL", verdict["scenario"], verdict["counts"])
    return 0 if verdict["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())

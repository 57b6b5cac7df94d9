"""Figures: lateness, recovery and totals. They fail no scenario; the verdicts in `timing` do."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any

from evidence import FINAL, Evidence
from history import DEADLY, MS, History, FaultSpan, joined
from timing import judged, orphans


def totals(evidence: Evidence) -> dict[str, int]:
    """Returns the number of jobs, occurrences, starts and so on."""
    h = joined(evidence)
    return {
        "jobs": len(evidence.jobs),
        "due": sum(len(owed) for owed in h.expected.must.values()),
        "occurrences": len(evidence.sql),
        "starts": h.starts,
        "ends": h.ends,
        "triggers": len(h.expected.triggers) + len(h.expected.named) + sum(map(len, h.expected.unnamed.values())),
        "enqueued": len(h.expected.enqueued),
        "further_attempts": sum(max(0, row.attempt - 1) for row in evidence.sql),
        "faults": len(evidence.nemesis),
    }


def lateness(evidence: Evidence) -> dict[str, dict[str, Any]]:
    """Returns the time from due to started: before the first fault, during faults and their recovery, and after."""
    h = joined(evidence)
    phases: dict[str, list[int]] = {"before": [], "during": [], "after": []}
    first_fault = h.fault_spans[0].began if h.fault_spans else None
    for row in evidence.sql:
        due, first = h.due(row), h.lateness_start(row.occurrence)
        if due is None or first is None or not judged(h, row.job, due):
            continue
        if h.is_excused(due):
            phase = "during"
        else:
            phase = "before" if first_fault is None or due < first_fault else "after"
        phases[phase].append(first.at - due)
    return {name: _spread(values) for name, values in phases.items()}


def _spread(values: list[int]) -> dict[str, Any]:
    values.sort()

    def nearest(share: float) -> float | None:
        if not values:
            return None
        rank = max(1, -(-len(values) * int(share * 1000) // 1000))
        return _ms(values[rank - 1])

    return {"n": len(values), "p50_ms": nearest(0.5), "p99_ms": nearest(0.99), "max_ms": nearest(1)}


def _ms(span: int) -> float:
    return round(span / MS, 3)


def recovery(evidence: Evidence) -> list[dict[str, Any]]:
    """Returns for each fault the time until dispatching, its orphans and the backlog had recovered."""
    h = joined(evidence)
    killed = orphans(h)
    dispatched = sorted(
        (row.scheduled_for, row.created_at) for row in evidence.sql
        if row.trigger == "schedule" and row.scheduled_for is not None and judged(h, row.job, row.scheduled_for)
    )
    lifetimes = _lifetimes(h)
    report = []
    for index, fault_span in enumerate(h.fault_spans):
        until = h.fault_spans[index + 1].began if index + 1 < len(h.fault_spans) else h.run.read
        gaps = [
            None if again is None else again - death.began
            for _, _, death, again in killed
            if death is fault_span or _same(death, fault_span)
        ]
        known = [gap for gap in gaps if gap is not None]
        report.append({
            "fault": fault_span.fault.fault,
            "target": fault_span.fault.target,
            "detail": fault_span.fault.detail,
            "began": fault_span.began,
            "length_ms": _ms(fault_span.ended - fault_span.began),
            "dispatch_ms": _dispatch(h, dispatched, fault_span.ended, max(until, fault_span.ended)),
            "orphans": len(gaps),
            "orphan_max_ms": _ms(max(known)) if known else None,
            "drained_ms": _drained(lifetimes, fault_span.ended),
        })
    return report


def _same(death: FaultSpan, fault_span: FaultSpan) -> bool:
    """Returns true if a recorded fault is the inferred kill by a crasher, which the harness records a moment later."""
    return (
        death.pid is not None and fault_span.fault.fault in DEADLY and fault_span.fault.target == death.fault.target
        and death.began <= fault_span.began <= death.ended
    )


def _dispatch(h: History, dispatched: list[tuple[int, int]], ended: int, until: int) -> float | None:
    """Returns the time from a fault's end to the first due time after which every occurrence, until the next fault, was
    created in time. It is None if there is no such due time, and 0 if none was late.
    """
    good: int | None = None
    late_seen = False
    for due, created in dispatched[bisect_left(dispatched, (ended, 0)):bisect_right(dispatched, (until, h.run.read))]:
        if created - due > h.run.slo_ms * MS:
            late_seen, good = True, None
        elif good is None:
            good = due
    if good is None:
        return None
    return _ms(good - ended) if late_seen else 0.0


def _lifetimes(h: History) -> list[tuple[int, int | None]]:
    """Returns the creation and the end of each occurrence. The end is the witness's, if it received the last one."""
    lifetimes: list[tuple[int, int | None]] = []
    for row in h.evidence.sql:
        if row.status not in FINAL:
            lifetimes.append((row.created_at, None))
            continue
        last = h.final_attempt(row.occurrence)
        if last is not None and last.end is not None:
            lifetimes.append((row.created_at, last.end.at))
        else:
            lifetimes.append((row.created_at, row.ended_at if row.ended_at is not None else row.created_at))
    return lifetimes


def _drained(lifetimes: list[tuple[int, int | None]], ended: int) -> float | None:
    """Returns the time from a fault's end until every occurrence that was open then had ended."""
    last = ended
    for created, over in lifetimes:
        if created <= ended:
            if over is None:
                return None
            last = max(last, over)
    return _ms(last - ended)

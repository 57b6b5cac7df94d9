"""Figures: how late, how fast back to normal, how much of everything. They fail no run; `timing` does that."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any

from evidence import FINAL, Evidence
from history import DEADLY, MS, History, FaultSpan, joined
from timing import judged, orphans


def totals(evidence: Evidence) -> dict[str, int]:
    h = joined(evidence)
    return {
        "jobs": len(evidence.jobs),
        "due": sum(len(owed) for owed in h.expected.must.values()),
        "occurrences": len(evidence.sql),
        "starts": h.starts,
        "ends": h.ends,
        "triggers": len(h.expected.triggers) + len(h.expected.named) + sum(map(len, h.expected.nameless.values())),
        "further_attempts": sum(max(0, row.attempt - 1) for row in evidence.sql),
        "faults": len(evidence.nemesis),
    }


def lateness(evidence: Evidence) -> dict[str, dict[str, Any]]:
    """Due to started, before the first fault, during faults (with their recovery), and after."""
    h = joined(evidence)
    phases: dict[str, list[int]] = {"before": [], "during": [], "after": []}
    first_fault = h.spells[0].began if h.spells else None
    for row in evidence.sql:
        due, first = h.due(row), h.opening(row.occurrence)
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
    """For each fault, how long until things were as before."""
    h = joined(evidence)
    killed = orphans(h)
    dispatched = sorted(
        (row.scheduled_for, row.created_at) for row in evidence.sql
        if row.trigger == "schedule" and row.scheduled_for is not None and judged(h, row.job, row.scheduled_for)
    )
    lives = _lives(h)
    report = []
    for index, spell in enumerate(h.spells):
        until = h.spells[index + 1].began if index + 1 < len(h.spells) else h.run.read
        gaps = [
            None if again is None else again - death.began
            for _, _, death, again in killed
            if death is spell or _same(death, spell)
        ]
        known = [gap for gap in gaps if gap is not None]
        report.append({
            "fault": spell.fault.fault,
            "target": spell.fault.target,
            "detail": spell.fault.detail,
            "began": spell.began,
            "length_ms": _ms(spell.ended - spell.began),
            "dispatch_ms": _dispatch(h, dispatched, spell.ended, max(until, spell.ended)),
            "orphans": len(gaps),
            "orphan_max_ms": _ms(max(known)) if known else None,
            "drained_ms": _drained(lives, spell.ended),
        })
    return report


def _same(death: FaultSpan, spell: FaultSpan) -> bool:
    """Whether a fault on record is the death by a crasher that was inferred: the harness sees it a moment later."""
    return (
        death.pid is not None and spell.fault.fault in DEADLY and spell.fault.target == death.fault.target
        and death.began <= spell.began <= death.ended
    )


def _dispatch(h: History, dispatched: list[tuple[int, int]], ended: int, until: int) -> float | None:
    """From the fault's end to the first due instant from which on, until the next fault, all is created in time."""
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


def _lives(h: History) -> list[tuple[int, int | None]]:
    """When each occurrence was created, and when it was over: by the witness where it saw the last end."""
    lives: list[tuple[int, int | None]] = []
    for row in h.evidence.sql:
        if row.status not in FINAL:
            lives.append((row.created_at, None))
            continue
        last = h.final_attempt(row.occurrence)
        if last is not None and last.end is not None:
            lives.append((row.created_at, last.end.at))
        else:
            lives.append((row.created_at, row.ended_at if row.ended_at is not None else row.created_at))
    return lives


def _drained(lives: list[tuple[int, int | None]], ended: int) -> float | None:
    last = ended
    for created, over in lives:
        if created <= ended:
            if over is None:
                return None
            last = max(last, over)
    return _ms(last - ended)

"""Verdicts on times: nothing starts too early, too late, or too long after a kill."""

from __future__ import annotations

from collections import Counter

from evidence import Evidence
from history import MS, History, FaultSpan, is_service, joined, when


def early(evidence: Evidence) -> list[str]:
    """Finds starts before the due time, by more than clocks may differ."""
    h = joined(evidence)
    allowed = h.run.early_ms * MS
    found = []
    for row in evidence.sql:
        first = h.first_start(row.occurrence)
        if first is None:
            continue
        due = h.due(row)
        if row.trigger == "enqueue" and row.occurrence in h.expected.enqueued:
            due = h.expected.enqueued[row.occurrence].not_before
        if due is not None and first.at < due - allowed:
            found.append(
                f"Occurrence {row.occurrence} of job {row.job} was started at {when(first.at)},"
                f" {(due - first.at) / MS:.3f} ms before it was due."
            )
    return found


def late(evidence: Evidence) -> list[str]:
    """Finds occurrences that were created or started later than allowed. One that never started is lost, not late."""
    h = joined(evidence)
    found = []
    for row in evidence.sql:
        due = h.due(row)
        if due is None or not judged(h, row.job, due):
            continue
        allowed, dispatch_allowed = h.allowances(due)
        first = h.lateness_start(row.occurrence)
        inside = " during a fault" if h.is_excused(due) else ""
        if allowed is not None and first is not None and first.at - due > allowed * MS:
            found.append(
                f"Occurrence {row.occurrence} of job {row.job}, due at {when(due)}{inside}, was started"
                f" {(first.at - due) / MS:.3f} ms later; {allowed} ms are allowed."
            )
        if dispatch_allowed is not None and row.created_at - due > dispatch_allowed * MS:
            found.append(
                f"Occurrence {row.occurrence} of job {row.job}, due at {when(due)}{inside}, was created"
                f" {(row.created_at - due) / MS:.3f} ms later; {dispatch_allowed} ms are allowed."
            )
    return found


def judged(h: History, job: str, due: int) -> bool:
    """Returns false if the job was due before its definition was acknowledged, because then no run can be on time."""
    return due >= h.expected.defined.get(job, h.run.began)


def orphan_late(evidence: Evidence) -> list[str]:
    """Finds killed runs whose next attempt started too late or never.

    A run that was lost for the second time waits in quarantine for the runs ahead of it, so only a missing start of its
    next attempt is a finding.
    """
    h = joined(evidence)
    if h.run.orphan_ms is None:
        return []
    allowed = h.run.orphan_ms * MS
    found = []
    losses = Counter()
    for occurrence, number, death, again in orphans(h):
        losses[occurrence] += 1
        deadline = _excused_until(h, occurrence, number, death) + allowed
        row = h.rows.get(occurrence)
        name = f"Attempt {number} of occurrence {occurrence}, killed with {death.fault.target} at {when(death.began)},"
        if again is not None:
            if again > deadline and losses[occurrence] == 1:
                found.append(f"{name} was followed by another one {(again - death.began) / MS:.3f} ms later.")
        elif row is not None and row.status != "cancelled" and h.run.read > deadline:
            found.append(f"{name} was never followed by another one.")
    return found


def orphans(h: History) -> list[tuple[str, int, FaultSpan, int | None]]:
    """Returns each killed run: occurrence, attempt, the fault that killed it, and the start of the next attempt."""
    found = []
    if not any(True for _ in h.all_fault_spans):
        return found
    for occurrence, attempts in h.attempts.items():
        for index, attempt in enumerate(attempts):
            start = attempt.start
            # A crasher always ends with its process, and other rules decide about its next attempt.
            if start is None or attempt.end is not None or h.type_of(start.job) == "crasher":
                continue
            death = h.death(start)
            if death is not None:
                later = (a.start.at for a in attempts[index + 1:] if a.start is not None)
                found.append((occurrence, attempt.number, death, next(later, None)))
    return found


def _excused_until(h: History, occurrence: str, number: int, death: FaultSpan) -> int:
    """Returns the instant from which the next attempt can be expected.

    An unavailable service or server delays the detection of a kill. So does a freeze or a cut of the worker before it
    was killed. If an attempt in between was claimed but never started, its worker may have been killed as well, so
    faults of any worker are excuses then.
    """
    attempts = h.attempts[occurrence]
    following = next((a.number for a in attempts if a.number > number), number + 1)
    link = death.fault.target + ">"
    reference = max(death.began, _start(h, occurrence, number))
    allowed = (h.run.orphan_ms or 0) * MS
    for fault_span in sorted(h.all_fault_spans, key=lambda fault_span: fault_span.began):
        target = fault_span.fault.target
        hinders = (
            is_service(target)
            or target.startswith(link)
            or (target == death.fault.target and fault_span.fault.fault == "freeze")
            or (following > number + 1 and target.startswith("worker"))
        )
        if hinders and fault_span.began <= reference + allowed and fault_span.ended > reference:
            reference = fault_span.ended
    return reference


def _start(h: History, occurrence: str, number: int) -> int:
    return next(a.start.at for a in h.attempts[occurrence] if a.number == number and a.start is not None)

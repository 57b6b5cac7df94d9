"""Verdicts on the attempts of one occurrence relative to each other."""

from __future__ import annotations

from evidence import Evidence, OccurrenceRecord
from history import ADDING, DEADLY, MS, Attempt, History, joined, when


def overlap(evidence: Evidence) -> list[str]:
    """Finds two attempts that ran at once, although no fault had isolated the worker of the first."""
    h = joined(evidence)
    found = []
    for occurrence, attempts in h.attempts.items():
        if len(attempts) < 2:
            continue
        begun = sorted((a for a in attempts if a.start is not None), key=lambda a: a.start.at)
        for index, first in enumerate(begun):
            over = _end(h, first)
            for second in begun[index + 1:]:
                if over is not None and over <= second.start.at:
                    continue
                if not _explained(h, first, second.start.at):
                    until = "has no end" if over is None else f"ended at {when(over)}"
                    found.append(
                        f"Attempt {second.number} of occurrence {occurrence} was started on {second.start.process}"
                        f" at {when(second.start.at)}, while attempt {first.number} ran on {first.start.process}: it {until}."
                    )
            found.extend(_started_out_of_order(h, occurrence, first, begun[:index]))
    return found


def _started_out_of_order(h: History, occurrence: str, attempt: Attempt, before: list[Attempt]) -> list[str]:
    """Finds an attempt that started after a later one.

    A freeze or a cut between the claim and the start is an excuse. A kill is not.
    """
    newer = next((a for a in before if a.number > attempt.number), None)
    if newer is None or _explained(h, attempt, attempt.start.at, newer.start.at, DEADLY):
        return []
    return [
        f"Attempt {attempt.number} of occurrence {occurrence} was started on {attempt.start.process} at"
        f" {when(attempt.start.at)}, after attempt {newer.number}, which was started at {when(newer.start.at)}."
    ]


def _end(h: History, attempt: Attempt) -> int | None:
    """Returns the instant at which an attempt stopped running, or None if it is unknown."""
    if attempt.end is not None:
        return attempt.end.at
    if h.type_of(attempt.start.job) == "crasher":
        return attempt.start.at
    death = h.death(attempt.start)
    return None if death is None else max(death.began, attempt.start.at)


def _explained(
    h: History, first: Attempt, until: int, since: int | None = None, but: frozenset[str] = frozenset()
) -> bool:
    """Returns true if the first attempt's worker was isolated for some time before the second attempt began.

    A kill does not count, because a dead process runs nothing. An instantaneous fault does not count either, because no
    run is declared lost over it.
    """
    since = (first.start.at if since is None else since) - h.run.heartbeat_timeout_ms * MS
    process, link = first.start.process, first.start.process + ">"
    for fault_span in h.fault_spans:
        kind, target = fault_span.fault.fault, fault_span.fault.target
        if fault_span.began > until or fault_span.ended < since or fault_span.ended == fault_span.began:
            continue
        if kind in ADDING or kind in but:
            continue
        if target.startswith(link) or (target == process and kind not in DEADLY):
            return True
    return False


def false_lost(evidence: Evidence) -> list[str]:
    """Finds attempts that were declared lost although their process lived, was not frozen and had all its links."""
    h = joined(evidence)
    found = []
    for occurrence, attempts in h.attempts.items():
        row = h.rows.get(occurrence)
        if row is None or (row.attempt < 2 and len(attempts) < 2 and not _was_unknown(row)):
            continue
        for index, attempt in enumerate(attempts):
            start, end = attempt.start, attempt.end
            if start is None or h.type_of(start.job) == "crasher":
                continue
            if end is not None and end.outcome in ("failed", "panicked"):
                continue
            if end is not None and end.outcome == "cancelled" and _cancel_requested(h, occurrence):
                continue
            following = attempts[index + 1] if index + 1 < len(attempts) else None
            lost_at = _declared_lost_at(h, row, attempt, following)
            if lost_at is not None and h.loss_cause(start, lost_at) is None:
                state = "was still running" if end is None or end.at > lost_at else f"had {end.outcome}"
                found.append(
                    f"Attempt {attempt.number} of occurrence {occurrence} was declared lost at {when(lost_at)}; it {state}"
                    f" on {start.process}, which had no fault since {when(start.at - h.run.heartbeat_timeout_ms * MS)}."
                )
    return found


def _was_unknown(row: OccurrenceRecord) -> bool:
    return row.status == "unknown" or any(change.status == "unknown" for change in row.changes)


def _cancel_requested(h: History, occurrence: str) -> bool:
    return any(op.outcome != "refused" for op in h.cancels.get(occurrence, ()))


def _declared_lost_at(h: History, row: OccurrenceRecord, attempt: Attempt, following: Attempt | None) -> int | None:
    """Returns the instant at which the product declared an attempt lost, or None if it did not.

    The product's own instants are used only if they are possible, because a wrong clock may have stamped them.
    """
    began = attempt.start.at
    moments = []
    if following is not None:
        seen = following.start or following.end
        moments.append(max(seen.at, began))
    for change in row.changes:
        if (change.attempt == attempt.number and change.status == "unknown") or change.attempt > attempt.number:
            moments.append(change.at if began <= change.at <= h.run.read else h.run.read)
            break
    if row.attempt > attempt.number or (row.status == "unknown" and row.attempt == attempt.number):
        moments.append(h.run.read)
    return min(moments, default=None)

"""Verdicts on attempts of one occurrence among each other."""

from __future__ import annotations

from evidence import Evidence, OccurrenceRecord
from history import ADDING, DEADLY, MS, Attempt, History, joined, when


def overlap(evidence: Evidence) -> list[str]:
    """Two attempts at once, where nothing had cut the first one's worker off."""
    h = joined(evidence)
    found = []
    for occurrence, attempts in h.attempts.items():
        if len(attempts) < 2:
            continue
        begun = sorted((a for a in attempts if a.start is not None), key=lambda a: a.start.at)
        for index, first in enumerate(begun):
            over = _over(h, first)
            for second in begun[index + 1:]:
                if over is not None and over <= second.start.at:
                    continue
                if not _explained(h, first, second.start.at):
                    until = "has no end" if over is None else f"ended at {when(over)}"
                    found.append(
                        f"Attempt {second.number} of occurrence {occurrence} was started on {second.start.process}"
                        f" at {when(second.start.at)}, while attempt {first.number} ran on {first.start.process}: it {until}."
                    )
            found.extend(_overtaken(h, occurrence, first, begun[:index]))
    return found


def _overtaken(h: History, occurrence: str, attempt: Attempt, before: list[Attempt]) -> list[str]:
    """An attempt that began after a later one had. It may have been claimed and then held up, but not by a death."""
    newer = next((a for a in before if a.number > attempt.number), None)
    if newer is None or _explained(h, attempt, attempt.start.at, newer.start.at, DEADLY):
        return []
    return [
        f"Attempt {attempt.number} of occurrence {occurrence} was started on {attempt.start.process} at"
        f" {when(attempt.start.at)}, after attempt {newer.number} had been, at {when(newer.start.at)}."
    ]


def _over(h: History, attempt: Attempt) -> int | None:
    """When an attempt stopped running, or None where nothing tells."""
    if attempt.end is not None:
        return attempt.end.at
    if h.type_of(attempt.start.job) == "crasher":
        return attempt.start.at
    death = h.death(attempt.start)
    return None if death is None else max(death.began, attempt.start.at)


def _explained(
    h: History, first: Attempt, until: int, since: int | None = None, but: frozenset[str] = frozenset()
) -> bool:
    """Whether the first attempt's worker was cut off for a while before the second began.

    A death does not count, for a dead process runs nothing; nor does what takes no time, for nobody is given up over it.
    """
    since = (first.start.at if since is None else since) - h.run.heartbeat_timeout_ms * MS
    process, link = first.start.process, first.start.process + ">"
    for spell in h.spells:
        kind, target = spell.fault.fault, spell.fault.target
        if spell.began > until or spell.ended < since or spell.ended == spell.began or kind in ADDING or kind in but:
            continue
        if target.startswith(link) or (target == process and kind not in DEADLY):
            return True
    return False


def false_lost(evidence: Evidence) -> list[str]:
    """Given up as lost, although its process lived, was not frozen and had all its links."""
    h = joined(evidence)
    found = []
    for occurrence, attempts in h.attempts.items():
        row = h.rows.get(occurrence)
        if row is None or (row.attempt < 2 and len(attempts) < 2 and not _unknown(row)):
            continue
        for index, attempt in enumerate(attempts):
            start, end = attempt.start, attempt.end
            if start is None or h.type_of(start.job) == "crasher":
                continue
            if end is not None and end.outcome in ("failed", "panicked"):
                continue
            if end is not None and end.outcome == "cancelled" and _cancelled(h, occurrence):
                continue
            following = attempts[index + 1] if index + 1 < len(attempts) else None
            given_up = _given_up(h, row, attempt, following)
            if given_up is not None and h.silenced(start, given_up) is None:
                state = "was still running" if end is None or end.at > given_up else f"had {end.outcome}"
                found.append(
                    f"Attempt {attempt.number} of occurrence {occurrence} was given up at {when(given_up)}; it {state}"
                    f" on {start.process}, of which nothing was wrong since {when(start.at - h.run.heartbeat_timeout_ms * MS)}."
                )
    return found


def _unknown(row: OccurrenceRecord) -> bool:
    return row.status == "unknown" or any(change.status == "unknown" for change in row.changes)


def _cancelled(h: History, occurrence: str) -> bool:
    return any(op.outcome != "refused" for op in h.cancels.get(occurrence, ()))


def _given_up(h: History, row: OccurrenceRecord, attempt: Attempt, following: Attempt | None) -> int | None:
    """When the product gave an attempt up, or None if it did not.

    The product's own instants are taken only where they can be true: a clock that was put wrong may have made them.
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

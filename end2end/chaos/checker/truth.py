"""Verdicts on whether the product tells the truth, and the same truth everywhere."""

from __future__ import annotations

from evidence import FINAL, StatusChange, Evidence, OccurrenceRecord
from history import joined, when

# From each state, the states that may follow within one attempt. `running` may be missing from a life, for reports
# travel in batches; that it is there twice is a second worker's claim, which `dup_start` judges by the witness.
_ENDINGS = frozenset(("completed", "failed", "cancelled", "timed-out"))
RULES: dict[str, frozenset[str]] = {
    "queued": _ENDINGS | {"running", "queued"},
    "running": _ENDINGS | {"unknown", "queued", "running"},
    "unknown": _ENDINGS | {"running", "queued"},
    # An attempt that failed is on record as failed; what follows is the next attempt's life.
    "failed": frozenset(("queued",)),
    "timed-out": frozenset(("queued",)),
}


def stuck(evidence: Evidence) -> list[str]:
    """Not final although everything had time to settle."""
    return [
        f"Occurrence {row.occurrence} of job {row.job} is still {row.status}, in attempt {row.attempt}."
        for row in evidence.sql
        if row.status not in FINAL
    ]


def status_lie(evidence: Evidence) -> list[str]:
    """A final status that the witness contradicts. What `lost_result` tells is not told again."""
    h = joined(evidence)
    found = []
    for row in evidence.sql:
        status = row.status
        attempts = h.attempts.get(row.occurrence)
        if status == "completed":
            if attempts is None or not any(
                a.number == row.attempt and a.end is not None and a.end.outcome == "completed" for a in attempts
            ):
                found.append(
                    f"Occurrence {row.occurrence} is completed, and its attempt {row.attempt} was not seen to complete."
                )
        elif status == "cancelled":
            if not any(op.outcome != "refused" for op in h.cancels.get(row.occurrence, ())):
                found.append(f"Occurrence {row.occurrence} is cancelled, and nobody cancelled it.")
        elif status == "skipped":
            if attempts is not None:
                found.append(f"Occurrence {row.occurrence} is skipped, and was started.")
        elif status in ("failed", "timed-out") and attempts is not None:
            end = attempts[-1].end
            if end is not None and end.outcome == "cancelled":
                found.append(
                    f"Occurrence {row.occurrence} is {status}, and its last attempt was seen to be cancelled"
                    f" at {when(end.at)}."
                )
    return found


def lost_result(evidence: Evidence) -> list[str]:
    """The witness saw the last attempt end, and the product does not know how."""
    h = joined(evidence)
    found = []
    for row in evidence.sql:
        if row.status not in ("unknown", "failed", "timed-out"):
            continue
        last = h.final_attempt(row.occurrence)
        if last is None or last.end is None:
            continue
        if last.end.outcome == "completed" or row.status == "unknown":
            found.append(
                f"Attempt {last.number} of occurrence {row.occurrence} {last.end.outcome} at {when(last.end.at)},"
                f" and the product says {row.status}."
            )
    return found


def failed_by_infra(evidence: Evidence) -> list[str]:
    """Failed although no run of it did. A crasher's runs end with their process, so it may fail without."""
    h = joined(evidence)
    return [
        f"Occurrence {row.occurrence} of job {row.job} is {row.status}, and no run of it was seen to fail"
        f" (note: {row.note or 'none'})."
        for row in evidence.sql
        if row.status in ("failed", "timed-out")
        and h.type_of(row.job) != "crasher"
        and not any(
            a.end is not None and a.end.outcome in ("failed", "panicked") for a in h.attempts.get(row.occurrence, ())
        )
    ]


def state_regress(evidence: Evidence) -> list[str]:
    """A life that goes backwards."""
    found = []
    for row in evidence.sql:
        wrong = _wrong(row)
        if wrong is not None:
            found.append(f"Occurrence {row.occurrence} of job {row.job}: {wrong}.")
    return found


def _wrong(row: OccurrenceRecord) -> str | None:
    changes = row.changes
    if not changes:
        return f"is {row.status} without a life"
    before = changes[0]
    if before.status not in ("queued", "skipped"):
        return f"was born {before.status}"
    for change in changes[1:]:
        if not _may_follow(before, change):
            return (
                f"{before.status} (attempt {before.attempt}) was followed by {change.status}"
                f" (attempt {change.attempt}) at {when(change.at)}"
            )
        before = change
    if before.status != row.status or before.attempt != row.attempt:
        return f"its life ends {before.status} (attempt {before.attempt}), and it is {row.status} (attempt {row.attempt})"
    return None


def _may_follow(before: StatusChange, after: StatusChange) -> bool:
    if after.status not in RULES.get(before.status, ()) or after.attempt < before.attempt:
        return False
    if before.status in ("failed", "timed-out"):
        return after.attempt == before.attempt + 1
    if after.status == "queued":
        # A wait that is over, or a message put back, repeats `queued`; a run handed back says who did it, or why.
        return after.attempt > before.attempt or before.status == "queued" or bool(after.by or after.note)
    return after.attempt == before.attempt  # Only being queued begins another attempt.


def api_sql_mismatch(evidence: Evidence) -> list[str]:
    """The interface tells something else than the database."""
    rows = joined(evidence).rows
    told: set[str] = set()
    found = []
    for api in evidence.api:
        if api.occurrence in told:
            found.append(f"Occurrence {api.occurrence} is told twice by the interface.")
            continue
        told.add(api.occurrence)
        sql = rows.get(api.occurrence)
        if sql is None:
            found.append(f"Occurrence {api.occurrence} is told by the interface and is not in the database.")
        elif (
            api.status != sql.status or api.attempt != sql.attempt or api.scheduled_for != sql.scheduled_for
            or api.started_at != sql.started_at or api.ended_at != sql.ended_at or api.job != sql.job
            or api.trigger != sql.trigger or api.instance != sql.instance or api.note != sql.note
        ):
            members = ("job", "scheduled_for", "trigger", "status", "attempt", "started_at", "ended_at", "note", "instance")
            differ = [
                f"{name} is {getattr(api, name)}, in the database {getattr(sql, name)}"
                for name in members
                if getattr(api, name) != getattr(sql, name)
            ]
            found.append(f"Occurrence {api.occurrence} by the interface: {'; '.join(differ)}.")
    if len(told) != len(rows) or found:
        found.extend(
            f"Occurrence {occurrence} is in the database and is not told by the interface."
            for occurrence in rows
            if occurrence not in told
        )
    return found


def order_lie(evidence: Evidence) -> list[str]:
    """The live stream told an end that is not the final one."""
    rows = joined(evidence).rows
    found = []
    for occurrence, status in evidence.leftovers.heard.items():
        if status not in FINAL:
            continue
        row = rows.get(occurrence)
        if row is None:
            found.append(f"The live stream told that occurrence {occurrence} is {status}; it does not exist.")
        elif row.status != status:
            found.append(f"The live stream told that occurrence {occurrence} is {status}; it is {row.status}.")
    return found

"""Verdicts on the statuses that the product shows: they are true, and the same everywhere."""

from __future__ import annotations

from evidence import FINAL, StatusChange, Evidence, OccurrenceRecord
from history import joined, when

# The statuses that may follow each status within one attempt. `running` may be missing, because reports travel in
# batches. A second `running` is another worker's claim, which `dup_start` judges by the witness.
_ENDINGS = frozenset(("completed", "failed", "cancelled", "timed-out"))
RULES: dict[str, frozenset[str]] = {
    "queued": _ENDINGS | {"running", "queued"},
    "running": _ENDINGS | {"unknown", "queued", "running"},
    "unknown": _ENDINGS | {"running", "queued"},
    # A failed attempt is recorded as failed; anything after it belongs to the next attempt.
    "failed": frozenset(("queued",)),
    "timed-out": frozenset(("queued",)),
}


def stuck(evidence: Evidence) -> list[str]:
    """Finds occurrences that are not final, although everything had time to end."""
    return [
        f"Occurrence {row.occurrence} of job {row.job} is still {row.status} in attempt {row.attempt}."
        for row in evidence.sql
        if row.status not in FINAL
    ]


def status_lie(evidence: Evidence) -> list[str]:
    """Finds final statuses that contradict the witness, except those that `lost_result` finds."""
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
                    f"Occurrence {row.occurrence} is completed, but its attempt {row.attempt} reported no completion."
                )
        elif status == "cancelled":
            if not any(op.outcome != "refused" for op in h.cancels.get(row.occurrence, ())):
                found.append(f"Occurrence {row.occurrence} is cancelled, but no cancellation was requested.")
        elif status == "skipped":
            if attempts is not None:
                found.append(f"Occurrence {row.occurrence} is skipped, but was started.")
        elif status in ("failed", "timed-out") and attempts is not None:
            end = attempts[-1].end
            if end is not None and end.outcome == "cancelled":
                found.append(
                    f"Occurrence {row.occurrence} is {status}, but its last attempt reported a cancellation"
                    f" at {when(end.at)}."
                )
    return found


def lost_result(evidence: Evidence) -> list[str]:
    """Finds last attempts whose end the witness received and whose outcome the product does not have."""
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
                f" but the database has {row.status}."
            )
    return found


def failed_by_infra(evidence: Evidence) -> list[str]:
    """Finds failed occurrences without a failed attempt. Crashers are exempt: their runs end with their process."""
    h = joined(evidence)
    return [
        f"Occurrence {row.occurrence} of job {row.job} is {row.status}, but none of its attempts reported a failure"
        f" (note: {row.note or 'none'})."
        for row in evidence.sql
        if row.status in ("failed", "timed-out")
        and h.type_of(row.job) != "crasher"
        and not any(
            a.end is not None and a.end.outcome in ("failed", "panicked") for a in h.attempts.get(row.occurrence, ())
        )
    ]


def state_regress(evidence: Evidence) -> list[str]:
    """Finds status histories with a transition that is not allowed."""
    found = []
    for row in evidence.sql:
        violation = _invalid_history(row)
        if violation is not None:
            found.append(f"Occurrence {row.occurrence} of job {row.job}: {violation}.")
    return found


def _invalid_history(row: OccurrenceRecord) -> str | None:
    changes = row.changes
    if not changes:
        return f"it is {row.status} and has no status history"
    before = changes[0]
    if before.status not in ("queued", "skipped"):
        return f"its status history begins with {before.status}"
    for change in changes[1:]:
        if not _may_follow(before, change):
            return (
                f"{before.status} (attempt {before.attempt}) was followed by {change.status}"
                f" (attempt {change.attempt}) at {when(change.at)}"
            )
        before = change
    if before.status != row.status or before.attempt != row.attempt:
        return (
            f"its status history ends with {before.status} (attempt {before.attempt}),"
            f" but it is {row.status} (attempt {row.attempt})"
        )
    return None


def _may_follow(before: StatusChange, after: StatusChange) -> bool:
    if after.status not in RULES.get(before.status, ()) or after.attempt < before.attempt:
        return False
    if before.status in ("failed", "timed-out"):
        return after.attempt == before.attempt + 1
    if after.status == "queued":
        # `queued` is repeated when a wait ends or a message is republished. A run that is handed back has an author or
        # a reason.
        return after.attempt > before.attempt or before.status == "queued" or bool(after.by or after.note)
    return after.attempt == before.attempt  # Only `queued` begins another attempt.


def api_sql_mismatch(evidence: Evidence) -> list[str]:
    """Finds differences between the API reading and the database reading."""
    rows = joined(evidence).rows
    reported: set[str] = set()
    found = []
    for api in evidence.api:
        if api.occurrence in reported:
            found.append(f"Occurrence {api.occurrence} is in the API reading twice.")
            continue
        reported.add(api.occurrence)
        sql = rows.get(api.occurrence)
        if sql is None:
            found.append(f"Occurrence {api.occurrence} is in the API reading but not in the database.")
        elif (
            api.status != sql.status or api.attempt != sql.attempt or api.scheduled_for != sql.scheduled_for
            or api.started_at != sql.started_at or api.ended_at != sql.ended_at or api.job != sql.job
            or api.trigger != sql.trigger or api.instance != sql.instance or api.note != sql.note
        ):
            members = ("job", "scheduled_for", "trigger", "status", "attempt", "started_at", "ended_at", "note", "instance")
            differ = [
                f"{name} is {getattr(api, name)} but in the database {getattr(sql, name)}"
                for name in members
                if getattr(api, name) != getattr(sql, name)
            ]
            found.append(f"Occurrence {api.occurrence} differs in the API reading: {'; '.join(differ)}.")
    if len(reported) != len(rows) or found:
        found.extend(
            f"Occurrence {occurrence} is in the database but not in the API reading."
            for occurrence in rows
            if occurrence not in reported
        )
    return found


def order_lie(evidence: Evidence) -> list[str]:
    """Finds final statuses that the live stream sent and that are not the final ones."""
    rows = joined(evidence).rows
    found = []
    for occurrence, status in evidence.leftovers.heard.items():
        if status not in FINAL:
            continue
        row = rows.get(occurrence)
        if row is None:
            found.append(f"The live stream sent {status} for occurrence {occurrence}, which does not exist.")
        elif row.status != status:
            found.append(f"The live stream sent {status} for occurrence {occurrence}, which is {row.status}.")
    return found

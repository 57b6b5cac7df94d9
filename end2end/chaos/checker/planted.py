"""Registers histories with one planted violation, and harmless variants of them, for the tests only.

A function marked `planted("verdict")` changes a clean history so that this verdict must find something. A function
marked `harmless("verdict")` makes almost the same change, and no verdict may find anything. The function's name is part
of the test's name.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Callable

from evidence import StatusChange, Evidence, FaultRecord, DriverOperation, OccurrenceRecord, WitnessEvent
from history import MS
from schedule import SECOND
from synthetic import BEGAN

Plant = Callable[[Evidence], None]
PLANTED: list[tuple[str, Plant]] = []
HARMLESS: list[tuple[str, Plant]] = []


def planted(verdict: str) -> Callable[[Plant], Plant]:
    """Registers a violation that the verdict must find."""
    return lambda plant: (PLANTED.append((verdict, plant)), plant)[1]


def harmless(verdict: str) -> Callable[[Plant], Plant]:
    """Registers a variant in which no verdict may find anything."""
    return lambda plant: (HARMLESS.append((verdict, plant)), plant)[1]


# Helpers that read and change a history.


def type_of(e: Evidence, row: OccurrenceRecord) -> str:
    return next(job.type for job in e.jobs if job.job == row.job)


def pick(e: Evidence, type_: str = "quick", trigger: str = "schedule", second: int = 4, attempt: int | None = 1) -> OccurrenceRecord:
    """Returns an occurrence from long before the first fault, which is at second 15."""
    for row in e.sql:
        if row.trigger == trigger and type_of(e, row) == type_ and attempt in (None, row.attempt):
            if (row.scheduled_for or row.created_at) >= BEGAN + second * SECOND and first(e, row):
                return row
    raise LookupError(type_)


def seen(e: Evidence, row: OccurrenceRecord, what: str, attempt: int = 1) -> WitnessEvent | None:
    return next((s for s in e.witness if (s.occurrence, s.what, s.attempt) == (row.occurrence, what, attempt)), None)


def first(e: Evidence, row: OccurrenceRecord) -> WitnessEvent | None:
    return seen(e, row, "start")


def forget(e: Evidence, row: OccurrenceRecord, what: str | None = None) -> None:
    e.witness[:] = [s for s in e.witness if s.occurrence != row.occurrence or what not in (None, s.what)]


def drop(e: Evidence, row: OccurrenceRecord) -> None:
    forget(e, row)
    e.sql.remove(row)
    e.api[:] = [r for r in e.api if r.occurrence != row.occurrence]
    e.leftovers.heard.pop(row.occurrence, None)


def add(e: Evidence, row: OccurrenceRecord) -> OccurrenceRecord:
    e.sql.append(row)
    e.api.append(replace(row, changes=[], created_at=0, failures=0, trigger_key=None, parent=None))
    return row


def sync_readings(e: Evidence, row: OccurrenceRecord) -> None:
    """Makes the API reading and the live stream agree with the database row."""
    for api in e.api:
        if api.occurrence == row.occurrence:
            api.status, api.attempt, api.ended_at, api.note = row.status, row.attempt, row.ended_at, row.note
    if row.occurrence in e.leftovers.heard:
        e.leftovers.heard[row.occurrence] = row.status


def become(e: Evidence, row: OccurrenceRecord, status: str) -> None:
    row.status = row.changes[-1].status = status
    sync_readings(e, row)


def copy_of(e: Evidence, row: OccurrenceRecord, name: str, due: int | None = None, key: str | None = None, runs: bool = True) -> OccurrenceRecord:
    """Adds another occurrence like this one, with runs of its own, and returns it."""
    moved = 0 if due is None else due - (row.scheduled_for or 0)
    made = replace(row, occurrence=name, scheduled_for=None if row.scheduled_for is None else row.scheduled_for + moved,
                   created_at=row.created_at + moved, trigger_key=key or row.trigger_key)
    if runs:
        for s in [s for s in e.witness if s.occurrence == row.occurrence]:
            e.witness.append(replace(s, occurrence=name, at=s.at + moved, scheduled_for=made.scheduled_for))
    return add(e, made)


def isolate(e: Evidence, row: OccurrenceRecord) -> None:
    """Moves the occurrence to a worker of its own, so that a fault of that worker affects nothing else."""
    for s in e.witness:
        if s.occurrence == row.occurrence:
            s.process, s.pid, s.instance = "worker-7", 7000, "worker-7-7000"


def rerun(e: Evidence, row: OccurrenceRecord, after_ms: int, first_lasts_ms: int | None) -> WitnessEvent:
    """Declares the run lost and runs it again on worker-3, `after_ms` after its first start.

    The first attempt ends `first_lasts_ms` after its start, or has no end.
    """
    isolate(e, row)
    start, end = first(e, row), seen(e, row, "end")
    if first_lasts_ms is None:
        e.witness.remove(end)
    else:
        end.at = start.at + first_lasts_ms * MS
    at = start.at + after_ms * MS
    again = WitnessEvent(at, at - BEGAN, "start", row.job, row.occurrence, 2, row.scheduled_for, "worker-3-1", "worker-3", 1, None)
    e.witness += [again, replace(again, at=at + 9 * MS, what="end", outcome="completed")]
    row.changes[-1:] = [
        StatusChange("queued", at - 20 * MS, 2, "server-1", "lost"), StatusChange("running", at - 2 * MS, 2, "worker-3-1", None),
        StatusChange("completed", at + 30 * MS, 2, "worker-3-1", None),
    ]
    row.attempt = 2
    sync_readings(e, row)
    return again


def fault(e: Evidence, kind: str, target: str, began: int, lasts_ms: int = 500) -> None:
    e.nemesis.append(FaultRecord(kind, target, began, began + lasts_ms * MS, ""))


def delay(e: Evidence, row: OccurrenceRecord, span: int) -> None:
    """Moves the row's start and everything after it by a time span."""
    for s in e.witness:
        if s.occurrence == row.occurrence:
            s.at += span
    for change in row.changes[1:]:
        change.at += span


def start_after(e: Evidence, row: OccurrenceRecord, span: int) -> None:
    """Moves the row's start to a time span after its due time."""
    delay(e, row, row.scheduled_for + span - first(e, row).at)


def cancel(e: Evidence, row: OccurrenceRecord, outcome: str) -> None:
    at = first(e, row).at
    e.ops.append(DriverOperation("cancel", row.job, row.occurrence, None, at, at + MS, outcome))


def toggled(e: Evidence) -> tuple[DriverOperation, OccurrenceRecord]:
    """Returns the call that disables a job, and an occurrence of that job before the call."""
    op = next(op for op in e.ops if op.op == "disable")
    return op, next(row for row in e.sql if row.job == op.job and row.created_at > BEGAN + 4 * SECOND)

"""Planted violations of what is promised to programs that enqueue."""

from __future__ import annotations

from dataclasses import replace

from evidence import DriverOperation, Evidence, OccurrenceRecord
from history import MS
from planted import add, delay, drop, first, forget, harmless, pick, planted


def call(e: Evidence, row: OccurrenceRecord) -> DriverOperation:
    """Returns the last call that enqueued the occurrence."""
    return [op for op in e.ops if op.op == "enqueue" and op.occurrence == row.occurrence][-1]


def enqueued(e: Evidence, delayed: bool = False, child: bool = False) -> OccurrenceRecord:
    """Returns an enqueued occurrence that ran before the first fault."""
    rows = (row for row in e.sql if row.trigger == "enqueue" and row.attempt == 1 and first(e, row))
    return next(
        row for row in rows
        if (call(e, row).not_before is not None) == delayed and (row.parent is not None) == child
    )


@planted("lost")
def confirmed_occurrence_without_a_row_is_lost(e):
    drop(e, enqueued(e))


@planted("lost")
def enqueued_occurrence_that_never_started_is_lost(e):
    forget(e, enqueued(e))


@harmless("lost")
def unconfirmed_occurrence_without_a_row_is_not_lost(e):
    row = enqueued(e)
    drop(e, row)
    e.ops[:] = [op for op in e.ops if op.occurrence != row.occurrence or op.op != "enqueue" or op.outcome != "ok"]
    e.ops.append(DriverOperation("enqueue", None, row.occurrence, None, e.run.began, e.run.read, "unknown", row.parent))


@planted("dup_occurrence")
def enqueued_occurrence_with_two_rows_is_a_duplicate(e):
    add(e, replace(enqueued(e)))


@planted("phantom")
def occurrence_that_no_call_enqueued_is_a_phantom(e):
    row = enqueued(e)
    e.ops[:] = [op for op in e.ops if op.op != "enqueue" or op.occurrence != row.occurrence]


@planted("phantom")
def occurrence_of_a_refused_call_is_a_phantom(e):
    row = enqueued(e)
    for op in e.ops:
        if op.op == "enqueue" and op.occurrence == row.occurrence:
            op.outcome = "refused"


@planted("early")
def delayed_occurrence_that_starts_at_once_is_early(e):
    row = enqueued(e, delayed=True)
    delay(e, row, call(e, row).not_before - 150 * MS - first(e, row).at)


@harmless("early")
def delayed_occurrence_may_start_with_the_skew_of_clocks(e):
    row = enqueued(e, delayed=True)
    delay(e, row, call(e, row).not_before - 50 * MS - first(e, row).at)


@planted("wrong_parent")
def child_without_its_parent_is_found(e):
    enqueued(e, delayed=True, child=True).parent = None


@planted("wrong_parent")
def child_of_another_parent_is_found(e):
    child = enqueued(e, delayed=True, child=True)
    child.parent = child.occurrence


@planted("wrong_parent")
def parent_that_no_call_named_is_found(e):
    enqueued(e).parent = enqueued(e, delayed=True, child=True).occurrence


@harmless("wrong_parent")
def child_outlives_its_parent(e):
    row = enqueued(e, delayed=True, child=True)
    for op in e.ops:
        if op.op == "enqueue" and op.occurrence == row.occurrence:
            op.parent = "occ-of-another-day"
    row.parent = "occ-of-another-day"

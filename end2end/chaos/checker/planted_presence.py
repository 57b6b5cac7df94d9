"""Planted violations of existence."""

from __future__ import annotations

from dataclasses import replace

from evidence import StatusChange, DriverOperation
from history import MS
from planted import become, cancel, copy_of, delay, drop, fault, first, forget, pick, planted, seen, toggled, harmless
from schedule import SECOND
from synthetic import BEGAN


# lost


@planted("lost")
def missing_occurrence_is_lost(e):
    drop(e, pick(e))


@planted("lost")
def one_time_job_without_occurrence_is_lost(e):
    drop(e, next(row for row in e.sql if any(j.job == row.job and j.kind == "once" for j in e.jobs)))


@planted("lost")
def unstarted_occurrence_is_lost(e):
    forget(e, pick(e))


@planted("lost")
def accepted_trigger_without_occurrence_is_lost(e):
    drop(e, pick(e, trigger="api"))


@planted("lost")
def occurrence_named_by_a_response_must_exist(e):
    next(op for op in e.ops if op.op == "trigger" and op.outcome == "ok").occurrence = "occ-nowhere"


@planted("lost")
def ended_attempt_without_start_is_lost(e):
    row = pick(e, "flaky", attempt=2)
    e.witness.remove(first(e, row))


@planted("lost")
def recorded_attempt_without_start_is_lost(e):
    row = pick(e)
    row.changes.insert(1, StatusChange("running", row.created_at, 1, "worker-1", None))
    forget(e, row)
    cancel_at = row.created_at
    e.ops.append(DriverOperation("cancel", row.job, row.occurrence, None, cancel_at, cancel_at + MS, "ok"))
    become(e, row, "cancelled")


@planted("lost")
def missing_retry_is_lost(e):
    row = pick(e, "failing", attempt=3)
    next(job for job in e.jobs if job.job == row.job).max_retries = 3


@planted("lost")
def accepted_trigger_without_key_is_owed_a_run(e):
    job = next(job for job in e.jobs if job.kind == "manual").job
    e.ops.append(DriverOperation("trigger", job, None, None, BEGAN + SECOND, BEGAN + SECOND + MS, "ok"))


@planted("lost")
def attempt_that_ends_before_its_start_is_lost(e):
    row = pick(e)
    first(e, row).at = seen(e, row, "end").at + 1


@planted("lost")
def unretired_job_is_owed_runs_until_the_cut(e):
    row = pick(e)
    e.ops[:] = [op for op in e.ops if op.op != "retire" or op.job != row.job]
    drop(e, max((r for r in e.sql if r.job == row.job), key=lambda r: r.scheduled_for))


@harmless("lost")
def edges_of_the_enabled_time_are_not_owed(e):
    op, row = toggled(e)
    own = sorted((r for r in e.sql if r.job == op.job), key=lambda r: r.scheduled_for)
    last = [r for r in own if r.scheduled_for < op.invoked][-1]
    op.invoked = last.scheduled_for
    next(o for o in e.ops if o.op == "define" and o.job == op.job).returned = own[1].scheduled_for - SECOND
    for one in (own[0], own[1], last):
        drop(e, one)


@harmless("lost")
def first_second_after_definition_is_not_owed(e):
    row = pick(e)
    define = next(op for op in e.ops if op.op == "define" and op.job == row.job)
    define.returned = row.scheduled_for - 900 * MS
    for other in [r for r in e.sql if r.job == row.job and r.scheduled_for <= row.scheduled_for]:
        drop(e, other)


@harmless("lost")
def nothing_is_owed_after_an_unanswered_disable(e):
    op, _ = toggled(e)
    op.outcome = "unknown"


@planted("lost")
def answered_enable_ends_the_doubt_of_a_disable(e):
    op, row = toggled(e)
    op.outcome, op.returned = "unknown", e.run.read
    on = next(op for op in e.ops if op.op == "enable")
    drop(e, next(r for r in e.sql if r.job == row.job and r.scheduled_for > on.returned + 3 * SECOND))


@harmless("lost")
def unanswered_trigger_may_have_no_occurrence(e):
    row = pick(e, trigger="api")
    e.ops[:] = [op for op in e.ops if op.key != row.trigger_key]
    e.ops.append(DriverOperation("trigger", row.job, None, row.trigger_key, row.created_at, row.created_at + MS, "unknown"))
    drop(e, row)


@harmless("lost")
def unstarted_cancelled_run_is_not_lost(e):
    row = pick(e, trigger="api")
    cancel(e, row, "ok")
    forget(e, row)
    del row.changes[1:-1]
    become(e, row, "cancelled")


@harmless("lost")
def crash_between_claim_and_start_is_not_lost(e):
    row = pick(e, "flaky", attempt=2)
    forget(e, row)
    made = row.created_at
    row.changes[1:] = [StatusChange("running", made + MS, 1, "w", None), StatusChange("cancelled", made + 9 * MS, 1, "", None)]
    e.ops.append(DriverOperation("cancel", row.job, row.occurrence, None, row.created_at, row.created_at + MS, "ok"))
    row.attempt = 1
    become(e, row, "cancelled")
    fault(e, "kill", "worker-7", row.created_at + 5 * MS)


# dup_occurrence


@planted("dup_occurrence")
def due_time_with_two_occurrences_is_a_duplicate(e):
    copy_of(e, pick(e), "occ-again")


@planted("dup_occurrence")
def key_with_two_occurrences_is_a_duplicate(e):
    copy_of(e, pick(e, trigger="api"), "occ-again")


@planted("dup_occurrence")
def key_answered_with_two_ids_is_a_duplicate(e):
    op = next(op for op in e.ops if op.op == "trigger" and op.outcome == "ok")
    e.ops.append(replace(op, occurrence="occ-other"))


@harmless("dup_occurrence")
def one_key_for_two_jobs_is_no_duplicate(e):
    row = pick(e, trigger="api")
    other = next(job.job for job in e.jobs if job.kind == "manual" and job.job != row.job)
    op = next(op for op in e.ops if op.key == row.trigger_key)
    e.ops.append(replace(op, job=other, occurrence="occ-other"))
    made = copy_of(e, row, "occ-other")
    made.job = e.api[-1].job = other
    for s in e.witness:
        s.job = other if s.occurrence == "occ-other" else s.job


# dup_start


@planted("dup_start")
def attempt_started_on_two_workers_is_a_duplicate(e):
    start = first(e, pick(e))
    e.witness.append(replace(start, at=start.at + SECOND, process="worker-8", pid=8))


@planted("dup_start")
def no_fault_excuses_a_second_start(e):
    start = first(e, pick(e))
    e.witness.append(replace(start, at=start.at + 20 * SECOND, process="worker-8", pid=8))
    fault(e, "freeze", start.process, start.at, 15_000)
    fault(e, "wipe", "rabbitmq", start.at, 15_000)


@planted("dup_start")
def second_attempt_started_twice_is_a_duplicate(e):
    e.witness.append(replace(seen(e, pick(e, "flaky", attempt=2), "start", 2)))


@harmless("dup_start")
def second_claim_without_start_is_no_duplicate(e):
    row = pick(e, "flaky", attempt=2)
    place = next(n for n, c in enumerate(row.changes) if c.status == "running")
    row.changes.insert(place, replace(row.changes[place], by="worker-8-8"))
    row.duplicate_starts = 1


# phantom


@planted("phantom")
def occurrence_off_schedule_is_a_phantom(e):
    row = next(r for r in e.sql if r.job == next(j.job for j in e.jobs if j.cron == "*/5 * * * * *"))
    copy_of(e, row, "occ-odd", row.scheduled_for + SECOND)


@planted("phantom")
def occurrence_of_a_disabled_job_is_a_phantom(e):
    op, row = toggled(e)
    copy_of(e, row, "occ-off", op.returned // SECOND * SECOND + 2 * SECOND)


@harmless("phantom")
def occurrence_just_after_a_disable_is_no_phantom(e):
    op, row = toggled(e)
    copy_of(e, row, "occ-off", op.returned // SECOND * SECOND + SECOND)


@planted("phantom")
def start_of_an_unknown_occurrence_is_a_phantom(e):
    e.witness.append(replace(first(e, pick(e)), occurrence="occ-nowhere"))


@planted("phantom")
def manual_run_without_trigger_is_a_phantom(e):
    copy_of(e, pick(e, trigger="api"), "occ-hand", key="key-unused")


@planted("phantom")
def manual_run_of_a_refused_trigger_is_a_phantom(e):
    row = pick(e, trigger="api")
    for op in e.ops:
        if op.key == row.trigger_key:
            op.outcome = "refused"


@harmless("phantom")
def manual_run_of_an_unanswered_trigger_is_no_phantom(e):
    row = pick(e, trigger="api")
    for op in e.ops:
        if op.key == row.trigger_key:
            op.outcome = "unknown"


@planted("phantom")
def unrequested_retry_is_a_phantom(e):
    row = pick(e, trigger="api")
    for reading in (row, *(a for a in e.api if a.occurrence == row.occurrence)):
        reading.trigger = "retry"


@planted("phantom")
def keyless_run_without_a_call_is_a_phantom(e):
    pick(e, trigger="api").trigger_key = None
    for op in e.ops:
        op.occurrence = None if op.op == "trigger" else op.occurrence


@harmless("phantom")
def keyless_run_named_by_a_call_is_no_phantom(e):
    row = pick(e, trigger="api")
    e.ops[:] = [op for op in e.ops if op.key != row.trigger_key]
    row.trigger_key = None
    e.ops.append(DriverOperation("trigger", row.job, row.occurrence, None, row.created_at - 5 * MS, row.created_at, "ok"))


@planted("phantom")
def failure_beyond_the_retries_is_a_phantom(e):
    next(job for job in e.jobs if job.type == "failing").max_retries = 1


@planted("phantom")
def attempt_missing_in_the_database_is_a_phantom(e):
    start = first(e, pick(e))
    e.witness.append(replace(start, attempt=2, at=start.at + SECOND))


# mislabelled


@planted("mislabelled")
def start_a_period_too_early_is_mislabelled(e):
    row = next(r for r in e.sql if r.job == pick(e).job and r.scheduled_for > BEGAN + 6 * SECOND)
    delay(e, row, -900 * MS - (first(e, row).at - row.scheduled_for))


@planted("mislabelled")
def start_with_a_different_due_time_is_mislabelled(e):
    first(e, pick(e)).scheduled_for += SECOND


@planted("mislabelled")
def fewer_starts_than_due_times_are_mislabelled(e):
    drop(e, pick(e))


@planted("mislabelled")
def more_starts_than_due_times_are_mislabelled(e):
    e.witness.append(replace(first(e, pick(e)), occurrence="occ-nowhere"))


@harmless("mislabelled")
def reordered_runs_after_an_outage_are_not_mislabelled(e):
    away = next(f for f in e.nemesis if f.target == "rabbitmq")
    job = pick(e).job
    one, two = [r for r in e.sql if r.job == job and away.began < r.scheduled_for < away.ended][:2]
    a, b = first(e, one).at, first(e, two).at
    delay(e, one, b - a)
    delay(e, two, a - b)

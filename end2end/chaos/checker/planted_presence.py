"""Planted faults of what exists."""

from __future__ import annotations

from dataclasses import replace

from evidence import StatusChange, DriverOperation
from history import MS
from planted import become, cancel, copy_of, delay, drop, fault, first, forget, pick, planted, seen, toggled, twin
from schedule import SECOND
from synthetic import BEGAN


# lost


@planted("lost")
def an_occurrence_that_is_not_there_is_lost(e):
    drop(e, pick(e))


@planted("lost")
def a_one_time_job_that_has_no_occurrence_is_lost(e):
    drop(e, next(row for row in e.sql if any(j.job == row.job and j.kind == "once" for j in e.jobs)))


@planted("lost")
def an_occurrence_that_never_started_is_lost(e):
    forget(e, pick(e))


@planted("lost")
def a_trigger_that_was_answered_ok_is_lost_without_an_occurrence(e):
    drop(e, pick(e, trigger="api"))


@planted("lost")
def a_trigger_that_was_told_an_occurrence_which_is_not_there_is_lost(e):
    next(op for op in e.ops if op.op == "trigger" and op.outcome == "ok").occurrence = "occ-nowhere"


@planted("lost")
def an_attempt_that_ended_and_was_not_seen_to_start_is_lost(e):
    row = pick(e, "flaky", attempt=2)
    e.witness.remove(first(e, row))


@planted("lost")
def an_attempt_on_record_as_running_that_nobody_saw_is_lost(e):
    row = pick(e)
    row.changes.insert(1, StatusChange("running", row.created_at, 1, "worker-1", None))
    forget(e, row)
    cancel_at = row.created_at
    e.ops.append(DriverOperation("cancel", row.job, row.occurrence, None, cancel_at, cancel_at + MS, "ok"))
    become(e, row, "cancelled")


@planted("lost")
def a_failing_run_that_is_not_given_all_its_retries_is_lost(e):
    row = pick(e, "failing", attempt=3)
    next(job for job in e.jobs if job.job == row.job).max_retries = 3


@planted("lost")
def a_trigger_without_a_key_that_was_told_nothing_is_owed_a_run(e):
    job = next(job for job in e.jobs if job.kind == "manual").job
    e.ops.append(DriverOperation("trigger", job, None, None, BEGAN + SECOND, BEGAN + SECOND + MS, "ok"))


@planted("lost")
def an_attempt_that_ended_before_it_started_is_lost(e):
    row = pick(e)
    first(e, row).at = seen(e, row, "end").at + 1


@planted("lost")
def what_is_due_before_the_cut_of_a_job_that_was_never_retired_is_lost(e):
    row = pick(e)
    e.ops[:] = [op for op in e.ops if op.op != "retire" or op.job != row.job]
    drop(e, max((r for r in e.sql if r.job == row.job), key=lambda r: r.scheduled_for))


@twin("lost")
def what_is_due_at_the_very_edge_of_a_certain_time_is_not_owed(e):
    op, row = toggled(e)
    own = sorted((r for r in e.sql if r.job == op.job), key=lambda r: r.scheduled_for)
    last = [r for r in own if r.scheduled_for < op.invoked][-1]
    op.invoked = last.scheduled_for
    next(o for o in e.ops if o.op == "define" and o.job == op.job).returned = own[1].scheduled_for - SECOND
    for one in (own[0], own[1], last):
        drop(e, one)


@twin("lost")
def an_instant_within_a_second_of_the_definition_is_not_owed(e):
    row = pick(e)
    define = next(op for op in e.ops if op.op == "define" and op.job == row.job)
    define.returned = row.scheduled_for - 900 * MS
    for other in [r for r in e.sql if r.job == row.job and r.scheduled_for <= row.scheduled_for]:
        drop(e, other)


@twin("lost")
def after_a_disabling_without_an_answer_nothing_is_owed_until_the_next_answer(e):
    op, _ = toggled(e)
    op.outcome = "unknown"


@planted("lost")
def what_is_due_after_a_disabling_without_an_answer_and_an_enabling_with_one_is_lost(e):
    op, row = toggled(e)
    op.outcome, op.returned = "unknown", e.run.read
    on = next(op for op in e.ops if op.op == "enable")
    drop(e, next(r for r in e.sql if r.job == row.job and r.scheduled_for > on.returned + 3 * SECOND))


@twin("lost")
def a_trigger_without_an_answer_may_have_had_no_effect(e):
    row = pick(e, trigger="api")
    e.ops[:] = [op for op in e.ops if op.key != row.trigger_key]
    e.ops.append(DriverOperation("trigger", row.job, None, row.trigger_key, row.created_at, row.created_at + MS, "unknown"))
    drop(e, row)


@twin("lost")
def what_was_cancelled_before_it_began_is_not_lost(e):
    row = pick(e, trigger="api")
    cancel(e, row, "ok")
    forget(e, row)
    del row.changes[1:-1]
    become(e, row, "cancelled")


@twin("lost")
def a_run_whose_worker_died_between_claim_and_start_is_not_lost(e):
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
def two_occurrences_of_one_due_instant_are_a_duplicate(e):
    copy_of(e, pick(e), "occ-again")


@planted("dup_occurrence")
def two_occurrences_of_one_key_are_a_duplicate(e):
    copy_of(e, pick(e, trigger="api"), "occ-again")


@planted("dup_occurrence")
def one_key_answered_with_two_occurrences_is_a_duplicate(e):
    op = next(op for op in e.ops if op.op == "trigger" and op.outcome == "ok")
    e.ops.append(replace(op, occurrence="occ-other"))


@twin("dup_occurrence")
def one_key_used_for_two_jobs_is_no_duplicate(e):
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
def one_attempt_started_by_two_workers_is_a_duplicate(e):
    start = first(e, pick(e))
    e.witness.append(replace(start, at=start.at + SECOND, process="worker-8", pid=8))


@planted("dup_start")
def no_fault_excuses_a_second_start_of_one_attempt(e):
    start = first(e, pick(e))
    e.witness.append(replace(start, at=start.at + 20 * SECOND, process="worker-8", pid=8))
    fault(e, "freeze", start.process, start.at, 15_000)
    fault(e, "wipe", "rabbitmq", start.at, 15_000)


@planted("dup_start")
def a_second_attempt_started_twice_is_a_duplicate(e):
    e.witness.append(replace(seen(e, pick(e, "flaky", attempt=2), "start", 2)))


@twin("dup_start")
def a_second_claim_that_led_to_no_start_is_no_duplicate(e):
    row = pick(e, "flaky", attempt=2)
    place = next(n for n, c in enumerate(row.changes) if c.status == "running")
    row.changes.insert(place, replace(row.changes[place], by="worker-8-8"))
    row.duplicate_starts = 1


# phantom


@planted("phantom")
def an_occurrence_at_an_instant_that_is_not_due_is_a_phantom(e):
    row = next(r for r in e.sql if r.job == next(j.job for j in e.jobs if j.cron == "*/5 * * * * *"))
    copy_of(e, row, "occ-odd", row.scheduled_for + SECOND)


@planted("phantom")
def an_occurrence_of_a_disabled_job_is_a_phantom(e):
    op, row = toggled(e)
    copy_of(e, row, "occ-off", op.returned // SECOND * SECOND + 2 * SECOND)


@twin("phantom")
def an_occurrence_within_a_second_of_the_disabling_is_no_phantom(e):
    op, row = toggled(e)
    copy_of(e, row, "occ-off", op.returned // SECOND * SECOND + SECOND)


@planted("phantom")
def a_start_of_an_occurrence_that_does_not_exist_is_a_phantom(e):
    e.witness.append(replace(first(e, pick(e)), occurrence="occ-nowhere"))


@planted("phantom")
def a_run_by_hand_that_nobody_asked_for_is_a_phantom(e):
    copy_of(e, pick(e, trigger="api"), "occ-hand", key="key-nobody")


@planted("phantom")
def a_run_by_hand_whose_trigger_was_refused_is_a_phantom(e):
    row = pick(e, trigger="api")
    for op in e.ops:
        if op.key == row.trigger_key:
            op.outcome = "refused"


@twin("phantom")
def a_run_by_hand_whose_trigger_got_no_answer_is_no_phantom(e):
    row = pick(e, trigger="api")
    for op in e.ops:
        if op.key == row.trigger_key:
            op.outcome = "unknown"


@planted("phantom")
def a_retry_that_nobody_asked_for_is_a_phantom(e):
    row = pick(e, trigger="api")
    for reading in (row, *(a for a in e.api if a.occurrence == row.occurrence)):
        reading.trigger = "retry"


@planted("phantom")
def a_run_without_a_key_that_no_call_names_is_a_phantom(e):
    pick(e, trigger="api").trigger_key = None
    for op in e.ops:
        op.occurrence = None if op.op == "trigger" else op.occurrence


@twin("phantom")
def a_run_without_a_key_that_a_call_names_is_no_phantom(e):
    row = pick(e, trigger="api")
    e.ops[:] = [op for op in e.ops if op.key != row.trigger_key]
    row.trigger_key = None
    e.ops.append(DriverOperation("trigger", row.job, row.occurrence, None, row.created_at - 5 * MS, row.created_at, "ok"))


@planted("phantom")
def a_failure_more_than_the_retries_grant_is_a_phantom(e):
    next(job for job in e.jobs if job.type == "failing").max_retries = 1


@planted("phantom")
def an_attempt_that_the_product_does_not_know_is_a_phantom(e):
    start = first(e, pick(e))
    e.witness.append(replace(start, attempt=2, at=start.at + SECOND))


# mislabelled


@planted("mislabelled")
def a_run_for_the_next_instant_begun_with_the_one_before_is_mislabelled(e):
    row = next(r for r in e.sql if r.job == pick(e).job and r.scheduled_for > BEGAN + 6 * SECOND)
    delay(e, row, -900 * MS - (first(e, row).at - row.scheduled_for))


@planted("mislabelled")
def a_label_that_is_not_the_one_on_record_is_mislabelled(e):
    first(e, pick(e)).scheduled_for += SECOND


@planted("mislabelled")
def fewer_starts_than_due_instants_are_mislabelled(e):
    drop(e, pick(e))


@planted("mislabelled")
def more_starts_than_due_instants_are_mislabelled(e):
    e.witness.append(replace(first(e, pick(e)), occurrence="occ-nowhere"))


@twin("mislabelled")
def runs_that_overtake_each_other_after_an_outage_are_not_mislabelled(e):
    away = next(f for f in e.nemesis if f.target == "rabbitmq")
    job = pick(e).job
    one, two = [r for r in e.sql if r.job == job and away.began < r.scheduled_for < away.ended][:2]
    a, b = first(e, one).at, first(e, two).at
    delay(e, one, b - a)
    delay(e, two, a - b)

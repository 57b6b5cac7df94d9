"""Planted faults of attempts, and of the time they took."""

from __future__ import annotations

from dataclasses import replace

from evidence import StatusChange, Evidence
from history import MS
from planted import alone, delay, fault, first, forget, pick, planted, rerun, seen, start_after, twin
from schedule import SECOND


# overlap


@planted("overlap")
def two_attempts_at_once_without_a_fault_overlap(e):
    rerun(e, pick(e), 11_000, 20_000)


@twin("overlap")
def two_attempts_at_once_are_explained_by_a_cut_link_of_the_first_worker(e):
    row = pick(e)
    rerun(e, row, 11_000, 20_000)
    fault(e, "cut", "worker-7>rabbitmq", first(e, row).at + 500 * MS, 10_000)


@planted("overlap")
def a_cut_link_of_another_worker_explains_no_overlap(e):
    row = pick(e)
    rerun(e, row, 11_000, 20_000)
    fault(e, "cut", "worker-6>rabbitmq", first(e, row).at + 500 * MS, 10_000)


@planted("overlap")
def a_cut_after_the_second_start_explains_no_overlap(e):
    row = pick(e)
    again = rerun(e, row, 11_000, 20_000)
    fault(e, "cut", "worker-7>rabbitmq", again.at + MS, 5_000)


@twin("overlap")
def a_frozen_worker_explains_an_overlap(e):
    row = pick(e)
    rerun(e, row, 11_000, 20_000)
    fault(e, "freeze", "worker-7", first(e, row).at + 500 * MS, 12_000)


@twin("overlap")
def a_cut_that_ended_less_than_the_patience_before_the_start_explains_an_overlap(e):
    row = pick(e, second=11)
    rerun(e, row, 2_000, 4_000)
    fault(e, "cut", "worker-7>redis", first(e, row).at - 9_990 * MS, 900)


@planted("overlap")
def a_cut_that_ended_longer_ago_than_the_patience_explains_no_overlap(e):
    row = pick(e, second=11)
    rerun(e, row, 2_000, 4_000)
    fault(e, "cut", "worker-7>redis", first(e, row).at - 11_000 * MS, 990)


@planted("overlap")
def an_attempt_without_an_end_runs_on_while_its_worker_lives(e):
    rerun(e, pick(e), 11_000, None)


@twin("overlap")
def an_attempt_without_an_end_is_over_when_its_worker_was_killed(e):
    row = pick(e)
    rerun(e, row, 11_000, None)
    fault(e, "kill", "worker-7", first(e, row).at + 2 * MS)


@planted("overlap")
def a_kill_after_the_second_start_ends_the_first_attempt_too_late(e):
    row = pick(e)
    again = rerun(e, row, 11_000, None)
    fault(e, "kill", "worker-7", again.at + 2 * MS)


@planted("overlap")
def a_death_before_the_first_start_explains_no_overlap(e):
    row = pick(e)
    rerun(e, row, 11_000, 20_000)
    fault(e, "kill", "worker-7", first(e, row).at - 3_000 * MS)


@planted("overlap")
def a_fault_that_takes_no_time_explains_no_overlap(e):
    row = pick(e)
    rerun(e, row, 11_000, 20_000)
    fault(e, "flush", "redis", first(e, row).at + 3_000 * MS, 0)


@planted("overlap")
def an_attempt_that_begins_after_a_later_one_overlaps(e):
    row = pick(e, "flaky", attempt=2)
    seen(e, row, "end", 1).outcome = "failed"
    for s in e.witness:
        if s.occurrence == row.occurrence and s.attempt == 1:
            s.at += 20 * SECOND


@twin("overlap")
def an_attempt_held_up_between_claim_and_start_may_begin_after_a_later_one(e):
    row = pick(e, second=11)
    rerun(e, row, 11_000, 11_100)
    start = first(e, row)
    fault(e, "freeze", "worker-7", start.at, 11_050)
    start.at += 11_060 * MS
    row.started_at = next(a for a in e.api if a.occurrence == row.occurrence).started_at = start.at


# false_lost


@planted("false_lost")
def a_healthy_run_that_is_given_up_is_a_false_zombie(e):
    rerun(e, pick(e), 11_000, 10_900)


@twin("false_lost")
def the_same_run_given_up_with_its_worker_frozen_is_none(e):
    row = pick(e)
    rerun(e, row, 11_000, 10_900)
    fault(e, "freeze", "worker-7", first(e, row).at + MS, 10_500)


@planted("false_lost")
def a_run_that_was_called_unknown_without_cause_is_a_false_zombie(e):
    row = pick(e)
    at = first(e, row).at + MS
    row.changes[1:-1] = [StatusChange("running", at, 1, "w", None), StatusChange("unknown", at, 1, "s", None)]


@planted("false_lost")
def a_server_that_cannot_hear_the_broker_may_not_give_a_run_up(e):
    row = pick(e)
    rerun(e, row, 11_000, 10_900)
    fault(e, "cut", "server-1>rabbitmq", first(e, row).at + MS, 10_500)


@planted("false_lost")
def a_run_may_not_be_given_up_because_the_broker_was_away(e):
    row = pick(e)
    rerun(e, row, 11_000, 10_900)
    fault(e, "kill", "rabbitmq", first(e, row).at + MS, 9_000)


@twin("false_lost")
def a_run_given_up_while_its_own_line_to_the_broker_was_cut_is_none(e):
    row = pick(e)
    rerun(e, row, 11_000, 10_900)
    fault(e, "blackhole", first(e, row).process + ">rabbitmq", first(e, row).at + MS, 9_000)


@planted("false_lost")
def messages_that_are_copied_silence_no_worker(e):
    row = pick(e)
    rerun(e, row, 11_000, 10_900)
    fault(e, "copy", "rabbitmq", first(e, row).at + MS, 9_000)


@planted("false_lost")
def a_fault_that_came_after_the_giving_up_does_not_explain_it(e):
    row = pick(e)
    again = rerun(e, row, 3_000, 2_900)
    fault(e, "freeze", "worker-7", again.at + MS, 3_000)


@planted("false_lost")
def a_fault_that_ended_longer_ago_than_the_patience_does_not_explain_a_giving_up(e):
    row = pick(e, second=11)
    rerun(e, row, 3_000, 2_900)
    fault(e, "freeze", "worker-7", first(e, row).at - 11_000 * MS, 990)


@twin("false_lost")
def a_fault_that_ended_within_the_patience_explains_a_giving_up(e):
    row = pick(e, second=11)
    rerun(e, row, 3_000, 2_900)
    fault(e, "freeze", "worker-7", first(e, row).at - 11_000 * MS, 1_000)


@twin("false_lost")
def a_run_that_failed_and_is_tried_again_is_none(e):
    row = pick(e)
    rerun(e, row, 1_000, 100)
    seen(e, row, "end").outcome = "failed"
    next(job for job in e.jobs if job.job == row.job).max_retries = 1


# early


@planted("early")
def a_start_101_ms_before_it_was_due_is_early(e):
    start_after(e, pick(e), -101 * MS)


@twin("early")
def a_start_99_ms_before_it_was_due_is_not_early(e):
    start_after(e, pick(e), -99 * MS)


@planted("early")
def a_run_by_hand_that_began_before_it_was_asked_for_is_early(e):
    row = pick(e, trigger="api")
    delay(e, row, -500 * MS)


# late


@planted("late")
def a_start_a_microsecond_later_than_allowed_is_late(e):
    start_after(e, pick(e), 1000 * MS + 1)


@twin("late")
def a_start_1000_ms_after_it_was_due_is_not_late(e):
    start_after(e, pick(e), 1000 * MS)


@twin("late")
def a_late_start_inside_a_fault_has_its_allowance(e):
    row = pick(e)
    fault(e, "latency", "server-2>redis", row.scheduled_for - MS)
    start_after(e, row, 14_999 * MS)


@planted("late")
def a_start_later_than_the_allowance_of_its_fault_is_late(e):
    row = pick(e)
    fault(e, "latency", "server-2>redis", row.scheduled_for - MS)
    start_after(e, row, 15_001 * MS)


@twin("late")
def nothing_is_late_inside_a_fault_without_an_allowance(e):
    row = pick(e)
    e.run.allowance_ms = None
    fault(e, "latency", "server-2>redis", row.scheduled_for - MS)
    start_after(e, row, 60_000 * MS)


@twin("late")
def what_is_due_when_the_recovery_ends_is_excused(e):
    row = pick(e, second=8)
    fault(e, "flush", "redis", row.scheduled_for - e.run.recovery_ms * MS, 0)
    start_after(e, row, 3_000 * MS)


@planted("late")
def what_is_due_after_the_recovery_is_late(e):
    row = pick(e, second=8)
    fault(e, "flush", "redis", row.scheduled_for - e.run.recovery_ms * MS - MS, 0)
    start_after(e, row, 3_000 * MS)


@planted("late")
def a_row_created_later_than_the_dispatch_allowance_is_late(e):
    row = pick(e)
    fault(e, "flush", "redis", row.scheduled_for, 0)
    row.created_at = row.scheduled_for + 10_001 * MS


@twin("late")
def a_row_created_within_the_dispatch_allowance_is_not_late(e):
    row = pick(e)
    fault(e, "flush", "redis", row.scheduled_for, 0)
    row.created_at = row.scheduled_for + 9_999 * MS


@planted("late")
def a_run_by_hand_is_late_by_the_first_call_with_its_key(e):
    row = pick(e, trigger="api")
    op = next(op for op in e.ops if op.key == row.trigger_key)
    e.ops.append(replace(op, outcome="unknown", invoked=op.invoked - 2000 * MS, returned=op.returned - 1000 * MS))


@twin("late")
def what_was_due_before_its_definition_was_acknowledged_is_not_late(e):
    row = pick(e)
    start_after(e, row, 3_000 * MS)
    next(op for op in e.ops if op.op == "define" and op.job == row.job).returned = row.scheduled_for + 1


# orphan_late


@planted("orphan_late")
def a_killed_run_that_begins_again_after_the_limit_is_late(e):
    row = pick(e)
    rerun(e, row, 15_010, None)
    fault(e, "kill", "worker-7", first(e, row).at + 9 * MS)


@twin("orphan_late")
def a_killed_run_that_begins_again_at_the_limit_is_not_late(e):
    row = pick(e)
    rerun(e, row, 15_009, None)
    fault(e, "kill", "worker-7", first(e, row).at + 9 * MS)


@planted("orphan_late")
def a_killed_run_that_never_begins_again_is_late(e):
    row = pick(e)
    alone(e, row)
    forget(e, row, "end")
    fault(e, "crash-point", "worker-7", first(e, row).at + 9 * MS)


@twin("orphan_late")
def a_killed_run_may_wait_for_a_broker_that_is_away(e):
    row = pick(e)
    rerun(e, row, 20_000, None)
    fault(e, "kill", "worker-7", first(e, row).at + 9 * MS)
    fault(e, "kill", "rabbitmq", first(e, row).at + 100 * MS, 8_000)


@twin("orphan_late")
def a_killed_run_is_not_judged_where_there_is_no_limit(e):
    row = pick(e)
    e.run.orphan_ms = None
    rerun(e, row, 70_000, None)
    fault(e, "kill", "worker-7", first(e, row).at + 9 * MS)


def taken_by_a_killer(e: Evidence, after_ms: int) -> None:
    """Has a quick run share the process of a crasher, which starts 5 ms later, and begin again `after_ms` after that."""
    crasher = min((s for s in e.witness if s.process == "worker-9" and s.what == "start"), key=lambda s: s.at)
    job = pick(e).job
    row = max((r for r in e.sql if r.job == job and r.scheduled_for < crasher.at - 5 * MS), key=lambda r: r.scheduled_for)
    delay(e, row, crasher.at - 5 * MS - first(e, row).at)
    rerun(e, row, after_ms + 5, None)
    start = first(e, row)
    start.process, start.pid, start.instance = crasher.process, crasher.pid, crasher.instance


@twin("orphan_late")
def a_run_that_a_killer_took_with_it_is_an_orphan_too(e):
    taken_by_a_killer(e, 15_000)


@planted("orphan_late")
def a_run_that_a_killer_took_with_it_may_not_wait_longer_either(e):
    taken_by_a_killer(e, 15_001)

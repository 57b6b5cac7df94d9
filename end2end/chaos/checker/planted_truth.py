"""Planted faults of what the product tells, and of what it leaves behind."""

from __future__ import annotations

from dataclasses import replace

from evidence import StatusChange, LogLineCount
from history import MS
from planted import alone, become, cancel, fault, first, forget, pick, planted, seen, twin


# stuck


@planted("stuck")
def a_run_that_is_still_queued_is_stuck(e):
    row = pick(e)
    forget(e, row)
    row.changes[1:] = []
    become(e, row, "queued")


@planted("stuck")
def a_run_that_stays_unknown_is_stuck(e):
    become(e, pick(e, attempt=1), "unknown")


@twin("stuck")
def a_skipped_one_is_not_stuck(e):
    row = pick(e)
    forget(e, row)
    row.changes[1:] = []
    become(e, row, "skipped")


# status_lie


@planted("status_lie")
def completed_without_a_completed_run_is_a_lie(e):
    seen(e, pick(e), "end").outcome = "failed"


@planted("status_lie")
def completed_by_an_attempt_that_had_failed_is_a_lie(e):
    seen(e, pick(e, "flaky", attempt=2), "end", 2).outcome = "failed"


@planted("status_lie")
def cancelled_by_nobody_is_a_lie(e):
    become(e, pick(e), "cancelled")


@planted("status_lie")
def cancelled_although_the_call_was_refused_is_a_lie(e):
    row = pick(e)
    become(e, row, "cancelled")
    cancel(e, row, "refused")


@planted("status_lie")
def skipped_although_it_ran_is_a_lie(e):
    row = pick(e)
    row.changes = [StatusChange("skipped", row.created_at, 1, None, None)]
    become(e, row, "skipped")


@planted("status_lie")
def failed_although_the_last_run_was_cancelled_is_a_lie(e):
    row = pick(e, "flaky", attempt=2)
    seen(e, row, "end", 2).outcome = "cancelled"
    become(e, row, "failed")


@twin("status_lie")
def cancelled_by_a_call_without_an_answer_is_no_lie(e):
    row = pick(e)
    become(e, row, "cancelled")
    cancel(e, row, "unknown")


@twin("status_lie")
def completed_although_it_was_cancelled_is_no_lie(e):
    cancel(e, pick(e), "ok")


# lost_result


@planted("lost_result")
def unknown_although_the_run_completed_is_a_lost_result(e):
    become(e, pick(e), "unknown")


@planted("lost_result")
def failed_although_the_run_completed_is_a_lost_result(e):
    become(e, pick(e, "flaky", attempt=2), "failed")


@planted("lost_result")
def unknown_although_the_run_failed_is_a_lost_result(e):
    become(e, pick(e, "failing", attempt=3), "unknown")


@twin("lost_result")
def cancelled_at_the_moment_of_completion_is_no_lost_result(e):
    row = pick(e)
    cancel(e, row, "ok")
    become(e, row, "cancelled")


# state_regress


@planted("state_regress")
def a_completed_run_that_runs_again_regresses(e):
    row = pick(e)
    row.changes += [StatusChange("running", row.ended_at, 1, "w", None), StatusChange("completed", row.ended_at, 1, "w", None)]


@planted("state_regress")
def an_attempt_that_sinks_regresses(e):
    row = pick(e, "flaky", attempt=2)
    row.changes.insert(-1, replace(row.changes[-2], attempt=1))


@planted("state_regress")
def a_next_attempt_without_being_queued_regresses(e):
    row = pick(e, "flaky", attempt=2)
    row.changes[:] = [c for c in row.changes if c.status != "queued" or c.attempt == 1]


@planted("state_regress")
def a_life_that_ends_otherwise_than_the_row_regresses(e):
    pick(e).changes[-1].status = "cancelled"


@planted("state_regress")
def a_queued_run_that_becomes_unknown_regresses(e):
    row = pick(e)
    row.changes[1:-1] = [StatusChange("unknown", row.created_at, 1, "s", None)]


@planted("state_regress")
def a_running_one_put_back_by_nobody_in_the_same_attempt_regresses(e):
    row = pick(e, "long", attempt=None)
    row.changes.insert(2, StatusChange("queued", row.created_at, 1, None, None))


@twin("state_regress")
def a_run_whose_beginning_was_never_told_does_not_regress(e):
    del pick(e).changes[1:-1]


@twin("state_regress")
def a_wait_that_is_let_go_does_not_regress(e):
    row = pick(e)
    row.changes.insert(1, replace(row.changes[0], by=None, note=None))


@twin("state_regress")
def a_running_one_handed_back_in_the_same_attempt_does_not_regress(e):
    row = pick(e, "flaky", attempt=2)
    row.changes.insert(-1, StatusChange("queued", row.created_at, 2, "worker-1", "handed back"))


@twin("state_regress")
def an_unknown_run_that_comes_back_does_not_regress(e):
    row = pick(e)
    alone(e, row)
    at = first(e, row).at
    fault(e, "freeze", "worker-7", at)
    row.changes[1:-1] = [StatusChange(status, at + 5 * MS, 1, "s", None) for status in ("running", "unknown", "running")]


# api_sql_mismatch


@planted("api_sql_mismatch")
def a_status_that_the_interface_tells_otherwise_is_a_mismatch(e):
    e.api[7].status = "running"


@planted("api_sql_mismatch")
def an_occurrence_that_the_interface_does_not_tell_is_a_mismatch(e):
    e.api.pop(7)


@planted("api_sql_mismatch")
def an_occurrence_that_the_interface_alone_tells_is_a_mismatch(e):
    e.api.append(replace(e.api[7], occurrence="occ-nowhere"))


@planted("api_sql_mismatch")
def an_end_that_the_interface_tells_a_microsecond_later_is_a_mismatch(e):
    e.api[7].ended_at += 1


@twin("api_sql_mismatch")
def another_order_is_no_mismatch(e):
    e.api.reverse()


# leak


@planted("leak")
def a_message_left_in_a_queue_is_a_leak(e):
    e.leftovers.queues["jobs"] = 1


@planted("leak")
def a_row_left_in_an_outbox_is_a_leak(e):
    e.leftovers.outboxes["worker-2"] = 1


@planted("leak")
def an_open_transaction_is_a_leak(e):
    e.leftovers.open_transactions = 1


@planted("leak")
def an_unpublished_message_is_a_leak(e):
    e.leftovers.unpublished = 1


@planted("leak")
def a_wait_that_is_not_over_is_a_leak(e):
    e.leftovers.waits = 1


@twin("leak")
def one_more_empty_queue_is_no_leak(e):
    e.leftovers.queues["another"] = 0


# order_lie


@planted("order_lie")
def an_end_heard_otherwise_than_it_was_is_a_lie(e):
    e.leftovers.heard[pick(e).occurrence] = "failed"


@planted("order_lie")
def an_end_heard_of_an_occurrence_that_does_not_exist_is_a_lie(e):
    e.leftovers.heard["occ-nowhere"] = "completed"


@twin("order_lie")
def hearing_of_a_run_but_not_of_its_end_is_no_lie(e):
    e.leftovers.heard[pick(e).occurrence] = "running"


# failed_by_infra


@planted("failed_by_infra")
def failed_without_a_run_that_failed_is_blamed_on_the_services(e):
    row = pick(e)
    forget(e, row, "end")
    become(e, row, "failed")


@planted("failed_by_infra")
def timed_out_without_a_run_that_failed_is_blamed_on_the_services(e):
    row = pick(e)
    forget(e, row, "end")
    become(e, row, "timed-out")


@twin("failed_by_infra")
def a_killer_fails_without_a_run_that_was_seen_to_fail(e):
    assert pick(e, "crasher", attempt=3, second=0).status == "failed"


@twin("failed_by_infra")
def a_run_that_was_seen_to_fail_may_be_failed(e):
    row = pick(e)
    seen(e, row, "end").outcome = "panicked"
    become(e, row, "failed")


# storm


@planted("storm")
def six_lines_a_second_for_five_seconds_are_a_storm(e):
    e.loglines += [LogLineCount("worker-1", "outbox", 1_700_000_000 + 10 * n, 6) for n in range(5)]


@planted("storm")
def lines_of_one_second_are_added_up(e):
    e.loglines += [LogLineCount("worker-1", "outbox", 1_700_000_000 + n // 2, 3) for n in range(12) for _ in (1,)]
    e.loglines += [LogLineCount("worker-1", "outbox", 1_700_000_000 + n // 2, 1) for n in range(12)]


@twin("storm")
def five_lines_a_second_for_ever_are_no_storm(e):
    e.loglines += [LogLineCount("worker-1", "outbox", 1_700_000_000 + n, 5) for n in range(60)]


@twin("storm")
def six_lines_in_four_seconds_of_a_minute_are_no_storm(e):
    e.loglines += [LogLineCount("worker-1", "outbox", 1_700_000_000 + 15 * n, 6) for n in range(40)]


@twin("storm")
def two_loops_are_not_one_storm(e):
    e.loglines += [LogLineCount("worker-1", f"loop-{n % 2}", 1_700_000_000 + n, 6) for n in range(8)]

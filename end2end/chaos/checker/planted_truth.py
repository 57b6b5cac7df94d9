"""Planted violations of the shown statuses, and of leftovers and log volume."""

from __future__ import annotations

from dataclasses import replace

from evidence import StatusChange, LogLineCount
from history import MS
from planted import isolate, become, cancel, fault, first, forget, pick, planted, seen, harmless


# stuck


@planted("stuck")
def queued_run_is_stuck(e):
    row = pick(e)
    forget(e, row)
    row.changes[1:] = []
    become(e, row, "queued")


@planted("stuck")
def unknown_run_is_stuck(e):
    become(e, pick(e, attempt=1), "unknown")


@harmless("stuck")
def skipped_run_is_not_stuck(e):
    row = pick(e)
    forget(e, row)
    row.changes[1:] = []
    become(e, row, "skipped")


# status_lie


@planted("status_lie")
def completed_without_a_completed_run_is_a_lie(e):
    seen(e, pick(e), "end").outcome = "failed"


@planted("status_lie")
def completed_although_the_last_attempt_failed_is_a_lie(e):
    seen(e, pick(e, "flaky", attempt=2), "end", 2).outcome = "failed"


@planted("status_lie")
def cancelled_without_a_request_is_a_lie(e):
    become(e, pick(e), "cancelled")


@planted("status_lie")
def cancelled_by_a_refused_request_is_a_lie(e):
    row = pick(e)
    become(e, row, "cancelled")
    cancel(e, row, "refused")


@planted("status_lie")
def skipped_although_it_started_is_a_lie(e):
    row = pick(e)
    row.changes = [StatusChange("skipped", row.created_at, 1, None, None)]
    become(e, row, "skipped")


@planted("status_lie")
def failed_although_the_run_was_cancelled_is_a_lie(e):
    row = pick(e, "flaky", attempt=2)
    seen(e, row, "end", 2).outcome = "cancelled"
    become(e, row, "failed")


@harmless("status_lie")
def cancelled_by_an_unanswered_request_is_no_lie(e):
    row = pick(e)
    become(e, row, "cancelled")
    cancel(e, row, "unknown")


@harmless("status_lie")
def completed_despite_a_cancellation_is_no_lie(e):
    cancel(e, pick(e), "ok")


# lost_result


@planted("lost_result")
def unknown_after_a_completed_run_is_a_lost_result(e):
    become(e, pick(e), "unknown")


@planted("lost_result")
def failed_after_a_completed_run_is_a_lost_result(e):
    become(e, pick(e, "flaky", attempt=2), "failed")


@planted("lost_result")
def unknown_after_a_failed_run_is_a_lost_result(e):
    become(e, pick(e, "failing", attempt=3), "unknown")


@harmless("lost_result")
def cancelled_upon_completion_is_no_lost_result(e):
    row = pick(e)
    cancel(e, row, "ok")
    become(e, row, "cancelled")


# state_regress


@planted("state_regress")
def completed_run_that_runs_again_regresses(e):
    row = pick(e)
    row.changes += [StatusChange("running", row.ended_at, 1, "w", None), StatusChange("completed", row.ended_at, 1, "w", None)]


@planted("state_regress")
def decreasing_attempt_number_regresses(e):
    row = pick(e, "flaky", attempt=2)
    row.changes.insert(-1, replace(row.changes[-2], attempt=1))


@planted("state_regress")
def next_attempt_without_queued_regresses(e):
    row = pick(e, "flaky", attempt=2)
    row.changes[:] = [c for c in row.changes if c.status != "queued" or c.attempt == 1]


@planted("state_regress")
def history_that_ends_unlike_the_row_regresses(e):
    pick(e).changes[-1].status = "cancelled"


@planted("state_regress")
def queued_run_that_becomes_unknown_regresses(e):
    row = pick(e)
    row.changes[1:-1] = [StatusChange("unknown", row.created_at, 1, "s", None)]


@planted("state_regress")
def unexplained_requeue_in_the_same_attempt_regresses(e):
    row = pick(e, "long", attempt=None)
    row.changes.insert(2, StatusChange("queued", row.created_at, 1, None, None))


@harmless("state_regress")
def missing_running_entry_does_not_regress(e):
    del pick(e).changes[1:-1]


@harmless("state_regress")
def repeated_queued_entry_does_not_regress(e):
    row = pick(e)
    row.changes.insert(1, replace(row.changes[0], by=None, note=None))


@harmless("state_regress")
def run_handed_back_in_the_same_attempt_does_not_regress(e):
    row = pick(e, "flaky", attempt=2)
    row.changes.insert(-1, StatusChange("queued", row.created_at, 2, "worker-1", "handed back"))


@harmless("state_regress")
def unknown_run_that_reports_again_does_not_regress(e):
    row = pick(e)
    isolate(e, row)
    at = first(e, row).at
    fault(e, "freeze", "worker-7", at)
    row.changes[1:-1] = [StatusChange(status, at + 5 * MS, 1, "s", None) for status in ("running", "unknown", "running")]


# api_sql_mismatch


@planted("api_sql_mismatch")
def different_status_is_a_mismatch(e):
    e.api[7].status = "running"


@planted("api_sql_mismatch")
def occurrence_missing_in_the_api_is_a_mismatch(e):
    e.api.pop(7)


@planted("api_sql_mismatch")
def occurrence_only_in_the_api_is_a_mismatch(e):
    e.api.append(replace(e.api[7], occurrence="occ-nowhere"))


@planted("api_sql_mismatch")
def end_that_differs_by_a_microsecond_is_a_mismatch(e):
    e.api[7].ended_at += 1


@harmless("api_sql_mismatch")
def different_order_is_no_mismatch(e):
    e.api.reverse()


# leak


@planted("leak")
def message_left_in_a_queue_is_a_leak(e):
    e.leftovers.queues["jobs"] = 1


@planted("leak")
def row_left_in_an_outbox_is_a_leak(e):
    e.leftovers.outboxes["worker-2"] = 1


@planted("leak")
def open_transaction_is_a_leak(e):
    e.leftovers.open_transactions = 1


@planted("leak")
def unpublished_message_is_a_leak(e):
    e.leftovers.unpublished = 1


@planted("leak")
def remaining_wait_is_a_leak(e):
    e.leftovers.waits = 1


@harmless("leak")
def empty_queue_is_no_leak(e):
    e.leftovers.queues["another"] = 0


# order_lie


@planted("order_lie")
def streamed_end_that_differs_is_a_lie(e):
    e.leftovers.heard[pick(e).occurrence] = "failed"


@planted("order_lie")
def streamed_end_of_an_unknown_occurrence_is_a_lie(e):
    e.leftovers.heard["occ-nowhere"] = "completed"


@harmless("order_lie")
def streamed_status_that_is_not_final_is_no_lie(e):
    e.leftovers.heard[pick(e).occurrence] = "running"


# failed_by_infra


@planted("failed_by_infra")
def failed_without_a_failed_run_is_blamed_on_services(e):
    row = pick(e)
    forget(e, row, "end")
    become(e, row, "failed")


@planted("failed_by_infra")
def timed_out_without_a_failed_run_is_blamed_on_services(e):
    row = pick(e)
    forget(e, row, "end")
    become(e, row, "timed-out")


@harmless("failed_by_infra")
def crasher_may_fail_without_a_reported_end(e):
    assert pick(e, "crasher", attempt=3, second=0).status == "failed"


@harmless("failed_by_infra")
def run_with_a_reported_failure_may_be_failed(e):
    row = pick(e)
    seen(e, row, "end").outcome = "panicked"
    become(e, row, "failed")


# storm


@planted("storm")
def six_lines_a_second_for_five_seconds_are_a_storm(e):
    e.loglines += [LogLineCount("worker-1", "outbox", 1_700_000_000 + 10 * n, 6) for n in range(5)]


@planted("storm")
def lines_of_one_second_are_summed(e):
    e.loglines += [LogLineCount("worker-1", "outbox", 1_700_000_000 + n // 2, 3) for n in range(12) for _ in (1,)]
    e.loglines += [LogLineCount("worker-1", "outbox", 1_700_000_000 + n // 2, 1) for n in range(12)]


@harmless("storm")
def five_lines_a_second_are_no_storm(e):
    e.loglines += [LogLineCount("worker-1", "outbox", 1_700_000_000 + n, 5) for n in range(60)]


@harmless("storm")
def four_loud_seconds_a_minute_are_no_storm(e):
    e.loglines += [LogLineCount("worker-1", "outbox", 1_700_000_000 + 15 * n, 6) for n in range(40)]


@harmless("storm")
def lines_of_two_loops_are_not_summed(e):
    e.loglines += [LogLineCount("worker-1", f"loop-{n % 2}", 1_700_000_000 + n, 6) for n in range(8)]

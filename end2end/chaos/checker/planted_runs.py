"""Planted violations of attempts and of their times."""

from __future__ import annotations

from dataclasses import replace

from evidence import FaultLimits, StatusChange, Evidence
from history import MS
from planted import (
    delay, fault, first, forget, harmless, isolate, pick, planted, rerun, seen, start_after, sync_readings,
)
from schedule import SECOND
from synthetic import BEGAN


# overlap


@planted("overlap")
def concurrent_attempts_without_a_fault_overlap(e):
    rerun(e, pick(e), 11_000, 20_000)


@harmless("overlap")
def cut_link_of_the_first_worker_explains_overlap(e):
    row = pick(e)
    rerun(e, row, 11_000, 20_000)
    fault(e, "cut", "worker-7>rabbitmq", first(e, row).at + 500 * MS, 10_000)


@planted("overlap")
def cut_link_of_another_worker_explains_no_overlap(e):
    row = pick(e)
    rerun(e, row, 11_000, 20_000)
    fault(e, "cut", "worker-6>rabbitmq", first(e, row).at + 500 * MS, 10_000)


@planted("overlap")
def cut_after_the_second_start_explains_no_overlap(e):
    row = pick(e)
    again = rerun(e, row, 11_000, 20_000)
    fault(e, "cut", "worker-7>rabbitmq", again.at + MS, 5_000)


@harmless("overlap")
def frozen_worker_explains_overlap(e):
    row = pick(e)
    rerun(e, row, 11_000, 20_000)
    fault(e, "freeze", "worker-7", first(e, row).at + 500 * MS, 12_000)


@harmless("overlap")
def cut_within_the_heartbeat_timeout_explains_overlap(e):
    row = pick(e, second=11)
    rerun(e, row, 2_000, 4_000)
    fault(e, "cut", "worker-7>redis", first(e, row).at - 9_990 * MS, 900)


@planted("overlap")
def cut_before_the_heartbeat_timeout_explains_no_overlap(e):
    row = pick(e, second=11)
    rerun(e, row, 2_000, 4_000)
    fault(e, "cut", "worker-7>redis", first(e, row).at - 11_000 * MS, 990)


@planted("overlap")
def attempt_without_end_runs_while_its_worker_lives(e):
    rerun(e, pick(e), 11_000, None)


@harmless("overlap")
def kill_ends_an_attempt_without_end(e):
    row = pick(e)
    rerun(e, row, 11_000, None)
    fault(e, "kill", "worker-7", first(e, row).at + 2 * MS)


@planted("overlap")
def kill_after_the_second_start_explains_no_overlap(e):
    row = pick(e)
    again = rerun(e, row, 11_000, None)
    fault(e, "kill", "worker-7", again.at + 2 * MS)


@planted("overlap")
def kill_before_the_first_start_explains_no_overlap(e):
    row = pick(e)
    rerun(e, row, 11_000, 20_000)
    fault(e, "kill", "worker-7", first(e, row).at - 3_000 * MS)


@planted("overlap")
def instantaneous_fault_explains_no_overlap(e):
    row = pick(e)
    rerun(e, row, 11_000, 20_000)
    fault(e, "flush", "redis", first(e, row).at + 3_000 * MS, 0)


@planted("overlap")
def attempt_started_after_a_later_one_overlaps(e):
    row = pick(e, "flaky", attempt=2)
    seen(e, row, "end", 1).outcome = "failed"
    for s in e.witness:
        if s.occurrence == row.occurrence and s.attempt == 1:
            s.at += 20 * SECOND


@harmless("overlap")
def freeze_before_the_start_excuses_a_reversed_order(e):
    row = pick(e, second=11)
    rerun(e, row, 11_000, 11_100)
    start = first(e, row)
    fault(e, "freeze", "worker-7", start.at, 11_050)
    start.at += 11_060 * MS
    row.started_at = next(a for a in e.api if a.occurrence == row.occurrence).started_at = start.at


# false_lost


@planted("false_lost")
def healthy_run_declared_lost_is_false_lost(e):
    rerun(e, pick(e), 11_000, 10_900)


@harmless("false_lost")
def run_of_a_frozen_worker_may_be_declared_lost(e):
    row = pick(e)
    rerun(e, row, 11_000, 10_900)
    fault(e, "freeze", "worker-7", first(e, row).at + MS, 10_500)


@planted("false_lost")
def healthy_run_marked_unknown_is_false_lost(e):
    row = pick(e)
    at = first(e, row).at + MS
    row.changes[1:-1] = [StatusChange("running", at, 1, "w", None), StatusChange("unknown", at, 1, "s", None)]


@planted("false_lost")
def server_without_broker_must_not_declare_runs_lost(e):
    row = pick(e)
    rerun(e, row, 11_000, 10_900)
    fault(e, "cut", "server-1>rabbitmq", first(e, row).at + MS, 10_500)


@planted("false_lost")
def broker_outage_explains_no_lost_run(e):
    row = pick(e)
    rerun(e, row, 11_000, 10_900)
    fault(e, "kill", "rabbitmq", first(e, row).at + MS, 9_000)


@harmless("false_lost")
def run_of_a_partitioned_worker_may_be_declared_lost(e):
    row = pick(e)
    rerun(e, row, 11_000, 10_900)
    fault(e, "blackhole", first(e, row).process + ">rabbitmq", first(e, row).at + MS, 9_000)


@planted("false_lost")
def copied_messages_explain_no_lost_run(e):
    row = pick(e)
    rerun(e, row, 11_000, 10_900)
    fault(e, "copy", "rabbitmq", first(e, row).at + MS, 9_000)


@planted("false_lost")
def fault_after_the_loss_does_not_explain_it(e):
    row = pick(e)
    again = rerun(e, row, 3_000, 2_900)
    fault(e, "freeze", "worker-7", again.at + MS, 3_000)


@planted("false_lost")
def fault_before_the_heartbeat_timeout_explains_no_loss(e):
    row = pick(e, second=11)
    rerun(e, row, 3_000, 2_900)
    fault(e, "freeze", "worker-7", first(e, row).at - 11_000 * MS, 990)


@harmless("false_lost")
def fault_within_the_heartbeat_timeout_explains_a_loss(e):
    row = pick(e, second=11)
    rerun(e, row, 3_000, 2_900)
    fault(e, "freeze", "worker-7", first(e, row).at - 11_000 * MS, 1_000)


@harmless("false_lost")
def retried_failure_is_not_false_lost(e):
    row = pick(e)
    rerun(e, row, 1_000, 100)
    seen(e, row, "end").outcome = "failed"
    next(job for job in e.jobs if job.job == row.job).max_retries = 1


# early


@planted("early")
def start_101_ms_before_due_is_early(e):
    start_after(e, pick(e), -101 * MS)


@harmless("early")
def start_99_ms_before_due_is_not_early(e):
    start_after(e, pick(e), -99 * MS)


@planted("early")
def manual_run_started_before_its_trigger_is_early(e):
    row = pick(e, trigger="api")
    delay(e, row, -500 * MS)


# late


@planted("late")
def start_a_microsecond_after_the_limit_is_late(e):
    start_after(e, pick(e), 1000 * MS + 1)


@harmless("late")
def start_1000_ms_after_due_is_not_late(e):
    start_after(e, pick(e), 1000 * MS)


@harmless("late")
def start_during_a_fault_may_use_the_allowance(e):
    row = pick(e)
    fault(e, "latency", "server-2>redis", row.scheduled_for - MS)
    start_after(e, row, 14_999 * MS)


@planted("late")
def start_beyond_the_fault_allowance_is_late(e):
    row = pick(e)
    fault(e, "latency", "server-2>redis", row.scheduled_for - MS)
    start_after(e, row, 15_001 * MS)


@harmless("late")
def null_allowance_disables_lateness_during_faults(e):
    row = pick(e)
    e.run.allowance_ms = None
    fault(e, "latency", "server-2>redis", row.scheduled_for - MS)
    start_after(e, row, 60_000 * MS)


@harmless("late")
def run_due_when_recovery_ends_is_excused(e):
    row = pick(e, second=8)
    fault(e, "flush", "redis", row.scheduled_for - e.run.recovery_ms * MS, 0)
    start_after(e, row, 3_000 * MS)


@planted("late")
def run_due_after_recovery_is_not_excused(e):
    row = pick(e, second=8)
    fault(e, "flush", "redis", row.scheduled_for - e.run.recovery_ms * MS - MS, 0)
    start_after(e, row, 3_000 * MS)


@planted("late")
def row_created_after_the_dispatch_allowance_is_late(e):
    row = pick(e)
    fault(e, "flush", "redis", row.scheduled_for, 0)
    row.created_at = row.scheduled_for + 10_001 * MS


@harmless("late")
def row_created_within_the_dispatch_allowance_is_not_late(e):
    row = pick(e)
    fault(e, "flush", "redis", row.scheduled_for, 0)
    row.created_at = row.scheduled_for + 9_999 * MS


@planted("late")
def manual_run_is_due_at_the_first_call_with_its_key(e):
    row = pick(e, trigger="api")
    op = next(op for op in e.ops if op.key == row.trigger_key)
    e.ops.append(replace(op, outcome="unknown", invoked=op.invoked - 2000 * MS, returned=op.returned - 1000 * MS))


@harmless("late")
def run_due_before_the_definition_returned_is_not_late(e):
    row = pick(e)
    start_after(e, row, 3_000 * MS)
    next(op for op in e.ops if op.op == "define" and op.job == row.job).returned = row.scheduled_for + 1


def limit(e, kind, target, allowance_ms, recovery_ms=5_000):
    """Gives one kind of fault limits of its own."""
    e.run.fault_limits.append(FaultLimits(kind, target, allowance_ms, allowance_ms, recovery_ms))


@planted("late")
def start_beyond_the_limit_of_its_own_fault_is_late(e):
    row = pick(e)
    limit(e, "flush", "redis", 2_000)
    fault(e, "flush", "redis", row.scheduled_for - MS, 0)
    start_after(e, row, 2_001 * MS)


@harmless("late")
def start_within_the_limit_of_its_own_fault_is_not_late(e):
    row = pick(e)
    limit(e, "latency", "server", 20_000)
    fault(e, "latency", "server-2>redis", row.scheduled_for - MS)
    start_after(e, row, 20_000 * MS)


@planted("late")
def limit_of_another_target_excuses_nothing(e):
    row = pick(e)
    limit(e, "latency", "worker", 20_000)
    fault(e, "latency", "server-2>redis", row.scheduled_for - MS)
    start_after(e, row, 15_001 * MS)


@harmless("late")
def widest_of_two_faults_at_once_counts(e):
    row = pick(e)
    limit(e, "flush", "redis", 2_000)
    limit(e, "latency", "server", 20_000)
    fault(e, "flush", "redis", row.scheduled_for - MS, 0)
    fault(e, "latency", "server-2>redis", row.scheduled_for - MS)
    start_after(e, row, 19_000 * MS)


@planted("late")
def run_due_after_the_recovery_of_its_own_fault_is_not_excused(e):
    row = pick(e, second=8)
    limit(e, "flush", "redis", 15_000, recovery_ms=2_000)
    fault(e, "flush", "redis", row.scheduled_for - 2_001 * MS, 0)
    start_after(e, row, 3_000 * MS)


@planted("late")
def row_created_after_the_limit_of_its_own_fault_is_late(e):
    row = pick(e)
    limit(e, "flush", "redis", 2_000)
    fault(e, "flush", "redis", row.scheduled_for, 0)
    row.created_at = row.scheduled_for + 2_001 * MS


# orphan_late


@planted("orphan_late")
def orphan_restarted_after_the_limit_is_late(e):
    row = pick(e)
    rerun(e, row, 15_010, None)
    fault(e, "kill", "worker-7", first(e, row).at + 9 * MS)


@harmless("orphan_late")
def orphan_restarted_at_the_limit_is_not_late(e):
    row = pick(e)
    rerun(e, row, 15_009, None)
    fault(e, "kill", "worker-7", first(e, row).at + 9 * MS)


@planted("orphan_late")
def orphan_that_never_restarts_is_late(e):
    row = pick(e)
    isolate(e, row)
    forget(e, row, "end")
    fault(e, "crash-point", "worker-7", first(e, row).at + 9 * MS)


@harmless("orphan_late")
def orphan_may_wait_for_an_unavailable_broker(e):
    row = pick(e)
    rerun(e, row, 20_000, None)
    fault(e, "kill", "worker-7", first(e, row).at + 9 * MS)
    fault(e, "kill", "rabbitmq", first(e, row).at + 100 * MS, 8_000)


@harmless("orphan_late")
def null_limit_disables_orphan_lateness(e):
    row = pick(e)
    e.run.orphan_ms = None
    rerun(e, row, 70_000, None)
    fault(e, "kill", "worker-7", first(e, row).at + 9 * MS)


def kill_twice(e: Evidence, again_ms: int | None) -> None:
    """Kills two attempts of a run. The third starts `again_ms` after the second, or never."""
    row = pick(e)
    second = rerun(e, row, 15_000, None)
    fault(e, "kill", "worker-7", first(e, row).at + 9 * MS)
    forget(e, row, "end")
    second.process, second.pid, second.instance = "worker-8", 8000, "worker-8-8000"
    row.changes[-2].by = second.instance
    fault(e, "kill", "worker-8", second.at + 9 * MS)
    if again_ms is None:
        return
    at = second.at + again_ms * MS
    third = replace(second, at=at, mono=at - BEGAN, attempt=3, process="worker-3", pid=1, instance="worker-3-1")
    e.witness += [third, replace(third, at=at + 9 * MS, what="end", outcome="completed")]
    row.changes[-1:] = [
        StatusChange("queued", at - 20 * MS, 3, "server-1", "lost"), StatusChange("running", at - 2 * MS, 3, "worker-3-1", None),
        StatusChange("completed", at + 30 * MS, 3, "worker-3-1", None),
    ]
    row.attempt = 3
    sync_readings(e, row)


@harmless("orphan_late")
def run_that_was_lost_twice_may_wait_in_quarantine(e):
    kill_twice(e, 60_000)


@planted("orphan_late")
def run_that_was_lost_twice_must_start_again(e):
    kill_twice(e, None)


def share_process_with_crasher(e: Evidence, after_ms: int) -> None:
    """Moves a quick run to a crasher's process, 5 ms before the crasher starts. It restarts `after_ms` after that."""
    crasher = min((s for s in e.witness if s.process == "worker-9" and s.what == "start"), key=lambda s: s.at)
    job = pick(e).job
    row = max((r for r in e.sql if r.job == job and r.scheduled_for < crasher.at - 5 * MS), key=lambda r: r.scheduled_for)
    delay(e, row, crasher.at - 5 * MS - first(e, row).at)
    rerun(e, row, after_ms + 5, None)
    start = first(e, row)
    start.process, start.pid, start.instance = crasher.process, crasher.pid, crasher.instance


@harmless("orphan_late")
def run_beside_a_crasher_is_an_orphan(e):
    share_process_with_crasher(e, 15_000)


@planted("orphan_late")
def run_beside_a_crasher_has_the_same_limit(e):
    share_process_with_crasher(e, 15_001)

"""Joins the evidence by occurrence, once for all verdicts.

Nothing is judged here. The witness and the product are kept apart: `attempts` contains only events of the witness, and
`rows` only records of the product.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from datetime import datetime, timezone

from evidence import Evidence, FaultLimits, FaultRecord, Job, DriverOperation, OccurrenceRecord, WitnessEvent
from expect import ExpectedWork, expect

MS = 1_000
DEADLY = frozenset(("kill", "terminate", "crash-point"))
# These faults add messages or processes. They take nothing away, so they do not explain a missing heartbeat.
ADDING = frozenset(("copy", "replay", "start"))
SERVICES = frozenset(("rabbitmq", "redis", "postgres"))


@dataclass(slots=True)
class Attempt:
    """One attempt, from the events of the witness. `start` is None if only an end was received."""

    number: int
    start: WitnessEvent | None
    end: WitnessEvent | None
    again: list[WitnessEvent] | None = None  # Starts beyond the first.


@dataclass(slots=True)
class FaultSpan:
    """A fault with a known end. `pid` is set if it hit one process, and not every process with the target's name."""

    fault: FaultRecord
    began: int
    ended: int
    pid: int | None = None

    def hits(self, process: str, pid: int) -> bool:
        return self.fault.target == process and (self.pid is None or self.pid == pid)


def when(instant: int) -> str:
    """Returns an instant as the findings show it: as a time of day, and as the number in the files."""
    try:
        moment = datetime.fromtimestamp(instant // 1_000_000, timezone.utc)
    except (OverflowError, ValueError, OSError):
        return str(instant)
    return f"{moment:%H:%M:%S}.{instant % 1_000_000:06d} ({instant})"


def is_service(target: str) -> bool:
    """Returns true for a service as a whole and for a server. A single link of a server is neither."""
    return target in SERVICES or (target.startswith("server") and ">" not in target)


class History:
    """The joined evidence."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.run = evidence.run
        self.jobs: dict[str, Job] = {job.job: job for job in evidence.jobs}
        self.expected: ExpectedWork = expect(evidence)
        self.rows: dict[str, OccurrenceRecord] = {row.occurrence: row for row in evidence.sql}
        self.cancels: dict[str, list[DriverOperation]] = {}
        for op in evidence.ops:
            if op.op == "cancel" and op.occurrence is not None:
                self.cancels.setdefault(op.occurrence, []).append(op)
        self.scheduled: dict[tuple[str, int], list[OccurrenceRecord]] = {}
        self.keyed: dict[tuple[str, str], list[OccurrenceRecord]] = {}
        for row in evidence.sql:
            if row.trigger == "schedule":
                self.scheduled.setdefault((row.job, row.scheduled_for or 0), []).append(row)
            elif row.trigger_key is not None:
                self.keyed.setdefault((row.job, row.trigger_key), []).append(row)
        self._attempts()
        self._faults()

    def _attempts(self) -> None:
        runs: dict[str, dict[int, Attempt]] = {}
        self.starts = self.ends = 0
        crashers: list[WitnessEvent] = []
        crasher_jobs = {job.job for job in self.evidence.jobs if job.type == "crasher"}
        restarted: dict[str, list[WitnessEvent]] = {}
        for seen in sorted(self.evidence.witness, key=lambda seen: seen.at):
            attempts = runs.get(seen.occurrence)
            if attempts is None:
                attempts = runs[seen.occurrence] = {}
            attempt = attempts.get(seen.attempt)
            if seen.what == "start":
                self.starts += 1
                if attempt is None:
                    attempts[seen.attempt] = Attempt(seen.attempt, seen, None)
                elif attempt.start is None:
                    attempt.start = seen
                else:
                    attempt.again = [*(attempt.again or ()), seen]
                if seen.job in crasher_jobs:
                    crashers.append(seen)
            else:
                self.ends += 1
                if attempt is None:
                    attempts[seen.attempt] = Attempt(seen.attempt, None, seen)
                elif attempt.end is None:
                    attempt.end = seen
            if crasher_jobs:
                restarted.setdefault(seen.process, []).append(seen)
        self.attempts: dict[str, list[Attempt]] = {
            occurrence: list(found.values()) if len(found) == 1 else [found[n] for n in sorted(found)]
            for occurrence, found in runs.items()
        }
        # A crasher ends its whole process. The harness may record no fault for that.
        self.deaths: list[FaultSpan] = []
        for start in crashers:
            back = next((s.at for s in restarted[start.process] if s.at > start.at and s.pid != start.pid), self.run.read)
            fault = FaultRecord("kill", start.process, start.at, back, f"by the run of {start.occurrence}")
            self.deaths.append(FaultSpan(fault, start.at, back, start.pid))

    def _faults(self) -> None:
        read = self.run.read
        self.fault_spans = [
            FaultSpan(fault, fault.began, read if fault.ended is None else fault.ended) for fault in self.evidence.nemesis
        ]
        self.fault_spans.sort(key=lambda fault_span: fault_span.began)
        self.all_fault_spans = self.fault_spans + self.deaths
        # Work that is due shortly before a fault, and not yet late when the fault begins, is affected by it too.
        before = self.run.slo_ms * MS
        self._windows: list[tuple[int, int, FaultLimits]] = []
        for fault_span in self.fault_spans:
            limits = self.run.limits_of(fault_span.fault)
            window = (fault_span.began - before, fault_span.ended + limits.recovery_ms * MS, limits)
            self._windows.append(window)
        self.excused: list[tuple[int, int]] = merge([(first, last) for first, last, _ in self._windows])
        self._excused_from = [first for first, _ in self.excused]

    def is_excused(self, instant: int) -> bool:
        """Returns true if work due at this instant may be as late as a fault permits."""
        index = bisect_right(self._excused_from, instant) - 1
        return index >= 0 and instant <= self.excused[index][1]

    def allowances(self, instant: int) -> tuple[int | None, int | None]:
        """Returns how much later work due at this instant may start and be created, in milliseconds; None: not judged.

        During several faults, the one that permits the most counts.
        """
        run = self.run
        if not self.is_excused(instant):
            return run.slo_ms, run.slo_ms
        if not run.fault_limits:
            return run.allowance_ms, run.dispatch_allowance_ms
        limits = [limits for first, last, limits in self._windows if first <= instant <= last]
        return (
            _greatest([one.allowance_ms for one in limits]),
            _greatest([one.dispatch_allowance_ms for one in limits]),
        )

    def first_start(self, occurrence: str) -> WitnessEvent | None:
        """Returns the earliest start of any attempt of the occurrence."""
        earliest: WitnessEvent | None = None
        for attempt in self.attempts.get(occurrence, ()):
            start = attempt.start
            if start is not None and (earliest is None or start.at < earliest.at):
                earliest = start
        return earliest

    def lateness_start(self, occurrence: str) -> WitnessEvent | None:
        """Returns the start that lateness is measured by: the lowest attempt's, even if a later one began first."""
        for attempt in self.attempts.get(occurrence, ()):
            if attempt.start is not None:
                return attempt.start
        return None

    def due(self, row: OccurrenceRecord) -> int | None:
        """Returns the instant at which a row was due, or None if nothing asked for it.

        An enqueued occurrence has no due time: it may start as soon as the program has made its id, however large the
        backlog is. `early` judges its delay.
        """
        if row.trigger == "schedule":
            return row.scheduled_for
        if row.trigger == "enqueue":
            return None
        if row.trigger_key is not None:
            trigger = self.expected.triggers.get((row.job, row.trigger_key))
            return None if trigger is None else trigger.invoked
        return self.expected.named.get(row.occurrence)

    def type_of(self, job: str) -> str:
        known = self.jobs.get(job)
        return "" if known is None else known.type

    def death(self, start: WitnessEvent) -> FaultSpan | None:
        """Returns the first fault that killed the process of a run after the run began, or None."""
        found: FaultSpan | None = None
        for fault_span in self.all_fault_spans:
            if fault_span.fault.fault in DEADLY and fault_span.hits(start.process, start.pid):
                # A fault that is still on at the start counts: a datagram sent before the kill may be stamped after it.
                if fault_span.began >= start.at or fault_span.ended > start.at:
                    if found is None or fault_span.began < found.began:
                        found = fault_span
        return found

    def loss_cause(self, start: WitnessEvent, until: int) -> FaultSpan | None:
        """Returns a fault between a start and `until` that may have made the product count the run as lost, or None."""
        since = start.at - self.run.heartbeat_timeout_ms * MS
        link = start.process + ">"
        for fault_span in self.all_fault_spans:
            if fault_span.began <= until and fault_span.ended >= since and fault_span.fault.fault not in ADDING:
                target = fault_span.fault.target
                if fault_span.hits(start.process, start.pid) or target.startswith(link):
                    return fault_span
        return None

    def final_attempt(self, occurrence: str) -> Attempt | None:
        attempts = self.attempts.get(occurrence)
        return attempts[-1] if attempts else None


def _greatest(limits: list[int | None]) -> int | None:
    """Returns the greatest limit, or None if one of them is None, which is no limit."""
    known = [limit for limit in limits if limit is not None]
    return max(known) if len(known) == len(limits) else None


def merge(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns the union of the spans, in order and without overlaps."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged


def joined(evidence: Evidence) -> History:
    """Returns the joined evidence. The first call computes and caches it, so the evidence must not change later."""
    if evidence.history is None:
        evidence.history = History(evidence)
    return evidence.history

"""Puts the evidence together by occurrence, once, for all verdicts.

Nothing is judged here. What the witness saw and what the product says stay apart: `attempts` is the witness's alone,
`rows` the product's alone.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from datetime import datetime, timezone

from evidence import Evidence, FaultRecord, Job, DriverOperation, OccurrenceRecord, WitnessEvent
from expect import ExpectedWork, expect

MS = 1_000
DEADLY = frozenset(("kill", "terminate", "crash-point"))
# These add messages or processes. They take nothing away, and so explain no silence.
ADDING = frozenset(("copy", "replay", "start"))
SERVICES = frozenset(("rabbitmq", "redis", "postgres"))


@dataclass(slots=True)
class Attempt:
    """One attempt by the witness. `start` is None where only an end was seen."""

    number: int
    start: WitnessEvent | None
    end: WitnessEvent | None
    again: list[WitnessEvent] | None = None  # Starts beyond the first.


@dataclass(slots=True)
class FaultSpan:
    """A fault with its end settled. `pid` is set where it hit one process and not whoever bears its name."""

    fault: FaultRecord
    began: int
    ended: int
    pid: int | None = None

    def hits(self, process: str, pid: int) -> bool:
        return self.fault.target == process and (self.pid is None or self.pid == pid)


def when(instant: int) -> str:
    """An instant as the findings show it: legible, and as the files have it."""
    try:
        moment = datetime.fromtimestamp(instant // 1_000_000, timezone.utc)
    except (OverflowError, ValueError, OSError):
        return str(instant)
    return f"{moment:%H:%M:%S}.{instant % 1_000_000:06d} ({instant})"


def is_service(target: str) -> bool:
    """A service as a whole, or a server; a single link of a server is neither."""
    return target in SERVICES or (target.startswith("server") and ">" not in target)


class History:
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
        deadly_jobs = {job.job for job in self.evidence.jobs if job.type == "crasher"}
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
                if seen.job in deadly_jobs:
                    crashers.append(seen)
            else:
                self.ends += 1
                if attempt is None:
                    attempts[seen.attempt] = Attempt(seen.attempt, None, seen)
                elif attempt.end is None:
                    attempt.end = seen
            if deadly_jobs:
                restarted.setdefault(seen.process, []).append(seen)
        self.attempts: dict[str, list[Attempt]] = {
            occurrence: list(found.values()) if len(found) == 1 else [found[n] for n in sorted(found)]
            for occurrence, found in runs.items()
        }
        # A crasher takes its whole process with it, and no line of the nemesis tells.
        self.deaths: list[FaultSpan] = []
        for start in crashers:
            back = next((s.at for s in restarted[start.process] if s.at > start.at and s.pid != start.pid), self.run.read)
            fault = FaultRecord("kill", start.process, start.at, back, f"by the run of {start.occurrence}")
            self.deaths.append(FaultSpan(fault, start.at, back, start.pid))

    def _faults(self) -> None:
        read = self.run.read
        self.spells = [
            FaultSpan(fault, fault.began, read if fault.ended is None else fault.ended) for fault in self.evidence.nemesis
        ]
        self.spells.sort(key=lambda spell: spell.began)
        self.all_spells = self.spells + self.deaths
        # What is due so shortly before a fault that its time is not yet over when the fault begins suffers by it too.
        before, after = self.run.slo_ms * MS, self.run.recovery_ms * MS
        self.excused: list[tuple[int, int]] = merge(
            [(spell.began - before, spell.ended + after) for spell in self.spells]
        )
        self._excused_from = [first for first, _ in self.excused]

    def is_excused(self, instant: int) -> bool:
        """Whether something due at this instant may be as late as a fault makes it."""
        index = bisect_right(self._excused_from, instant) - 1
        return index >= 0 and instant <= self.excused[index][1]

    def first_start(self, occurrence: str) -> WitnessEvent | None:
        """The first time that any attempt of the occurrence was begun."""
        earliest: WitnessEvent | None = None
        for attempt in self.attempts.get(occurrence, ()):
            start = attempt.start
            if start is not None and (earliest is None or start.at < earliest.at):
                earliest = start
        return earliest

    def opening(self, occurrence: str) -> WitnessEvent | None:
        """The start that lateness is measured by: that of the lowest attempt, whenever a later one may have begun."""
        for attempt in self.attempts.get(occurrence, ()):
            if attempt.start is not None:
                return attempt.start
        return None

    def due(self, row: OccurrenceRecord) -> int | None:
        """The instant that a row is measured against, or None for one that nothing asked for."""
        if row.trigger == "schedule":
            return row.scheduled_for
        if row.trigger_key is not None:
            trigger = self.expected.triggers.get((row.job, row.trigger_key))
            return None if trigger is None else trigger.invoked
        return self.expected.named.get(row.occurrence)

    def type_of(self, job: str) -> str:
        known = self.jobs.get(job)
        return "" if known is None else known.type

    def death(self, start: WitnessEvent) -> FaultSpan | None:
        """What killed the process of a run, if anything did after the run began; the first such thing."""
        found: FaultSpan | None = None
        for spell in self.all_spells:
            if spell.fault.fault in DEADLY and spell.hits(start.process, start.pid):
                # One that is still on at the start counts: what was sent before the end is stamped after its beginning.
                if spell.began >= start.at or spell.ended > start.at:
                    if found is None or spell.began < found.began:
                        found = spell
        return found

    def silenced(self, start: WitnessEvent, until: int) -> FaultSpan | None:
        """A fault that can have made a run's worker look lost between its start and `until`."""
        since = start.at - self.run.heartbeat_timeout_ms * MS
        link = start.process + ">"
        for spell in self.all_spells:
            if spell.began <= until and spell.ended >= since and spell.fault.fault not in ADDING:
                target = spell.fault.target
                if spell.hits(start.process, start.pid) or target.startswith(link):
                    return spell
        return None

    def final_attempt(self, occurrence: str) -> Attempt | None:
        attempts = self.attempts.get(occurrence)
        return attempts[-1] if attempts else None


def merge(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same time as fewer spans, in order and apart from each other."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged


def joined(evidence: Evidence) -> History:
    """The evidence put together; worked out at the first call and kept with it, so evidence must not change after."""
    if evidence.history is None:
        evidence.history = History(evidence)
    return evidence.history

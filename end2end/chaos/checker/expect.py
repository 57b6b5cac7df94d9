"""Computes the work that is owed, from the definitions of the jobs and the driver's calls.

No record of the product is used. A due time is owed (`must`) if the job was certainly enabled. It is allowed (`may`) if
a call was under way or got no response, so that a run and no run are both correct.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from evidence import Evidence, Job, DriverOperation
from schedule import instants

# The time after a call returned in which its effect may not have reached the whole product, in microseconds.
SLACK = 1_000_000


@dataclass(slots=True)
class TriggerRecord:
    """All calls that triggered one manual run with one key."""

    job: str
    key: str
    invoked: int  # The first call that was not refused.
    sure: bool = False  # True if one call was answered `ok`.
    named: set[str] = field(default_factory=set)  # The occurrences that the responses named.


@dataclass(slots=True)
class EnqueueRecord:
    """All calls that enqueued one occurrence under the id that the program made."""

    invoked: int  # The first call that was not refused.
    parent: str | None
    not_before: int | None
    sure: bool = False  # True if one call was answered `ok`.


@dataclass(slots=True)
class ExpectedWork:
    must: dict[str, list[int]]
    may: dict[str, set[int]]
    defined: dict[str, int]  # The instant at which the job's definition was acknowledged.
    triggers: dict[tuple[str, str], TriggerRecord]
    named: dict[str, int]  # Occurrences named in responses to triggers without a key, with the instant of the call.
    unnamed: dict[str, list[DriverOperation]]  # By job: triggers without a key whose response named no occurrence.
    enqueued: dict[str, EnqueueRecord] = field(default_factory=dict)  # By occurrence.

    def allows(self, job: str, instant: int) -> bool:
        """Returns true if the due time is owed or allowed."""
        return instant in self.may.get(job, ()) or instant in self._must_set(job)

    _sets: dict[str, set[int]] = field(default_factory=dict)

    def _must_set(self, job: str) -> set[int]:
        known = self._sets.get(job)
        if known is None:
            known = self._sets[job] = set(self.must.get(job, ()))
        return known


def expect(evidence: Evidence) -> ExpectedWork:
    """Returns the owed and the allowed work of all jobs."""
    switches: dict[str, list[DriverOperation]] = {job.job: [] for job in evidence.jobs}
    expected = ExpectedWork({}, {}, {}, {}, {}, {})
    doubtful: dict[str, int] = {}
    for op in sorted(evidence.ops, key=lambda op: (op.invoked, op.returned)):
        if op.op == "trigger":
            _trigger(expected, op)
        elif op.op == "enqueue":
            _enqueue(expected, op)
        elif op.op != "cancel" and op.job is not None:
            switches[op.job].append(op)
            if op.op == "define" and op.outcome == "ok":
                expected.defined.setdefault(op.job, op.returned)
            elif op.op == "define" and op.outcome == "unknown":
                doubtful.setdefault(op.job, op.returned)
    expected.defined = {**doubtful, **expected.defined}
    for job in evidence.jobs:
        certain, possible = enabled(switches[job.job], evidence.run.cut, evidence.run.read)
        must: set[int] = set()
        may: set[int] = set()
        for first, last in certain:
            must.update(due(job, first + 1, last - 1))
        for first, last in possible:
            may.update(due(job, first, last))
        expected.must[job.job] = sorted(must)
        expected.may[job.job] = may - must
    return expected


def enabled(ops: list[DriverOperation], cut: int, read: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Returns the spans in which a job was certainly enabled, and those in which it may have been.

    A call without a response leaves the job in doubt until a call with a response. So do two concurrent calls with
    opposite effects, because it is unknown which one was applied last.
    """
    certain: list[tuple[int, int]] = []
    possible: list[tuple[int, int]] = []
    certainly_since: int | None = None
    possibly_since: int | None = None
    last_on = last_off = -1
    for op in ops:
        if op.outcome == "refused":
            continue
        sure = op.outcome == "ok"
        if op.op in ("define", "enable"):
            possibly_since = op.invoked if possibly_since is None else possibly_since
            if sure and certainly_since is None and op.invoked >= last_off:
                certainly_since = op.returned + SLACK
            last_on = max(last_on, op.returned) if sure else last_on
        else:
            if certainly_since is not None:
                # A job that was due a moment before the call may not have been dispatched yet.
                certain.append((certainly_since, op.invoked - SLACK))
                certainly_since = None
            if sure and possibly_since is not None and op.invoked >= last_on:
                possible.append((possibly_since, op.returned + SLACK))
                possibly_since = None
            last_off = max(last_off, op.returned) if sure else last_off
    if certainly_since is not None:
        certain.append((certainly_since, cut))
    if possibly_since is not None:
        possible.append((possibly_since, read))
    return [(first, min(last, cut)) for first, last in certain if first < min(last, cut)], possible


def due(job: Job, first: int, last: int) -> list[int]:
    """Returns the job's due times in [first, last]."""
    if job.cron is not None:
        return instants(job.cron, first, last)
    if job.once is not None and first <= job.once <= last:
        return [job.once]
    return []


def _trigger(expected: ExpectedWork, op: DriverOperation) -> None:
    if op.outcome == "refused" or op.job is None:
        return
    if op.key is None:
        if op.occurrence is None:
            expected.unnamed.setdefault(op.job, []).append(op)
        else:
            expected.named.setdefault(op.occurrence, op.invoked)
        return
    trigger = expected.triggers.setdefault((op.job, op.key), TriggerRecord(op.job, op.key, op.invoked))
    trigger.sure = trigger.sure or op.outcome == "ok"
    if op.occurrence is not None:
        trigger.named.add(op.occurrence)


def _enqueue(expected: ExpectedWork, op: DriverOperation) -> None:
    if op.outcome == "refused" or op.occurrence is None:
        return
    record = expected.enqueued.setdefault(op.occurrence, EnqueueRecord(op.invoked, op.parent, op.not_before))
    record.sure = record.sure or op.outcome == "ok"

"""What should have run, worked out from the definitions and the driver's calls alone.

Nothing of the product is read here. An instant is owed (`must`) where the job was enabled beyond doubt, and allowed
(`may`) where a call was under way, or got no answer, so that both a run and no run are right.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from evidence import Evidence, Job, DriverOperation
from schedule import instants

# How long after a call returned its effect may still be on the way through the product.
SLACK = 1_000_000


@dataclass(slots=True)
class TriggerRecord:
    """All calls that asked for one manual run with one key."""

    job: str
    key: str
    invoked: int  # The first call that was not refused.
    sure: bool = False  # One of them was answered `ok`.
    named: set[str] = field(default_factory=set)  # The occurrences that the answers told.


@dataclass(slots=True)
class ExpectedWork:
    must: dict[str, list[int]]
    may: dict[str, set[int]]
    defined: dict[str, int]  # When the job's definition was acknowledged.
    triggers: dict[tuple[str, str], TriggerRecord]
    named: dict[str, int]  # Occurrences that an answer to a trigger without a key told, and when it was invoked.
    nameless: dict[str, list[DriverOperation]]  # By job: triggers without a key whose answer told no occurrence.

    def allows(self, job: str, instant: int) -> bool:
        return instant in self.may.get(job, ()) or instant in self._must_set(job)

    _sets: dict[str, set[int]] = field(default_factory=dict)

    def _must_set(self, job: str) -> set[int]:
        known = self._sets.get(job)
        if known is None:
            known = self._sets[job] = set(self.must.get(job, ()))
        return known


def expect(evidence: Evidence) -> ExpectedWork:
    switches: dict[str, list[DriverOperation]] = {job.job: [] for job in evidence.jobs}
    expected = ExpectedWork({}, {}, {}, {}, {}, {})
    doubtful: dict[str, int] = {}
    for op in sorted(evidence.ops, key=lambda op: (op.invoked, op.returned)):
        if op.op == "trigger":
            _trigger(expected, op)
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
    """The spans in which a job was certainly enabled, and those in which it may have been.

    A call without an answer leaves the job in doubt until one with an answer; so do two calls under way at once that
    pull in different directions, for nobody can say which came last.
    """
    certain: list[tuple[int, int]] = []
    possible: list[tuple[int, int]] = []
    since: int | None = None
    perhaps: int | None = None
    last_on = last_off = -1
    for op in ops:
        if op.outcome == "refused":
            continue
        sure = op.outcome == "ok"
        if op.op in ("define", "enable"):
            perhaps = op.invoked if perhaps is None else perhaps
            if sure and since is None and op.invoked >= last_off:
                since = op.returned + SLACK
            last_on = max(last_on, op.returned) if sure else last_on
        else:
            if since is not None:
                # What was due a moment before may have been on its way to be fired.
                certain.append((since, op.invoked - SLACK))
                since = None
            if sure and perhaps is not None and op.invoked >= last_on:
                possible.append((perhaps, op.returned + SLACK))
                perhaps = None
            last_off = max(last_off, op.returned) if sure else last_off
    if since is not None:
        certain.append((since, cut))
    if perhaps is not None:
        possible.append((perhaps, read))
    return [(first, min(last, cut)) for first, last in certain if first < min(last, cut)], possible


def due(job: Job, first: int, last: int) -> list[int]:
    """The job's due instants in [first, last]."""
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
            expected.nameless.setdefault(op.job, []).append(op)
        else:
            expected.named.setdefault(op.occurrence, op.invoked)
        return
    trigger = expected.triggers.setdefault((op.job, op.key), TriggerRecord(op.job, op.key, op.invoked))
    trigger.sure = trigger.sure or op.outcome == "ok"
    if op.occurrence is not None:
        trigger.named.add(op.occurrence)

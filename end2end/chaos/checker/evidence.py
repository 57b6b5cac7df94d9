"""Reads the evidence folder of a scenario.

EVIDENCE.md specifies every file. Anything else is an error that names the file, the line and the member. A checker that
guesses at bad evidence would pass scenarios whose result is unknown.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, TypeVar

KINDS = ("cron", "once", "manual")
TYPES = ("quick", "flaky", "failing", "panics", "long", "crasher", "obedient")
OPS = ("define", "enable", "disable", "retire", "trigger", "cancel", "enqueue")
OUTCOMES = ("ok", "refused", "unknown")
ENDS = ("completed", "failed", "panicked", "cancelled")
TRIGGERS = ("schedule", "manual", "api", "retry", "enqueue")
FINAL = frozenset(("completed", "failed", "cancelled", "timed-out", "skipped"))
STATUSES = ("queued", "running", "unknown", *sorted(FINAL))

Item = TypeVar("Item")


class EvidenceError(Exception):
    """The evidence is invalid. The message names the file, the line and the member."""


@dataclass(slots=True)
class FaultLimits:
    """The limits for one kind of fault, of targets whose names begin with `target`."""

    fault: str
    target: str
    allowance_ms: int | None
    dispatch_allowance_ms: int | None
    recovery_ms: int


@dataclass(slots=True)
class RunInfo:
    scenario: str
    seed: int
    round: int
    began: int
    cut: int
    read: int
    slo_ms: int
    allowance_ms: int | None
    dispatch_allowance_ms: int | None
    recovery_ms: int
    early_ms: int
    heartbeat_timeout_ms: int
    orphan_ms: int | None
    tolerate: dict[str, str]
    fault_limits: list[FaultLimits] = field(default_factory=list)

    def limits_of(self, fault: FaultRecord) -> FaultLimits:
        """Returns the limits for a fault: the first of its own, or those of the run."""
        for limits in self.fault_limits:
            if limits.fault == fault.fault and fault.target.startswith(limits.target):
                return limits
        return FaultLimits(
            fault.fault, fault.target, self.allowance_ms, self.dispatch_allowance_ms, self.recovery_ms
        )


@dataclass(slots=True)
class Job:
    job: str
    name: str
    kind: str
    cron: str | None
    once: int | None
    type: str
    max_retries: int


@dataclass(slots=True)
class DriverOperation:
    op: str
    job: str | None
    occurrence: str | None
    key: str | None
    invoked: int
    returned: int
    outcome: str
    # Only for `enqueue`.
    parent: str | None = None
    not_before: int | None = None


@dataclass(slots=True)
class WitnessEvent:
    """One datagram received by the witness."""

    at: int
    mono: int
    what: str
    job: str
    occurrence: str
    attempt: int
    scheduled_for: int | None
    instance: str
    process: str
    pid: int
    outcome: str | None


@dataclass(slots=True)
class FaultRecord:
    fault: str
    target: str
    began: int
    ended: int | None
    detail: str


@dataclass(slots=True)
class StatusChange:
    status: str
    at: int
    attempt: int
    by: str | None
    note: str | None


@dataclass(slots=True)
class OccurrenceRecord:
    """An occurrence in the final reading. Only sql.jsonl has the last six members."""

    occurrence: str
    job: str
    scheduled_for: int | None
    trigger: str
    status: str
    attempt: int
    started_at: int | None
    ended_at: int | None
    note: str | None
    instance: str | None
    created_at: int = 0
    failures: int = 0
    duplicate_starts: int = 0
    trigger_key: str | None = None
    changes: list[StatusChange] = field(default_factory=list)
    parent: str | None = None


@dataclass(slots=True)
class Leftovers:
    queues: dict[str, int]
    outboxes: dict[str, int]
    unpublished: int
    waits: int
    open_transactions: int
    heard: dict[str, str]


@dataclass(slots=True)
class LogLineCount:
    process: str
    loop: str
    second: int
    lines: int


@dataclass
class Evidence:
    run: RunInfo
    jobs: list[Job]
    ops: list[DriverOperation]
    witness: list[WitnessEvent]
    nemesis: list[FaultRecord]
    sql: list[OccurrenceRecord]
    api: list[OccurrenceRecord]
    leftovers: Leftovers
    loglines: list[LogLineCount]
    # The cache of `history.joined`, so that twenty verdicts do not compute the same twenty times.
    history: Any = field(default=None, init=False, repr=False, compare=False)


class MemberReader:
    """One JSON object and its location in the files, which every error names."""

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise EvidenceError(f"{where}: expected an object, found {type(value).__name__}")
        self.value, self.where = value, where

    def bad(self, name: str, expected: str) -> EvidenceError:
        if name not in self.value:
            return EvidenceError(f"{self.where}: `{name}` is missing; expected {expected}")
        return EvidenceError(f"{self.where}: `{name}` is {json.dumps(self.value[name])[:80]}; expected {expected}")

    def text(self, name: str) -> str:
        value = self.value.get(name)
        if not isinstance(value, str):
            raise self.bad(name, "a string")
        return value

    def maybe_text(self, name: str) -> str | None:
        return None if self.value.get(name) is None else self.text(name)

    def number(self, name: str) -> int:
        value = self.value.get(name)
        if type(value) is not int:  # A bool is an int in Python, but not in the evidence.
            raise self.bad(name, "an integer")
        return value

    def maybe_number(self, name: str) -> int | None:
        return None if self.value.get(name) is None else self.number(name)

    def nullable(self, name: str) -> int | None:
        """Reads an integer or an explicit null. A missing member must not disable a verdict."""
        if name not in self.value:
            raise self.bad(name, "an integer or null")
        return self.maybe_number(name)

    def count(self, name: str) -> int:
        value = self.number(name)
        if value < 0:
            raise self.bad(name, "a non-negative number")
        return value

    def one_of(self, name: str, allowed: tuple[str, ...]) -> str:
        value = self.value.get(name)
        if value not in allowed:
            raise self.bad(name, "one of " + ", ".join(allowed))
        return value

    def counts(self, name: str) -> dict[str, int]:
        inner = MemberReader(self._object(name), f"{self.where}: `{name}`")
        return {key: inner.count(key) for key in inner.value}

    def texts(self, name: str) -> dict[str, str]:
        inner = MemberReader(self._object(name), f"{self.where}: `{name}`")
        return {key: inner.text(key) for key in inner.value}

    def _object(self, name: str) -> Any:
        if not isinstance(self.value.get(name), dict):
            raise self.bad(name, "an object")
        return self.value[name]


def load(folder: Path | str) -> Evidence:
    """Reads all nine files. A missing file is an error, because it is not the same as an empty one."""
    folder = Path(folder)
    if not folder.is_dir():
        raise EvidenceError(f"{folder}: the folder does not exist")
    run = _run(MemberReader(_parse(_text(folder / "run.json"), "run.json"), "run.json"))
    evidence = Evidence(
        run=run,
        jobs=_lines(folder / "jobs.jsonl", _job),
        ops=_lines(folder / "ops.jsonl", lambda line: _op(line, run.read)),
        witness=_lines(folder / "witness.jsonl", _seen),
        nemesis=_lines(folder / "nemesis.jsonl", _fault),
        sql=_lines(folder / "sql.jsonl", lambda line: _row(line, True)),
        api=_lines(folder / "api.jsonl", lambda line: _row(line, False)),
        leftovers=_leftovers(
            MemberReader(_parse(_text(folder / "leftovers.json"), "leftovers.json"), "leftovers.json")
        ),
        loglines=_lines(folder / "loglines.jsonl", _logline),
    )
    known: set[str] = set()
    for number, job in enumerate(evidence.jobs, 1):
        if job.job in known:
            raise EvidenceError(f"jobs.jsonl: `job` {job.job} is defined twice (entry {number})")
        known.add(job.job)
    for number, op in enumerate(evidence.ops, 1):
        if op.job is not None and op.job not in known:
            raise EvidenceError(f"ops.jsonl: `job` {op.job} is not in jobs.jsonl (entry {number})")
    return evidence


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise EvidenceError(f"{path.name}: cannot be read: {error}") from error


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise EvidenceError(f"{where}: not JSON: {error}") from error


def _lines(path: Path, read: Callable[[MemberReader], Item]) -> list[Item]:
    items = []
    for number, line in enumerate(_text(path).split("\n"), 1):
        if line.strip():
            where = f"{path.name}:{number}"
            items.append(read(MemberReader(_parse(line, where), where)))
    return items


def _run(m: MemberReader) -> RunInfo:
    run = RunInfo(
        m.text("scenario"), m.number("seed"), m.number("round"), m.number("began"), m.number("cut"), m.number("read"),
        m.count("slo_ms"), m.nullable("allowance_ms"), m.nullable("dispatch_allowance_ms"), m.count("recovery_ms"),
        m.count("early_ms"), m.count("heartbeat_timeout_ms"), m.nullable("orphan_ms"),
        m.texts("tolerate") if "tolerate" in m.value else {}, _fault_limits(m),
    )
    if not run.began <= run.cut <= run.read:
        raise EvidenceError("run.json: `began`, `cut` and `read` are not in this order")
    return run


def _fault_limits(m: MemberReader) -> list[FaultLimits]:
    values = m.value.get("fault_limits", [])
    if not isinstance(values, list):
        raise m.bad("fault_limits", "a list")
    found = []
    for number, value in enumerate(values, 1):
        one = MemberReader(value, f"{m.where}: `fault_limits` entry {number}")
        found.append(FaultLimits(
            one.text("fault"), one.text("target"), one.nullable("allowance_ms"), one.nullable("dispatch_allowance_ms"),
            one.count("recovery_ms"),
        ))
    return found


def _job(m: MemberReader) -> Job:
    from schedule import CronError, times_of_day

    kind = m.one_of("kind", KINDS)
    cron = m.text("cron") if kind == "cron" else None
    if cron is not None:
        try:
            times_of_day(cron)
        except CronError as error:
            raise EvidenceError(f"{m.where}: `cron` is {json.dumps(cron)}: {error}") from error
    return Job(
        m.text("job"), m.text("name"), kind, cron, m.number("once") if kind == "once" else None,
        m.one_of("type", TYPES), m.count("max_retries"),
    )


def _op(m: MemberReader, read: int) -> DriverOperation:
    op, outcome = m.one_of("op", OPS), m.one_of("outcome", OUTCOMES)
    # A call without a response may have no end; it is then under way until the final reading.
    returned = m.maybe_number("returned") if outcome == "unknown" else m.number("returned")
    made = DriverOperation(
        op, m.maybe_text("job") if op in ("cancel", "enqueue") else m.text("job"),
        m.text("occurrence") if op in ("cancel", "enqueue") else m.maybe_text("occurrence"),
        m.maybe_text("key"), m.number("invoked"), read if returned is None else returned, outcome,
    )
    if op == "enqueue":
        made.parent, made.not_before = m.maybe_text("parent"), m.nullable("not_before")
    if made.returned < made.invoked:
        raise m.bad("returned", "an instant not before `invoked`")
    return made


def _seen(m: MemberReader) -> WitnessEvent:
    what = m.one_of("what", ("start", "end"))
    return WitnessEvent(
        m.number("at"), m.number("mono"), what, m.text("job"), m.text("occurrence"), m.count("attempt"),
        m.maybe_number("scheduled_for"), m.text("instance"), m.text("process"), m.number("pid"),
        m.one_of("outcome", ENDS) if what == "end" else None,
    )


def _fault(m: MemberReader) -> FaultRecord:
    fault = FaultRecord(
        m.text("fault"), m.text("target"), m.number("began"), m.nullable("ended"), m.maybe_text("detail") or ""
    )
    if fault.ended is not None and fault.ended < fault.began:
        raise m.bad("ended", "an instant not before `began`")
    return fault


def _row(m: MemberReader, sql: bool) -> OccurrenceRecord:
    trigger = m.one_of("trigger", TRIGGERS)
    row = OccurrenceRecord(
        m.text("occurrence"), m.text("job"),
        m.number("scheduled_for") if trigger == "schedule" else m.maybe_number("scheduled_for"),
        trigger, m.one_of("status", STATUSES), m.count("attempt"), m.maybe_number("started_at"),
        m.maybe_number("ended_at"), m.maybe_text("note"), m.maybe_text("instance"),
    )
    if sql:
        row.created_at = m.number("created_at")
        row.failures, row.duplicate_starts = m.count("failures"), m.count("duplicate_starts")
        row.trigger_key, row.parent = m.maybe_text("trigger_key"), m.maybe_text("parent")
        changes = m.value.get("changes")
        if not isinstance(changes, list):
            raise m.bad("changes", "a list")
        for number, value in enumerate(changes, 1):
            change = MemberReader(value, f"{m.where}: `changes` entry {number}")
            row.changes.append(StatusChange(
                change.one_of("status", STATUSES), change.number("at"), change.count("attempt"),
                change.maybe_text("by"), change.maybe_text("note"),
            ))
    return row


def _leftovers(m: MemberReader) -> Leftovers:
    heard = m.texts("heard")
    for occurrence, status in heard.items():
        if status not in STATUSES:
            raise EvidenceError(f"{m.where}: `heard` of {occurrence} is {status}, which is not a status")
    return Leftovers(
        m.counts("queues"), m.counts("outboxes"), m.count("unpublished"), m.count("waits"),
        m.count("open_transactions"), heard,
    )


def _logline(m: MemberReader) -> LogLineCount:
    return LogLineCount(m.text("process"), m.text("loop"), m.number("second"), m.count("lines"))

"""Builds a synthetic history for the tests: the evidence of a scenario in which the product makes no mistake.

It is not a model of the product. It only has to be as varied as real evidence: every job type, kills and their
consequences, freezes, cut links, unavailable services, retries, cancellations, and calls without a response.
"""

from __future__ import annotations

import random
from dataclasses import replace

from evidence import StatusChange, Evidence, FaultRecord, Job, Leftovers, LogLineCount, DriverOperation, OccurrenceRecord, RunInfo, WitnessEvent
from schedule import SECOND, instants

MS = 1_000
BEGAN = 1_700_000_000 * SECOND + 500 * MS
WORKERS = ("worker-1", "worker-2", "worker-3")


class HistoryBuilder:
    """A builder of one history, drawn from a seed."""

    def __init__(self, seed: int, seconds: int, quick: int) -> None:
        self.rng = random.Random(seed)
        self.seconds = seconds
        self.cut = BEGAN + seconds * SECOND
        self.read = self.cut + 100 * SECOND
        self.jobs: list[Job] = []
        self.ops: list[DriverOperation] = []
        self.witness: list[WitnessEvent] = []
        self.rows: list[OccurrenceRecord] = []
        self.serial = 0
        self.crasher_pid = 9_000
        share = seconds * SECOND // 20

        def fault(kind: str, target: str, slot: float, length: int, detail: str = "") -> FaultRecord:
            first = BEGAN + int(slot * share) + 300 * MS
            return FaultRecord(kind, target, first, first + length * MS, detail)

        self.faults = [
            fault("kill", "worker-1", 3, 1500, "SIGKILL"),
            fault("freeze", "worker-2", 5.5, 13_000, "SIGSTOP"),
            fault("kill", "rabbitmq", 9, 2500),
            fault("cut", "worker-3>rabbitmq", 11, 12_000),
            fault("flush", "redis", 14, 0),
            fault("kill", "postgres", 15, 1500),
            fault("terminate", "worker-1", 16, 2000),
            fault("kill", "server-1", 17.5, 2000),
        ]
        self.define_all(quick)

    def ms(self, low: int, high: int) -> int:
        return self.rng.randint(low * MS, high * MS)

    def define(
        self, name: str, kind: str, type_: str, cron: str | None = None, once: int | None = None, retries: int = 0
    ) -> Job:
        job = Job(f"job-{len(self.jobs) + 1:02}", name, kind, cron, once, type_, retries)
        self.jobs.append(job)
        invoked = BEGAN + 5 * MS * len(self.jobs)
        self.ops.append(DriverOperation("define", job.job, None, None, invoked, invoked + 4 * MS, "ok"))
        return job

    def define_all(self, quick: int) -> None:
        for n in range(quick):
            self.define(f"each second {n}", "cron", "quick", "* * * * * *")
        for n in range(6):
            self.define(f"each five seconds {n}", "cron", "quick", "*/5 * * * * *")
        self.define("list of seconds", "cron", "quick", "3,17,31,45 * * * * *")
        self.define("flaky", "cron", "flaky", "*/5 * * * * *", retries=2)
        self.define("failing", "cron", "failing", "*/10 * * * * *", retries=2)
        self.define("panics", "cron", "panics", "*/15 * * * * *", retries=1)
        self.define("long", "cron", "long", "*/4 * * * * *", retries=1)
        self.define("crasher", "cron", "crasher", "*/30 * * * * *")
        self.define("obedient", "cron", "obedient", "*/10 * * * * *")
        for n in range(4):
            once = BEGAN + self.rng.randint(3, self.seconds - 2) * SECOND + self.ms(1, 900)
            self.define(f"once {n}", "once", "quick", once=once)
        for n in range(2):
            self.define(f"manual {n}", "manual", "quick")
        self.toggled = self.define("toggled", "cron", "quick", "* * * * * *")

    # The product.

    def when_available(self, instant: int, *targets: str) -> int:
        """Returns the instant, or a moment after the targets that are unavailable then are back."""
        for fault in self.faults:
            if fault.target in targets and fault.began - 20 * MS <= instant < fault.ended:
                return fault.ended + self.ms(50, 900)
        return instant

    def worker(self, instant: int) -> str:
        up = [
            w for w in WORKERS
            if not any(f.target.split(">")[0] == w and f.began - 20 * MS <= instant < f.ended for f in self.faults)
        ]
        return self.rng.choice(up)

    def pid(self, process: str, instant: int) -> int:
        kills = sum(f.target == process and f.fault in ("kill", "terminate") and f.ended <= instant for f in self.faults)
        return 1000 * int(process[-1]) + kills

    def seen(self, what: str, at: int, row: OccurrenceRecord, attempt: int, process: str, pid: int, outcome: str | None = None) -> None:
        self.witness.append(WitnessEvent(
            at, at - BEGAN + 7 * SECOND, what, row.job, row.occurrence, attempt, row.scheduled_for,
            f"{process}-{pid}", process, pid, outcome,
        ))

    def create(self, job: Job, due: int, trigger: str, key: str | None = None) -> OccurrenceRecord:
        self.serial += 1
        created = self.when_available(due + self.ms(5, 60), "postgres", "server-1")
        row = OccurrenceRecord(
            f"occ-{self.serial:06}", job.job, due if trigger == "schedule" else None, trigger, "queued", 1,
            None, None, None, None, created, 0, 0, key, [StatusChange("queued", created, 1, "server-2", None)],
        )
        self.rows.append(row)
        return row

    def run_to_end(self, row: OccurrenceRecord, job: Job, not_before: int | None = None) -> OccurrenceRecord:
        """Runs all attempts of an occurrence."""
        begin = max(row.created_at, not_before or 0) + self.ms(5, 80)
        attempt = 1
        while True:
            begin = self.when_available(begin, "rabbitmq")
            again = self.attempt(row, job, attempt, begin)
            if again is None:
                return row
            attempt += 1
            begin = again

    def note(self, row: OccurrenceRecord, status: str, at: int, attempt: int, note: str | None = None) -> None:
        row.changes.append(StatusChange(status, at, attempt, row.instance or "server-2", note))
        row.status, row.attempt = status, attempt
        if status not in ("queued", "running", "unknown"):
            row.ended_at = at

    def again(self, row: OccurrenceRecord, queued: int, attempt: int, note: str) -> int:
        self.note(row, "queued", queued, attempt + 1, note)
        return queued + self.ms(10, 80)

    def attempt(self, row: OccurrenceRecord, job: Job, attempt: int, begin: int) -> int | None:
        """Runs one attempt. Returns the start of the next one, or None if this was the last."""
        rng = self.rng
        process = "worker-9" if job.type == "crasher" else self.worker(begin)
        pid = self.crasher_pid if job.type == "crasher" else self.pid(process, begin)
        row.instance = f"{process}-{pid}"
        row.started_at = row.started_at or begin
        if attempt > 1 or rng.random() < 0.9 or job.type in ("long", "crasher", "obedient"):
            self.note(row, "running", begin - 2 * MS, attempt)
        self.seen("start", begin, row, attempt, process, pid)
        if job.type == "crasher":
            self.crasher_pid += 1
            if attempt == 3:
                self.note(row, "failed", begin + 11 * SECOND, attempt, "lost three times")
                return None
            return self.again(row, begin + 11 * SECOND, attempt, "lost")
        end, outcome = begin + self.ms(5, 300), "completed"
        if job.type == "long":
            end = begin + 20 * SECOND
        if job.type in ("failing", "panics") or (job.type == "flaky" and attempt == 1):
            outcome = "panicked" if job.type == "panics" else "failed"
        if job.type == "obedient":
            requested = begin + self.ms(500, 3000)
            outcome_of_call = rng.choice(("ok", "ok", "unknown"))
            self.ops.append(DriverOperation("cancel", job.job, row.occurrence, None, requested, requested + 5 * MS, outcome_of_call))
            end, outcome = requested + self.ms(10, 100), "cancelled"
        for fault in self.faults:
            if not begin < fault.began < end:
                continue
            if fault.target == process and fault.fault == "kill":
                return self.again(row, fault.began + self.ms(3000, 8000), attempt, "its worker was lost")
            if fault.target == process and fault.fault == "terminate" and job.type == "long":
                return self.again(row, fault.began + self.ms(20, 100), attempt, "handed back")
            if fault.fault in ("freeze", "cut") and fault.target.split(">")[0] == process and job.type == "long":
                # The product declares it lost after the heartbeat timeout. The first run continues, and ends by itself.
                if fault.fault == "freeze":
                    end += fault.ended - fault.began
                self.seen("end", end, row, attempt, process, pid, outcome)
                lost = fault.began + 10_500 * MS
                self.note(row, "unknown", lost, attempt, "no heartbeat")
                return self.again(row, lost + 50 * MS, attempt, "lost")
            if fault.fault == "freeze" and fault.target == process:
                end = fault.ended + self.ms(5, 50)
        self.seen("end", end, row, attempt, process, pid, outcome)
        reported = end + self.ms(5, 40)
        for fault in self.faults:
            if fault.target in (f"{process}>rabbitmq", "rabbitmq", "postgres") and fault.began <= reported < fault.ended:
                reported = fault.ended + self.ms(50, 400)
        if outcome in ("failed", "panicked"):
            row.failures += 1
            if attempt <= job.max_retries:
                return self.again(row, reported + self.ms(500, 1500), attempt, "retry")
            outcome = "failed"
        self.note(row, outcome, reported, attempt)
        return None

    # The driver.

    def schedule_all(self) -> None:
        off, on = BEGAN + self.seconds // 4 * SECOND, BEGAN + self.seconds // 2 * SECOND
        self.ops.append(DriverOperation("disable", self.toggled.job, None, None, off, off + 20 * MS, "ok"))
        self.ops.append(DriverOperation("enable", self.toggled.job, None, None, on, on + 20 * MS, "ok"))
        skip_once = True
        for job in self.jobs:
            retired = self.cut - 100 * MS
            self.ops.append(DriverOperation("retire", job.job, None, None, retired, retired + 10 * MS, "ok"))
            if job.kind == "cron":
                due = instants(job.cron or "", BEGAN + 400 * MS, retired)
            else:
                due = [job.once] if job.once is not None else []
            for instant in due:
                if job is self.toggled and off <= instant <= on:
                    continue
                row = self.create(job, instant, "schedule")
                if job.type == "obedient" and skip_once:
                    # One occurrence is cancelled before it starts.
                    skip_once = False
                    requested = row.created_at + 2 * MS
                    self.ops.append(DriverOperation("cancel", job.job, row.occurrence, None, requested, requested + 3 * MS, "ok"))
                    self.note(row, "cancelled", requested + MS, 1)
                else:
                    self.run_to_end(row, job)

    def trigger_all(self) -> None:
        manual_jobs = [job for job in self.jobs if job.kind == "manual"]
        for second in range(2, self.seconds - 2, 2):
            job = self.rng.choice(manual_jobs)
            requested = BEGAN + second * SECOND + self.ms(0, 900)
            key = f"key-{second:05}"
            draw = self.rng.random()
            if draw < 0.05:
                self.ops.append(DriverOperation("trigger", job.job, None, key, requested, requested + 9 * MS, "refused"))
                continue
            row = self.run_to_end(self.create(job, requested, "api", key), job)
            if draw < 0.15:
                self.ops.append(DriverOperation("trigger", job.job, None, key, requested, requested + 300 * MS, "unknown"))
                requested += 400 * MS
            if draw < 0.2:  # A call without a response may have had its effect, and need not be repeated.
                outcome = ("ok", row.occurrence) if draw < 0.15 else ("unknown", None)
            else:
                outcome = ("ok", row.occurrence)
            self.ops.append(DriverOperation("trigger", job.job, outcome[1], key, requested, requested + 70 * MS, outcome[0]))

    def enqueue_all(self) -> None:
        """Enqueues occurrences of a manual job: every second one is delayed, and two of four have a parent."""
        job = next(job for job in self.jobs if job.kind == "manual")
        parent = None
        for number, second in enumerate(range(3, self.seconds - 12, 2)):
            requested = BEGAN + second * SECOND + self.ms(0, 900)
            row = self.create(job, requested, "enqueue")
            row.parent = parent if number // 2 % 2 else None
            not_before = requested + 5 * SECOND if number % 2 else None
            calls = [(requested + 95 * MS, requested + 120 * MS, "ok")]
            if number % 3 == 0:
                calls.append((requested, requested + 90 * MS, "unknown"))
            for invoked, returned, outcome in calls:
                self.ops.append(DriverOperation(
                    "enqueue", None, row.occurrence, None, invoked, returned, outcome, row.parent, not_before,
                ))
            self.run_to_end(row, job, not_before)
            parent = row.occurrence

    def evidence(self) -> Evidence:
        self.schedule_all()
        self.trigger_all()
        self.enqueue_all()
        self.rng.shuffle(self.witness)
        run = RunInfo("synthetic", 1, 1, BEGAN, self.cut, self.read, 1000, 15_000, 10_000, 5000, 100, 10_000, 15_000, {})
        heard = {row.occurrence: row.status for row in self.rows[::3]}
        return Evidence(
            run, self.jobs, self.ops, self.witness, self.faults, self.rows,
            [replace(row, changes=[], created_at=0, failures=0, trigger_key=None, parent=None) for row in self.rows],
            Leftovers({"jobs": 0, "status": 0}, {"worker-1": 0, "worker-2": 0}, 0, 0, 0, heard),
            [LogLineCount("server-1", "publisher", BEGAN // SECOND + n, 5 if n < 30 else 9) for n in range(34)],
        )


def clean(seed: int = 1, seconds: int = 100, quick: int = 2) -> Evidence:
    """Returns a history without violations."""
    return HistoryBuilder(seed, seconds, quick).evidence()

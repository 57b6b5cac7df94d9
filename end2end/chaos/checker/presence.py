"""Verdicts on existence: everything owed exists, exactly once, and nothing else does."""

from __future__ import annotations

from evidence import Evidence
from history import MS, joined, when


def lost(evidence: Evidence) -> list[str]:
    """Finds owed work without an occurrence, and occurrences or attempts without a start."""
    h = joined(evidence)
    found = [
        f"Job {job} was due at {when(instant)} and has no occurrence."
        for job, owed in h.expected.must.items()
        for instant in owed
        if (job, instant) not in h.scheduled
    ]
    for (job, key), trigger in h.expected.triggers.items():
        if trigger.sure and (job, key) not in h.keyed:
            found.append(f"Job {job} was triggered with key {key} at {when(trigger.invoked)} and has no occurrence.")
        for named in trigger.named:
            if named not in h.rows:
                found.append(
                    f"The response to the trigger of job {job} with key {key} named occurrence {named},"
                    " which does not exist."
                )
    for named, invoked in h.expected.named.items():
        if named not in h.rows:
            found.append(
                f"The response to the trigger at {when(invoked)} named occurrence {named}, which does not exist."
            )
    for job, ops in h.expected.unnamed.items():
        owed_runs = sum(op.outcome == "ok" for op in ops)
        if owed_runs > len(_unnamed(evidence, job)):
            found.append(f"Job {job} was triggered {owed_runs} times without a key and has fewer such occurrences.")
    for occurrence, enqueued in h.expected.enqueued.items():
        if enqueued.sure and occurrence not in h.rows:
            found.append(f"Occurrence {occurrence}, enqueued at {when(enqueued.invoked)} and confirmed, does not exist.")
    for row in evidence.sql:
        attempts = h.attempts.get(row.occurrence)
        if attempts is None:
            if row.status not in ("skipped", "cancelled"):
                found.append(f"Occurrence {row.occurrence} of job {row.job} is {row.status} but was never started.")
        else:
            for attempt in attempts:
                if attempt.start is None or (attempt.end is not None and attempt.end.at < attempt.start.at):
                    end = attempt.end
                    found.append(
                        f"Attempt {attempt.number} of occurrence {row.occurrence} ended"
                        f" at {when(end.at) if end else 'an unknown instant'} without an earlier start."
                    )
        found.extend(_unstarted(evidence, row))
        found.extend(_missing_retries(evidence, row))
    return found


def _unstarted(evidence: Evidence, row) -> list[str]:
    """Finds attempts that the database records as running and that never started.

    A process that dies between the claim of a run and its first step leaves exactly this. Any fault within the time
    that a start may take is therefore an excuse.
    """
    h = joined(evidence)
    attempts = h.attempts.get(row.occurrence, ())
    found = []
    for change in row.changes:
        if change.status != "running":
            continue
        for attempt in attempts:
            if attempt.number == change.attempt:
                break
        else:
            if not h.run.began <= change.at <= h.run.read:
                continue  # The clock that stamped it was wrong, so nothing can be compared with it.
            slack = h.run.slo_ms * MS
            if not any(s.began <= change.at + slack and s.ended >= change.at - slack for s in h.all_fault_spans):
                found.append(
                    f"Attempt {change.attempt} of occurrence {row.occurrence} is recorded as running"
                    f" at {when(change.at)} but was never started."
                )
    return found


def _missing_retries(evidence: Evidence, row) -> list[str]:
    """Finds an occurrence that failed although it had retries left."""
    if row.status not in ("failed", "timed-out"):
        return []
    h = joined(evidence)
    job = h.jobs.get(row.job)
    if job is None or job.type not in ("flaky", "failing", "panics"):
        return []
    failed = _failed_attempts(h.attempts.get(row.occurrence, ()))
    owed = job.max_retries + 1
    if failed and failed < owed:
        return [
            f"Occurrence {row.occurrence} of the {job.type} job {row.job} is {row.status} after {failed} failed attempts,"
            f" {'although a retry is left' if job.type == 'flaky' else f'instead of {owed}'}."
        ]
    return []


def _failed_attempts(attempts) -> int:
    return sum(a.end is not None and a.end.outcome in ("failed", "panicked") for a in attempts)


def _unnamed(evidence: Evidence, job: str) -> list:
    """Returns the job's manual runs without a key whose id no response named."""
    named = joined(evidence).expected.named
    return [
        row for row in evidence.sql
        if row.job == job and row.trigger in ("manual", "api") and row.trigger_key is None and row.occurrence not in named
    ]


def dup_occurrence(evidence: Evidence) -> list[str]:
    """Finds more than one occurrence for one due time or one idempotency key."""
    h = joined(evidence)
    found = []
    for (job, instant), rows in h.scheduled.items():
        if len(rows) > 1:
            found.append(f"Job {job} has {len(rows)} occurrences for {when(instant)}: {_ids(rows)}.")
    for (job, key), rows in h.keyed.items():
        if len(rows) > 1:
            found.append(f"Job {job} has {len(rows)} occurrences for the key {key}: {_ids(rows)}.")
    for (job, key), trigger in h.expected.triggers.items():
        if len(trigger.named) > 1:
                found.append(f"Job {job} answered key {key} with several occurrences: {', '.join(sorted(trigger.named))}.")
    if len(h.rows) < len(evidence.sql):
        seen: set[str] = set()
        for row in evidence.sql:
            if row.occurrence in seen:
                found.append(f"Occurrence {row.occurrence} of job {row.job} is in the database reading twice.")
            seen.add(row.occurrence)
    return found


def _ids(rows) -> str:
    return ", ".join(row.occurrence for row in rows)


def dup_start(evidence: Evidence) -> list[str]:
    """Finds attempts that were started more than once. No fault excuses that."""
    found = []
    for occurrence, attempts in joined(evidence).attempts.items():
        for attempt in attempts:
            if attempt.again and attempt.start is not None:
                starts = ", ".join(f"{s.process} at {when(s.at)}" for s in (attempt.start, *attempt.again))
                found.append(f"Attempt {attempt.number} of occurrence {occurrence} was started more than once: {starts}.")
    return found


def phantom(evidence: Evidence) -> list[str]:
    """Finds occurrences, starts and attempts that nothing asked for."""
    h = joined(evidence)
    found = []
    unnamed: dict[str, int] = {job: len(ops) for job, ops in h.expected.unnamed.items()}
    for row in evidence.sql:
        if row.job not in h.jobs:
            found.append(f"Occurrence {row.occurrence} belongs to job {row.job}, which was never defined.")
        elif row.trigger == "schedule":
            if not h.expected.allows(row.job, row.scheduled_for):
                found.append(f"Job {row.job} was not due at {when(row.scheduled_for)}, but has occurrence {row.occurrence}.")
        elif row.trigger == "retry":
            found.append(f"Occurrence {row.occurrence} of job {row.job} is a manual retry, which was never requested.")
        elif row.trigger == "enqueue":
            if row.occurrence not in h.expected.enqueued:
                found.append(f"Occurrence {row.occurrence} of job {row.job} was never enqueued.")
        elif row.trigger_key is not None:
            if (row.job, row.trigger_key) not in h.expected.triggers:
                found.append(
                    f"Occurrence {row.occurrence} of job {row.job} has key {row.trigger_key}, which no trigger used."
                )
        elif row.occurrence not in h.expected.named:
            unnamed[row.job] = unnamed.get(row.job, 0) - 1
            if unnamed[row.job] < 0:
                found.append(f"Occurrence {row.occurrence} of job {row.job} was never triggered.")
    for occurrence, attempts in h.attempts.items():
        row = h.rows.get(occurrence)
        last = attempts[-1]
        seen = last.start or last.end
        if row is None:
            found.append(f"Occurrence {occurrence} was started on {seen.process} at {when(seen.at)} but does not exist.")
        else:
            if last.number > row.attempt:
                found.append(
                    f"Attempt {last.number} of occurrence {occurrence} was started at {when(seen.at)},"
                    f" but the database has only attempt {row.attempt}."
                )
            if len(attempts) > 1:
                found.extend(_excess_attempts(evidence, row, attempts))
    return found


def _excess_attempts(evidence: Evidence, row, attempts) -> list[str]:
    """Finds more failed attempts than the retries allow. Each attempt lost because of a fault allows one more."""
    h = joined(evidence)
    job = h.jobs.get(row.job)
    if job is None:
        return []
    allowed = job.max_retries + 1
    failed = _failed_attempts(attempts)
    if failed <= allowed:
        return []
    lost_to_faults = sum(
        a.start is not None and b.start is not None and h.loss_cause(a.start, b.start.at) is not None
        for a, b in zip(attempts, attempts[1:])
    )
    if failed <= allowed + lost_to_faults:
        return []
    return [f"Occurrence {row.occurrence} of job {row.job} failed in {failed} attempts; {allowed} are allowed."]


def wrong_parent(evidence: Evidence) -> list[str]:
    """Finds enqueued occurrences that are recorded with another parent than the program gave, or with none."""
    h = joined(evidence)
    found = []
    for occurrence, enqueued in h.expected.enqueued.items():
        row = h.rows.get(occurrence)
        if row is not None and row.parent != enqueued.parent:
            found.append(
                f"Occurrence {occurrence} was enqueued by {enqueued.parent or 'no occurrence'},"
                f" but its recorded parent is {row.parent or 'none'}."
            )
    return found


def mislabelled(evidence: Evidence) -> list[str]:
    """Finds starts that fit the schedule only if their own `scheduled_for` is trusted."""
    h = joined(evidence)
    early = h.run.early_ms * MS
    starts: dict[str, list[int]] = {job.job: [] for job in evidence.jobs}
    found = []
    for occurrence, attempts in h.attempts.items():
        row = h.rows.get(occurrence)
        for attempt in attempts:
            seen = attempt.start
            if seen is None:
                continue
            if row is not None and (
                seen.job != row.job or (row.trigger == "schedule" and seen.scheduled_for != row.scheduled_for)
            ):
                label = "nothing" if seen.scheduled_for is None else when(seen.scheduled_for)
                found.append(
                    f"Occurrence {occurrence} was started as job {seen.job} for {label},"
                    f" but is recorded as job {row.job} for {when(row.scheduled_for or 0)}."
                )
        first = attempts[0].start if len(attempts) == 1 else h.first_start(occurrence)
        if first is not None and first.job in starts:
            starts[first.job].append(first.at)
    # An occurrence that was skipped, or cancelled before it started, owes no start.
    no_start_owed: dict[str, list[int]] = {}
    for row in evidence.sql:
        if row.status in ("skipped", "cancelled") and row.trigger == "schedule" and h.first_start(row.occurrence) is None:
            no_start_owed.setdefault(row.job, []).append(row.scheduled_for)
    possible: dict[str, set[int]] = {}
    for job, instant in h.scheduled:
        if instant in h.expected.may.get(job, ()):
            possible.setdefault(job, set()).add(instant)
    for job in evidence.jobs:
        if job.kind == "manual":
            continue
        due = h.expected.must[job.job]
        extra, without = possible.get(job.job), no_start_owed.get(job.job)
        if extra or without:
            due = sorted((set(due) | (extra or set())) - set(without or ()))
        started = sorted(starts[job.job])
        if len(started) != len(due):
            found.append(f"Job {job.job} was due {len(due)} times and was started {len(started)} times.")
        for number, (start, instant) in enumerate(zip(started, due), 1):
            if start < instant - early:
                found.append(
                    f"Start {number} of job {job.job}, at {when(start)}, is before its due time number {number},"
                    f" {when(instant)}."
                )
                break
    return found

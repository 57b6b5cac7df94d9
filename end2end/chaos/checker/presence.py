"""Verdicts on what exists: everything owed, once, and nothing else."""

from __future__ import annotations

from evidence import Evidence
from history import MS, joined, when


def lost(evidence: Evidence) -> list[str]:
    """Something owed has no occurrence, or an occurrence (or an attempt of it) has no start."""
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
        for told in trigger.named:
            if told not in h.rows:
                found.append(f"The trigger of job {job} with key {key} was told occurrence {told}, which does not exist.")
    for told, invoked in h.expected.named.items():
        if told not in h.rows:
            found.append(f"The trigger at {when(invoked)} was told occurrence {told}, which does not exist.")
    for job, ops in h.expected.nameless.items():
        owed_runs = sum(op.outcome == "ok" for op in ops)
        if owed_runs > len(_unnamed(evidence, job)):
            found.append(f"Job {job} was triggered {owed_runs} times without a key, and has fewer occurrences.")
    for row in evidence.sql:
        attempts = h.attempts.get(row.occurrence)
        if attempts is None:
            if row.status not in ("skipped", "cancelled"):
                found.append(f"Occurrence {row.occurrence} of job {row.job} is {row.status} and was never started.")
        else:
            for attempt in attempts:
                if attempt.start is None or (attempt.end is not None and attempt.end.at < attempt.start.at):
                    end = attempt.end
                    found.append(
                        f"Attempt {attempt.number} of occurrence {row.occurrence} ended"
                        f" at {when(end.at) if end else 'an unknown instant'}, and no start was seen before."
                    )
        found.extend(_unseen(evidence, row))
        found.extend(_owed_attempts(evidence, row))
    return found


def _unseen(evidence: Evidence, row) -> list[str]:
    """Attempts that the product calls running and the witness never saw begin.

    A process that dies between the claim of a run and its first step leaves exactly this, so any fault within the time
    that a start may take is an excuse.
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
                continue  # By a clock that a fault has put wrong; nothing can be compared with it.
            slack = h.run.slo_ms * MS
            if not any(s.began <= change.at + slack and s.ended >= change.at - slack for s in h.all_spells):
                found.append(
                    f"Attempt {change.attempt} of occurrence {row.occurrence} is on record as running"
                    f" at {when(change.at)}, and was never started."
                )
    return found


def _owed_attempts(evidence: Evidence, row) -> list[str]:
    """A failed attempt is owed another one while retries are left."""
    if row.status not in ("failed", "timed-out"):
        return []
    h = joined(evidence)
    job = h.jobs.get(row.job)
    if job is None or job.type not in ("flaky", "failing", "panics"):
        return []
    failed = _failed(h.attempts.get(row.occurrence, ()))
    owed = job.max_retries + 1
    if failed and failed < owed:
        return [
            f"Occurrence {row.occurrence} of the {job.type} job {row.job} is {row.status} after {failed} failed attempts;"
            f" it is owed {'another one' if job.type == 'flaky' else owed}."
        ]
    return []


def _failed(attempts) -> int:
    return sum(a.end is not None and a.end.outcome in ("failed", "panicked") for a in attempts)


def _unnamed(evidence: Evidence, job: str) -> list:
    named = joined(evidence).expected.named
    return [
        row for row in evidence.sql
        if row.job == job and row.trigger in ("manual", "api") and row.trigger_key is None and row.occurrence not in named
    ]


def dup_occurrence(evidence: Evidence) -> list[str]:
    """More than one occurrence for one due instant or one key."""
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
            found.append(f"Job {job} answered the key {key} with several occurrences: {', '.join(sorted(trigger.named))}.")
    if len(h.rows) < len(evidence.sql):
        seen: set[str] = set()
        for row in evidence.sql:
            if row.occurrence in seen:
                found.append(f"Occurrence {row.occurrence} of job {row.job} was read twice.")
            seen.add(row.occurrence)
    return found


def _ids(rows) -> str:
    return ", ".join(row.occurrence for row in rows)


def dup_start(evidence: Evidence) -> list[str]:
    """One attempt started twice: no fault excuses that."""
    found = []
    for occurrence, attempts in joined(evidence).attempts.items():
        for attempt in attempts:
            if attempt.again and attempt.start is not None:
                places = ", ".join(f"{s.process} at {when(s.at)}" for s in (attempt.start, *attempt.again))
                found.append(f"Attempt {attempt.number} of occurrence {occurrence} was started more than once: {places}.")
    return found


def phantom(evidence: Evidence) -> list[str]:
    """An occurrence, a start, or one more attempt, that nothing asked for."""
    h = joined(evidence)
    found = []
    nameless: dict[str, int] = {job: len(ops) for job, ops in h.expected.nameless.items()}
    for row in evidence.sql:
        if row.job not in h.jobs:
            found.append(f"Occurrence {row.occurrence} belongs to job {row.job}, which nobody defined.")
        elif row.trigger == "schedule":
            if not h.expected.allows(row.job, row.scheduled_for):
                found.append(f"Job {row.job} was not due at {when(row.scheduled_for)}: occurrence {row.occurrence}.")
        elif row.trigger == "retry":
            found.append(f"Occurrence {row.occurrence} of job {row.job} is a retry, and nobody asked for one.")
        elif row.trigger_key is not None:
            if (row.job, row.trigger_key) not in h.expected.triggers:
                found.append(
                    f"Occurrence {row.occurrence} of job {row.job} has the key {row.trigger_key}, with which nobody triggered."
                )
        elif row.occurrence not in h.expected.named:
            nameless[row.job] = nameless.get(row.job, 0) - 1
            if nameless[row.job] < 0:
                found.append(f"Occurrence {row.occurrence} of job {row.job} was triggered by nobody.")
    for occurrence, attempts in h.attempts.items():
        row = h.rows.get(occurrence)
        last = attempts[-1]
        seen = last.start or last.end
        if row is None:
            found.append(f"Occurrence {occurrence} was started on {seen.process} at {when(seen.at)} and does not exist.")
        else:
            if last.number > row.attempt:
                found.append(
                    f"Attempt {last.number} of occurrence {occurrence} was started at {when(seen.at)};"
                    f" the product knows {row.attempt}."
                )
            if len(attempts) > 1:
                found.extend(_beyond(evidence, row, attempts))
    return found


def _beyond(evidence: Evidence, row, attempts) -> list[str]:
    """More failed attempts than retries grant. What a fault made the product take for lost was granted again."""
    h = joined(evidence)
    job = h.jobs.get(row.job)
    if job is None:
        return []
    granted = job.max_retries + 1
    failed = _failed(attempts)
    if failed <= granted:
        return []
    regranted = sum(
        a.start is not None and b.start is not None and h.silenced(a.start, b.start.at) is not None
        for a, b in zip(attempts, attempts[1:])
    )
    if failed <= granted + regranted:
        return []
    return [f"Occurrence {row.occurrence} of job {row.job} failed in {failed} attempts, and was granted {granted}."]


def mislabelled(evidence: Evidence) -> list[str]:
    """Starts that fit the schedule only if the labels they carry are believed."""
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
                    f" and is on record as job {row.job} for {when(row.scheduled_for or 0)}."
                )
        first = attempts[0].start if len(attempts) == 1 else h.first_start(occurrence)
        if first is not None and first.job in starts:
            starts[first.job].append(first.at)
    # An occurrence that was skipped, or cancelled before it began, owes no start.
    spared: dict[str, list[int]] = {}
    for row in evidence.sql:
        if row.status in ("skipped", "cancelled") and row.trigger == "schedule" and h.first_start(row.occurrence) is None:
            spared.setdefault(row.job, []).append(row.scheduled_for)
    perhaps: dict[str, set[int]] = {}
    for job, instant in h.scheduled:
        if instant in h.expected.may.get(job, ()):
            perhaps.setdefault(job, set()).add(instant)
    for job in evidence.jobs:
        if job.kind == "manual":
            continue
        due = h.expected.must[job.job]
        extra, without = perhaps.get(job.job), spared.get(job.job)
        if extra or without:
            due = sorted((set(due) | (extra or set())) - set(without or ()))
        began = sorted(starts[job.job])
        if len(began) != len(due):
            found.append(f"Job {job.job} was due {len(due)} times and was started {len(began)} times.")
        for number, (start, instant) in enumerate(zip(began, due), 1):
            if start < instant - early:
                found.append(
                    f"Start {number} of job {job.job}, at {when(start)}, is before its due instant number {number},"
                    f" {when(instant)}."
                )
                break
    return found

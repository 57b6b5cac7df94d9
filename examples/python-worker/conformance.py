#!/usr/bin/env python3
"""The worker of `worker.py` with the job types of docs/conformance.md, for the conformance kit.

Each run writes a line to the ledger as it begins, so that the kit sees a run that starts twice or is never reported.
"""

import dataclasses
import functools
import logging
import os
import sys
import time

import worker


def test_job(name, **options):
    """Registers a job type of the kit."""

    def add(function):
        @functools.wraps(function)
        def run(ctx, given):
            line = f"{ctx.occurrence_id} {ctx.attempt}\n".encode()
            ledger = os.open(os.environ["MILVAION_CONFORMANCE_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(ledger, line)
            finally:
                os.close(ledger)
            return function(ctx, given)

        return worker.job(name, **options)(run)

    return add


@dataclasses.dataclass
class Duration:
    ms: int


@dataclasses.dataclass
class Failures:
    times: int
    permanent: bool = False
    retryAfterMs: int = 0  # 0 stands for none.


@dataclasses.dataclass
class Snoozes:
    times: int
    ms: int


@dataclasses.dataclass
class Lines:
    lines: int


@dataclasses.dataclass
class Steps:
    steps: int


@test_job("conformance-echo")
def echo(ctx, given: dict):
    """Returns its input."""
    return given


@test_job("conformance-sleep", concurrency=4)
def sleep(ctx, given: Duration):
    """Sleeps, and ends early if it has to."""
    ctx.sleep(given.ms / 1000)
    return {"slept": given.ms}


@test_job("conformance-fail")
def fail(ctx, given: Failures):
    """Fails in its first attempts."""
    if ctx.attempt > given.times:
        return {"attempt": ctx.attempt}
    reason = f"failure {ctx.attempt}"
    if given.permanent:
        raise worker.Permanent(reason)
    if given.retryAfterMs:
        raise worker.Retry(reason, given.retryAfterMs / 1000)
    raise RuntimeError(reason)


@test_job("conformance-snooze")
def snooze(ctx, given: Snoozes):
    """Asks for a later attempt in its first attempts."""
    if ctx.attempt <= given.times:
        raise worker.Snooze("not yet", given.ms / 1000)
    return {"attempt": ctx.attempt}


@test_job("conformance-log")
def write_log(ctx, given: Lines):
    """Writes log lines."""
    for number in range(given.lines):
        ctx.info(f"line {number}")


@test_job("conformance-progress")
def progress(ctx, given: Steps):
    """Reports its progress, ten times a second."""
    for step in range(1, given.steps + 1):
        ctx.progress(100 * step // given.steps, f"step {step}")
        ctx.sleep(0.1)


@dataclasses.dataclass
class Checkpoint:
    value: dict


@test_job("conformance-checkpoint")
def checkpoint(ctx, given: Checkpoint):
    """Continues from the checkpoint of an earlier attempt, or sets one and fails."""
    if ctx.last_checkpoint is not None:
        return ctx.last_checkpoint
    ctx.checkpoint(given.value)
    raise RuntimeError("the next attempt continues")


@test_job("conformance-block")
def block(ctx, given: Duration):
    """Blocks its thread."""
    end = time.monotonic() + given.ms / 1000
    while time.monotonic() < end:
        pass


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("pika").setLevel(logging.ERROR)
    worker.Worker(worker.Settings(os.environ)).work()

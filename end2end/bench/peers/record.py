"""Shared by all Python peers: the clock, the references, the records and the pace.

A record is 16 bytes, two little-endian doubles in Unix seconds: the job's reference time and the time at which its
handler started. Each process appends to its own file in the folder BENCH_RECORDS (a tmpfs), so that recording costs one
small write and no lock. The reference time is part of the job, differs from every other job's, and so identifies the
job: two records with one reference are one job that ran twice.
"""

import os
import struct
import time

PACE_SECONDS = 0.01
# Jobs before the measured ones, so that connections, caches and compiled code are ready, as in a worker that has been
# running for a while. Their references are negative, which distinguishes their records.
WARM_UP_JOBS = 50
WORKER_READY_TIMEOUT_SECONDS = 60

_files = {}


def record(reference):
    """Records that the job with this reference starts now."""
    started = time.time()
    process = os.getpid()
    file = _files.get(process)
    if file is None:
        # One file per process, because some peers import this module and fork afterwards.
        path = os.path.join(os.environ["BENCH_RECORDS"], f"{process}.records")
        file = _files[process] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, struct.pack("<dd", reference, started))


def references(jobs):
    """Yields the current time, once per job, and never the same value twice."""
    last = 0.0
    for _ in range(jobs):
        # At today's date, doubles are a quarter of a microsecond apart, so this increment makes a different value.
        last = max(time.time(), last + 1e-6)
        yield last


def chunks(jobs, size):
    """Yields lists of references, `size` at a time, each created when it is requested."""
    while jobs > 0:
        yield list(references(min(size, jobs)))
        jobs -= size


def paced(jobs):
    """Yields the warm-up references and then `jobs` measured ones, each when it is time to send it, one every 10 ms.

    It blocks while it sleeps, in asynchronous producers too: they have nothing else to do meanwhile.
    """
    yield -1.0
    deadline = time.monotonic() + WORKER_READY_TIMEOUT_SECONDS
    while not _recorded():
        if time.monotonic() > deadline:
            raise SystemExit("no worker ran the first job: see the worker's output")
        time.sleep(0.01)

    begin = time.monotonic()
    for number in range(1, WARM_UP_JOBS + jobs):
        # The schedule is absolute, so that the time that sending takes does not slow the pace.
        time.sleep(max(0.0, begin + number * PACE_SECONDS - time.monotonic()))
        yield -1.0 - number if number < WARM_UP_JOBS else time.time()


def _recorded():
    folder = os.environ["BENCH_RECORDS"]
    return any(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder))

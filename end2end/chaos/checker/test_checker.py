"""Tests of the checker: it must pass a clean history, and find everything that is planted in one."""

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
import planted_presence
import planted_runs
import planted_truth
import verdicts
from evidence import TYPES, Evidence, EvidenceError, load
from history import MS, joined
from planted import PLANTED, TWINS
from schedule import SECOND, CronError, instants
from synthetic import BEGAN, clean
from timing import judged
from verdicts import VERDICTS, judge

# Whoever is imported here has put its histories into PLANTED and TWINS.
PLANTERS = (planted_presence, planted_runs, planted_truth)
CLEAN = pickle.dumps(clean())
SQL_ONLY = ("created_at", "failures", "duplicate_starts", "trigger_key", "changes")


def fresh() -> Evidence:
    """A copy of the clean history that may be changed; pickle copies faster than deepcopy."""
    return pickle.loads(CLEAN)


def found(evidence: Evidence) -> dict[str, list[str]]:
    return {name: findings for name, findings in judge(evidence).items() if findings}


def save(evidence: Evidence, folder: Path) -> None:
    """Writes a history as the files that a scenario leaves."""
    def lines(items, without=()):
        return "".join(json.dumps({k: v for k, v in asdict(i).items() if k not in without}) + "\n" for i in items)

    (folder / "run.json").write_text(json.dumps(asdict(evidence.run)))
    (folder / "leftovers.json").write_text(json.dumps(asdict(evidence.leftovers)))
    for name in ("jobs", "ops", "witness", "nemesis", "sql", "loglines"):
        (folder / f"{name}.jsonl").write_text(lines(getattr(evidence, name)))
    (folder / "api.jsonl").write_text(lines(evidence.api, SQL_ONLY))


class CleanHistories(unittest.TestCase):
    def test_a_clean_history_passes_whatever_the_seed(self):
        for seed in range(1, 13):
            with self.subTest(seed=seed):
                self.assertEqual(found(clean(seed)), {})

    def test_the_clean_history_has_something_of_everything(self):
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

    def test_the_order_of_the_lines_means_nothing(self):
        evidence = fresh()
        for items in (evidence.witness, evidence.sql, evidence.api, evidence.ops, evidence.nemesis, evidence.jobs):
            random.Random(5).shuffle(items)
        self.assertEqual(found(evidence), {})


class PlantedFaults(unittest.TestCase):
    """One test for each function of `planted`; they are added below."""


class NearMisses(unittest.TestCase):
    """The same for the twins."""


def _planted_test(verdict, plant):
    def test(self):
        evidence = fresh()
        plant(evidence)
        self.assertTrue(judge(evidence)[verdict], f"{verdict} found nothing")
    return test


def _twin_test(plant):
    def test(self):
        evidence = fresh()
        plant(evidence)
        self.assertEqual(found(evidence), {})
    return test


for _verdict, _plant in PLANTED:
    setattr(PlantedFaults, f"test_{_verdict}__{_plant.__name__}", _planted_test(_verdict, _plant))
for _verdict, _plant in TWINS:
    setattr(NearMisses, f"test_{_verdict}__{_plant.__name__}", _twin_test(_plant))


class TheTestsThemselves(unittest.TestCase):
    def test_every_verdict_has_two_planted_faults_and_a_twin(self):
        for name in VERDICTS:
            self.assertGreaterEqual(sum(verdict == name for verdict, _ in PLANTED), 2, name)
            self.assertGreaterEqual(sum(verdict == name for verdict, _ in TWINS), 1, name)
        names = [plant.__name__ for _, plant in PLANTED + TWINS]
        self.assertEqual(len(names), len(set(names)))

    def test_every_verdict_is_needed_by_some_planted_history(self):
        """Breaks the checker on purpose: with any one verdict blind, some test of a planted fault must fail."""
        for name in VERDICTS:
            names = [f"test_{verdict}__{plant.__name__}" for verdict, plant in PLANTED if verdict == name]
            with self.subTest(verdict=name), mock.patch.dict(verdicts.VERDICTS, {name: lambda evidence: []}):
                result = unittest.TestResult()
                unittest.TestSuite(map(PlantedFaults, names)).run(result)
                self.assertTrue(result.failures, f"nothing notices that {name} is blind")
                self.assertFalse(result.errors)


class Mutations(unittest.TestCase):
    """A thousand times one start of the witness is deleted, doubled or moved, and each time it must be noticed."""

    def mutate(self, evidence: Evidence, times: int, seed: int) -> None:
        dice = random.Random(seed)
        history = joined(replace(evidence))
        starts = [index for index, s in enumerate(evidence.witness) if s.what == "start"]
        unnoticed, done = [], {"delete": 0, "duplicate": 0, "shift": 0}
        while sum(done.values()) < times:
            index = dice.choice(starts)
            start = evidence.witness[index]
            row = history.rows[start.occurrence]
            witness = list(evidence.witness)
            what = dice.choice(("delete", "duplicate", "shift"))
            if what == "delete":
                if self.may_never_have_begun(history, start):
                    continue
                del witness[index]
            elif what == "duplicate":
                witness.append(replace(start, at=start.at + dice.randint(0, 5 * SECOND)))
            else:
                due = history.due(row)
                if start.attempt != 1 or not judged(history, row.job, due):
                    continue  # The time of a later attempt is owed to nobody, except after a kill.
                run = evidence.run
                allowed = (run.allowance_ms if history.is_excused(due) else run.slo_ms) * MS
                if dice.random() < 0.5:
                    at = max(start.at + run.slo_ms * MS, due + allowed) + dice.randint(1, SECOND)
                else:
                    at = min(start.at - run.slo_ms * MS, due - run.early_ms * MS) - dice.randint(1, SECOND)
                witness[index] = replace(start, at=at)
            done[what] += 1
            if not any(judge(replace(evidence, witness=witness)).values()):
                unnoticed.append((what, start))
        self.assertEqual(unnoticed, [])
        self.assertGreater(min(done.values()), times // 5)

    def may_never_have_begun(self, history, start) -> bool:
        """Whether the run ended with its process so soon that it may as well have been claimed and never begun.

        Nobody can tell the two apart when the datagram is gone; everything else must be noticed.
        """
        attempt = next(a for a in history.attempts[start.occurrence] if a.number == start.attempt)
        if attempt.end is not None:
            return False
        limit = history.run.slo_ms * MS
        return any(s.began <= start.at + limit and s.ended >= start.at - limit - 2 * MS for s in history.all_spells)

    def test_950_mutations_of_histories_of_a_thousand_events_are_all_noticed(self):
        for seed in range(1, 6):
            self.mutate(clean(seed), 190, seed)

    def test_50_mutations_of_a_history_of_ten_thousand_events_are_all_noticed(self):
        evidence = clean(3, 240, 18)
        self.assertGreater(len(evidence.witness), 10_000)
        self.mutate(evidence, 50, 9)

    def test_one_check_of_ten_thousand_events_is_quick(self):
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
    def test_instants_are_those_that_a_walk_over_the_seconds_finds(self):
        first = 1_709_164_790 * SECOND + 1  # Shortly before midnight, at the end of 28 February of a leap year.
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

    def test_both_edges_of_the_span_belong_to_it(self):
        self.assertEqual(instants("*/5 * * * * *", 5 * SECOND, 10 * SECOND), [5 * SECOND, 10 * SECOND])

    def test_what_is_outside_of_the_subset_is_refused(self):
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
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        save(evidence, Path(place.name))
        return Path(place.name)

    def test_a_clean_folder_passes_and_leaves_a_report_and_a_picture(self):
        folder = self.folder(fresh())
        code, out, _ = self.run_check(folder)
        self.assertEqual(code, 0, out)
        self.assertTrue(out.startswith("PASS made-up"))
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

    def test_the_folder_holds_the_same_history_as_memory(self):
        evidence = fresh()
        again = load(self.folder(evidence))
        self.assertEqual(again, evidence)

    def test_a_planted_fault_fails_the_folder_and_is_red_in_the_picture(self):
        evidence = fresh()
        next(plant for _, plant in PLANTED if plant.__name__ == "an_occurrence_that_is_not_there_is_lost")(evidence)
        folder = self.folder(evidence)
        code, out, _ = self.run_check(folder)
        self.assertEqual(code, 1)
        self.assertIn("FAIL made-up", out)
        self.assertIn("  lost: 1: Job ", out)
        self.assertIn('class="missed"', (folder / "timeline.svg").read_text())

    def test_what_is_tolerated_is_shown_and_does_not_fail(self):
        evidence = fresh()
        evidence.leftovers.waits = 3
        evidence.run.tolerate = {"leak": "nobody waits for it"}
        folder = self.folder(evidence)
        code, out, _ = self.run_check(folder)
        self.assertEqual(code, 0)
        self.assertIn("leak: 1 (tolerated: nobody waits for it)", out)
        self.assertEqual(json.loads((folder / "verdict.json").read_text())["tolerated"]["leak"]["count"], 1)

    def test_at_most_twenty_findings_are_shown_and_all_are_counted(self):
        evidence = fresh()
        evidence.api.clear()
        report = check.report(evidence)
        self.assertEqual(len(report["verdicts"]["api_sql_mismatch"]), 20)
        self.assertEqual(report["counts"]["api_sql_mismatch"], len(evidence.sql))

    def test_a_large_picture_stays_small(self):
        evidence = clean(3, 240, 18)
        from timeline import MARKS, timeline
        self.assertLessEqual(timeline(evidence).count('class="met"'), MARKS)

    def test_recovery_tells_when_dispatch_is_in_time_again_and_how_long_orphans_waited(self):
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


class BadEvidence(unittest.TestCase):
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
            made = {**json.loads(line), member: value}
            return json.dumps({k: v for k, v in made.items() if v is not ...}) + "\n" + rest
        return change

    def test_bad_members_are_named_with_file_and_line(self):
        for file, member, value in (
            ("witness.jsonl", "at", "soon"), ("witness.jsonl", "attempt", True), ("witness.jsonl", "pid", ...),
            ("jobs.jsonl", "cron", "1-5 * * * * *"), ("jobs.jsonl", "type", "lazy"), ("ops.jsonl", "returned", 0),
            ("ops.jsonl", "outcome", "fine"), ("sql.jsonl", "status", "done"), ("sql.jsonl", "changes", None),
            ("api.jsonl", "scheduled_for", ...), ("nemesis.jsonl", "ended", ...), ("loglines.jsonl", "lines", -1),
        ):
            message = self.broken(file, self.first_line(member, value))
            self.assertIn(f"{file}:1: `{member}`", message)

    def test_a_missing_file_is_named(self):
        self.assertIn("loglines.jsonl", self.broken("loglines.jsonl", lambda text: None))

    def test_a_last_line_that_is_cut_off_is_an_error(self):
        message = self.broken("witness.jsonl", lambda text: text[:-9])
        self.assertRegex(message, r"witness\.jsonl:\d+: not JSON")

    def test_a_limit_that_is_left_away_is_not_a_limit_of_null(self):
        self.assertIn("`orphan_ms` is missing", self.broken("run.json", self.first_line("orphan_ms", ...)))

    def test_tolerating_what_is_no_verdict_is_an_error(self):
        self.assertIn("latte", self.broken("run.json", self.first_line("tolerate", {"latte": "a slip"})))

    def test_a_call_for_a_job_that_nobody_defined_is_an_error(self):
        self.assertIn("job-99", self.broken("ops.jsonl", self.first_line("job", "job-99")))


if __name__ == "__main__":
    unittest.main()

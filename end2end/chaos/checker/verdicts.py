"""All verdicts by name, in the order of EVIDENCE.md."""

from __future__ import annotations

from typing import Callable

from evidence import Evidence, EvidenceError
from presence import dup_occurrence, dup_start, lost, mislabelled, phantom, wrong_parent
from remains import leak, storm
from runs import false_lost, overlap
from timing import early, late, orphan_late
from truth import api_sql_mismatch, failed_by_infra, lost_result, order_lie, state_regress, status_lie, stuck

Verdict = Callable[[Evidence], list[str]]

VERDICTS: dict[str, Verdict] = {
    verdict.__name__: verdict
    for verdict in (
        lost, dup_occurrence, dup_start, overlap, phantom, wrong_parent, mislabelled, early, late, stuck, status_lie,
        lost_result, state_regress, api_sql_mismatch, leak, order_lie, false_lost, failed_by_infra, orphan_late, storm,
    )
}


def judge(evidence: Evidence) -> dict[str, list[str]]:
    """Returns the findings of every verdict; a list is empty if nothing was found."""
    for name in evidence.run.tolerate:
        if name not in VERDICTS:
            raise EvidenceError(f"run.json: `tolerate` names {name}, which is not a verdict")
    return {name: verdict(evidence) for name, verdict in VERDICTS.items()}


def passed(evidence: Evidence, findings: dict[str, list[str]]) -> bool:
    """Returns true if every verdict with findings is tolerated."""
    return not any(found and name not in evidence.run.tolerate for name, found in findings.items())

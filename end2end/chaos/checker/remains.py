"""Verdicts on leftovers and on log volume."""

from __future__ import annotations

from datetime import datetime, timezone

from evidence import Evidence

# A storm is more than LINES in a second, in SECONDS_LOUD seconds or more of MINUTE.
LINES, SECONDS_LOUD, MINUTE = 5, 5, 60


def leak(evidence: Evidence) -> list[str]:
    """Finds leftovers that should be gone, because everything has ended."""
    left = evidence.leftovers
    found = [f"Queue {name} still holds {count} messages." for name, count in left.queues.items() if count]
    found += [f"The outbox of {name} still holds {count} rows." for name, count in left.outboxes.items() if count]
    for count, what in (
        (left.unpublished, "messages are not published"),
        (left.waits, "waits are not over"),
        (left.open_transactions, "transactions are open"),
    ):
        if count:
            found.append(f"{count} {what}.")
    return found


def storm(evidence: Evidence) -> list[str]:
    """Finds loops that log too much. There is one finding for each loop, with its worst minute."""
    lines: dict[tuple[str, str, int], int] = {}
    for line in evidence.loglines:
        second = (line.process, line.loop, line.second)
        lines[second] = lines.get(second, 0) + line.lines
    loud: dict[tuple[str, str], list[int]] = {}
    for (process, loop, second), count in lines.items():
        if count > LINES:
            loud.setdefault((process, loop), []).append(second)
    found = []
    for (process, loop), seconds in loud.items():
        seconds.sort()
        first = most = begin = 0
        for index, second in enumerate(seconds):
            while seconds[begin] <= second - MINUTE:
                begin += 1
            if index - begin + 1 > most:
                most, first = index - begin + 1, seconds[begin]
        if most >= SECONDS_LOUD:
            moment = datetime.fromtimestamp(first, timezone.utc)
            found.append(
                f"{process} logged more than {LINES} lines a second from {loop} in {most} seconds"
                f" of the minute from {moment:%H:%M:%S} ({first})."
            )
    return found

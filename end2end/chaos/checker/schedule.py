"""Due times of the six-field cron expressions that scenarios use.

This parser is written independently of the product's own, and is limited to the subset in EVIDENCE.md, so that a defect
in one is unlikely to be in the other. Seconds, minutes and hours contain numbers, `*`, `*/n` and lists. The other three
fields are `*`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import lru_cache

SECOND = 1_000_000
DAY = 86_400


class CronError(ValueError):
    """The expression is not in the supported subset."""


def _field(text: str, size: int) -> list[int]:
    chosen: set[int] = set()
    for part in text.split(","):
        if part == "*":
            chosen.update(range(size))
        elif part.startswith("*/") and part[2:].isdecimal() and int(part[2:]) > 0:
            chosen.update(range(0, size, int(part[2:])))
        elif part.isdecimal() and int(part) < size:
            chosen.add(int(part))
        else:
            raise CronError(f"`{part}` is not a number below {size}, `*` or `*/n`")
    return sorted(chosen)


@lru_cache(maxsize=None)
def times_of_day(cron: str) -> tuple[int, ...]:
    """Returns the seconds since midnight UTC at which the expression is due on every day."""
    fields = cron.split()
    if len(fields) != 6:
        raise CronError(f"expected six fields, found {len(fields)}")
    if fields[3:] != ["*", "*", "*"]:
        raise CronError("day, month and weekday must be `*`")
    seconds, minutes, hours = _field(fields[0], 60), _field(fields[1], 60), _field(fields[2], 24)
    return tuple(h * 3600 + m * 60 + s for h in hours for m in minutes for s in seconds)


def instants(cron: str, first: int, last: int) -> list[int]:
    """Returns all due times in [first, last], both included, in microseconds since 1970."""
    times = times_of_day(cron)
    low, high = -(-first // SECOND), last // SECOND  # Whole seconds, rounded into the span.
    found: list[int] = []
    for midnight in range(low - low % DAY, high + 1, DAY):
        begin, end = bisect_left(times, low - midnight), bisect_right(times, high - midnight)
        found.extend((midnight + time) * SECOND for time in times[begin:end])
    return found

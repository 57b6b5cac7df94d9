"""timeline.svg: what was due, what became of it, and what was done meanwhile, on one line of time."""

from __future__ import annotations

from html import escape

from evidence import FINAL, Evidence
from history import MS, History, FaultSpan, joined
from timing import judged

WIDTH, LEFT, RIGHT, LANE, TOP = 1400, 150, 20, 34, 34
BAND_ROW = 15
# A picture with more marks than this says no more, and opens slowly. What is red is always drawn first.
MARKS = 4_000

STYLE = """
svg { font: 12px system-ui, sans-serif; background: #fff; color: #1b1f24; }
text { fill: currentColor; } .small { font-size: 10px; } .line { stroke: #d0d5db; }
.met { fill: #1a8f4c; } .missed { fill: #d3222a; } .fault { fill: #d98a00; fill-opacity: .16; }
.edge { stroke: #b06f00; stroke-width: 1; }
@media (prefers-color-scheme: dark) {
  svg { background: #14171b; color: #e4e8ec; } .line { stroke: #3a4149; }
  .met { fill: #40c57c; } .missed { fill: #ff6b6b; } .fault { fill: #ffb938; fill-opacity: .18; } .edge { stroke: #ffb938; }
}
"""


def timeline(evidence: Evidence) -> str:
    """The picture as text. It needs no other file, and nothing of a browser but SVG."""
    h = joined(evidence)
    began = min([h.run.began, *(spell.began for spell in h.spells)])
    span = max(1, h.run.read - began)

    def x(instant: int) -> float:
        share = (min(max(instant, began), h.run.read) - began) / span
        return LEFT + (WIDTH - LEFT - RIGHT) * share

    lanes = sorted({_lane(h, job.job) for job in evidence.jobs})
    rows = _rows(h.spells, x)
    top = TOP + BAND_ROW * (1 + max(rows, default=-1)) + 8
    bottom = top + LANE * len(lanes)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 30}" role="img">',
        f"<style>{STYLE}</style>",
        f'<text x="8" y="18">{escape(h.run.scenario)}, seed {h.run.seed}, round {h.run.round}: '
        "due instants, green when met, red when lost or late</text>",
    ]
    for spell, row in zip(h.spells, rows):
        parts.append(_band(spell, row, x, bottom))
    for index, lane in enumerate(lanes):
        y = top + LANE * index
        parts.append(f'<line class="line" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y + LANE - 4}" y2="{y + LANE - 4}"/>')
        parts.append(f'<text x="8" y="{y + LANE - 12}">{escape(lane)}</text>')
    for instant, job, met in _chosen(_marks(h)):
        y = top + LANE * lanes.index(_lane(h, job))
        # Jobs of one lane are spread over its height by their id, so that those due at once can be told apart.
        y += 2 + sum(job.encode()) % (LANE - 14)
        size = 3 if met else 5
        parts.append(
            f'<rect class="{"met" if met else "missed"}" x="{x(instant) - size / 2:.1f}" y="{y}"'
            f' width="{size}" height="{size + 1}"/>'
        )
    step = next((s for s in (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200) if span / MS / 1000 / s <= 24), 14400)
    for second in range(0, span // (MS * 1000) + 1, step):
        place = x(began + second * MS * 1000)
        parts.append(f'<text class="small" x="{place:.1f}" y="{bottom + 16}" text-anchor="middle">{second} s</text>')
    parts.append("</svg>\n")
    return "\n".join(parts)


def _lane(h: History, job: str) -> str:
    known = h.jobs.get(job)
    return "undefined" if known is None else f"{known.kind} {known.type}"


def _rows(spells: list[FaultSpan], x) -> list[int]:
    """The row for each fault's label, such that labels do not cover each other; at most eight rows."""
    free: list[float] = []
    rows = []
    for spell in spells:
        place = x(spell.began)
        width = 6.2 * len(_label(spell)) + 8
        row = next((index for index, end in enumerate(free) if end <= place), None)
        if row is None:
            row = len(free) if len(free) < 8 else 7
            if row == len(free):
                free.append(0.0)
        free[row] = place + width
        rows.append(row)
    return rows


def _label(spell: FaultSpan) -> str:
    return f"{spell.fault.fault} {spell.fault.target}"


def _band(spell: FaultSpan, row: int, x, bottom: int) -> str:
    first, last = x(spell.began), x(spell.ended)
    y = TOP + BAND_ROW * row
    detail = f": {spell.fault.detail}" if spell.fault.detail else ""
    return (
        f'<g><title>{escape(_label(spell) + detail)}</title>'
        f'<rect class="fault" x="{first:.1f}" y="{y}" width="{max(last - first, 1):.1f}" height="{bottom - y}"/>'
        f'<line class="edge" x1="{first:.1f}" x2="{first:.1f}" y1="{y}" y2="{bottom}"/>'
        f'<text class="small" x="{first + 3:.1f}" y="{y + 11}">{escape(_label(spell))}</text></g>'
    )


def _marks(h: History) -> list[tuple[int, str, bool]]:
    """Each owed instant and each trigger, with its job and whether it was met in time."""
    marks = []
    for job, owed in h.expected.must.items():
        for instant in owed:
            rows = h.scheduled.get((job, instant), ())
            marks.append((instant, job, bool(rows) and _met(h, rows[0], instant)))
    for (job, key), trigger in h.expected.triggers.items():
        rows = h.keyed.get((job, key), ())
        if rows or trigger.sure:
            marks.append((trigger.invoked, job, bool(rows) and _met(h, rows[0], trigger.invoked)))
    return marks


def _met(h: History, row, due: int) -> bool:
    first = h.opening(row.occurrence)
    if first is None:
        return row.status in ("cancelled", "skipped")
    if row.status not in FINAL:
        return False
    allowed = h.run.allowance_ms if h.is_excused(due) else h.run.slo_ms
    return allowed is None or not judged(h, row.job, due) or first.at - due <= allowed * MS


def _chosen(marks: list[tuple[int, str, bool]]) -> list[tuple[int, str, bool]]:
    """At most MARKS of them: all red ones that fit, and an even choice of the green."""
    missed = [mark for mark in marks if not mark[2]][:MARKS]
    met = [mark for mark in marks if mark[2]]
    room = MARKS - len(missed)
    if len(met) > room:
        met = [met[index * len(met) // room] for index in range(room)] if room else []
    return met + missed  # The red ones last, so that nothing covers them.

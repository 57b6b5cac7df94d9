"""Draws timeline.svg: the due times, whether they were met, and the faults, on one time axis."""

from __future__ import annotations

from html import escape

from evidence import FINAL, Evidence
from history import MS, History, FaultSpan, joined
from timing import judged

WIDTH, LEFT, RIGHT, TRACK_HEIGHT, TOP = 1400, 150, 20, 34, 34
BAND_ROW = 15
# The maximum number of marks. More of them show nothing further, and the picture opens slowly.
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
    """Returns the picture as SVG text. It refers to no other file."""
    h = joined(evidence)
    began = min([h.run.began, *(fault_span.began for fault_span in h.fault_spans)])
    span = max(1, h.run.read - began)

    def x(instant: int) -> float:
        share = (min(max(instant, began), h.run.read) - began) / span
        return LEFT + (WIDTH - LEFT - RIGHT) * share

    tracks = sorted({_track(h, job.job) for job in evidence.jobs})
    rows = _rows(h.fault_spans, x)
    top = TOP + BAND_ROW * (1 + max(rows, default=-1)) + 8
    bottom = top + TRACK_HEIGHT * len(tracks)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 30}" role="img">',
        f"<style>{STYLE}</style>",
        f'<text x="8" y="18">{escape(h.run.scenario)}, seed {h.run.seed}, round {h.run.round}: '
        "due instants, green when met, red when lost or late</text>",
    ]
    for fault_span, row in zip(h.fault_spans, rows):
        parts.append(_band(fault_span, row, x, bottom))
    for index, track in enumerate(tracks):
        y = top + TRACK_HEIGHT * index
        base = y + TRACK_HEIGHT - 4
        parts.append(f'<line class="line" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{base}" y2="{base}"/>')
        parts.append(f'<text x="8" y="{y + TRACK_HEIGHT - 12}">{escape(track)}</text>')
    for instant, job, met in _chosen(_marks(h)):
        y = top + TRACK_HEIGHT * tracks.index(_track(h, job))
        # Jobs of one track are spread over its height by their id, so that marks of the same instant differ.
        y += 2 + sum(job.encode()) % (TRACK_HEIGHT - 14)
        size = 3 if met else 5
        parts.append(
            f'<rect class="{"met" if met else "missed"}" x="{x(instant) - size / 2:.1f}" y="{y}"'
            f' width="{size}" height="{size + 1}"/>'
        )
    step = next((s for s in (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200) if span / MS / 1000 / s <= 24), 14400)
    for second in range(0, span // (MS * 1000) + 1, step):
        position = x(began + second * MS * 1000)
        parts.append(f'<text class="small" x="{position:.1f}" y="{bottom + 16}" text-anchor="middle">{second} s</text>')
    parts.append("</svg>\n")
    return "\n".join(parts)


def _track(h: History, job: str) -> str:
    known = h.jobs.get(job)
    return "undefined" if known is None else f"{known.kind} {known.type}"


def _rows(fault_spans: list[FaultSpan], x) -> list[int]:
    """Returns the row of each fault's label, at most eight rows, so that labels do not cover each other."""
    free: list[float] = []
    rows = []
    for fault_span in fault_spans:
        left = x(fault_span.began)
        width = 6.2 * len(_label(fault_span)) + 8
        row = next((index for index, end in enumerate(free) if end <= left), None)
        if row is None:
            row = len(free) if len(free) < 8 else 7
            if row == len(free):
                free.append(0.0)
        free[row] = left + width
        rows.append(row)
    return rows


def _label(fault_span: FaultSpan) -> str:
    return f"{fault_span.fault.fault} {fault_span.fault.target}"


def _band(fault_span: FaultSpan, row: int, x, bottom: int) -> str:
    first, last = x(fault_span.began), x(fault_span.ended)
    y = TOP + BAND_ROW * row
    detail = f": {fault_span.fault.detail}" if fault_span.fault.detail else ""
    return (
        f'<g><title>{escape(_label(fault_span) + detail)}</title>'
        f'<rect class="fault" x="{first:.1f}" y="{y}" width="{max(last - first, 1):.1f}" height="{bottom - y}"/>'
        f'<line class="edge" x1="{first:.1f}" x2="{first:.1f}" y1="{y}" y2="{bottom}"/>'
        f'<text class="small" x="{first + 3:.1f}" y="{y + 11}">{escape(_label(fault_span))}</text></g>'
    )


def _marks(h: History) -> list[tuple[int, str, bool]]:
    """Returns each owed due time and each trigger, with its job and whether it was met in time."""
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
    first = h.lateness_start(row.occurrence)
    if first is None:
        return row.status in ("cancelled", "skipped")
    if row.status not in FINAL:
        return False
    allowed, _ = h.allowances(due)
    return allowed is None or not judged(h, row.job, due) or first.at - due <= allowed * MS


def _chosen(marks: list[tuple[int, str, bool]]) -> list[tuple[int, str, bool]]:
    """Returns at most MARKS marks: the missed ones first, then an even selection of the met ones."""
    missed = [mark for mark in marks if not mark[2]][:MARKS]
    met = [mark for mark in marks if mark[2]]
    left = MARKS - len(missed)
    if len(met) > left:
        met = [met[index * len(met) // left] for index in range(left)] if left else []
    return met + missed  # The missed ones last, so that nothing covers them.

"""Reports as one HTML page: everything is in the file, and a browser needs neither network nor scripts to show it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from spark_kafka_sink.diagnostics.text import format_bytes, format_count
from spark_kafka_sink.reports.figures import figures
from spark_kafka_sink.reports.number_format import NONE, milliseconds, ratio, short
from spark_kafka_sink.reports.text_report import cells_of
from spark_kafka_sink.reports.write_report import FAILED, WriteReport, get_query_id, merge_latencies

_WRITES_MAX = 200
"""Rows of the table of writes, the latest."""

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2430; --soft: #5c6675; --edge: #d9dee6; --paper: #f6f7f9; --card: #fff;
  --one: #1f6feb; --two: #8250df; --three: #bc4c00; --bad: #b42318; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8ecf2; --soft: #a3adbb; --edge: #353d4a; --paper: #12161c;
  --card: #1b2129; --one: #6cb0ff; --two: #c6a0ff; --three: #ff9f5a; --bad: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 3rem; max-width: 78rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif; }
h1 { margin: 0; font-size: 1.6rem; letter-spacing: -.01em; }
h2 { margin: 0 0 .5rem; font-size: 1rem; }
.about { margin: .15rem 0 1.5rem; color: var(--soft); overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(4, 1fr); gap: .75rem; margin: 0 0 .75rem; }
@media (max-width: 46rem) { .tiles { grid-template-columns: repeat(2, 1fr); } }
.tiles div, figure, section { background: var(--card); border: 1px solid var(--edge); border-radius: .6rem; }
.tiles div { padding: .7rem .9rem; }
.tiles dt { color: var(--soft); font-size: .82rem; }
.tiles dd { margin: 0; font-size: 1.35rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.tiles small { display: block; font-size: .78rem; font-weight: 400; color: var(--soft); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: .75rem; }
figure { margin: 0; padding: 1rem 1.1rem .9rem; overflow-x: auto; }
figcaption { margin-top: .4rem; color: var(--soft); font-size: .86rem; }
svg { display: block; width: 100%; min-width: 27.5rem; max-width: 40rem; height: auto;
  font: 12px system-ui, "DejaVu Sans", sans-serif; }
.tick { fill: var(--soft); font-variant-numeric: tabular-nums; }
.name { font-weight: 600; }
.grid { stroke: var(--edge); } .axis { stroke: var(--soft); }
.mark { stroke: var(--ink); stroke-dasharray: 2 3; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.s1.line { stroke: var(--one); } .s1.dot, .s1.name { fill: var(--one); }
.s2.line { stroke: var(--two); stroke-dasharray: 7 4; } .s2.dot, .s2.name { fill: var(--two); }
.s3.line { stroke: var(--three); stroke-dasharray: 2 3; } .s3.dot, .s3.name { fill: var(--three); }
.bar { fill: var(--one); } .cross { fill: var(--bad); font-weight: 700; }
section { margin-top: .75rem; padding: 1rem 1.1rem; overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .86rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; text-align: right; white-space: nowrap; border-top: 1px solid var(--edge); }
thead th { border: 0; color: var(--soft); font-weight: 500; }
.text { text-align: left; }
.failed { color: var(--bad); font-weight: 600; }
footer { margin-top: 1.25rem; color: var(--soft); font-size: .82rem; }
@media print { body { padding: 0; } figure, section { break-inside: avoid; } }
"""

_COLUMNS = (
    "started (UTC)", "rows", "bytes", "rows/s", "ratio", "p50", "p95", "p99", "retried", "dead letters", "blocked",
    "tasks", "status", "batch",
)  # fmt: skip
_TEXT = frozenset({"started (UTC)", "status", "batch"})


def render_page(reports: Sequence[WriteReport], source: str) -> str:
    """The page of these reports, which were read from `source`."""
    body = "".join(figure.html() for figure in figures(reports))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>What was written: {escape(source)}</title><style>{_STYLE}</style></head><body>"
        f'<h1>What was written to Kafka</h1><p class="about">{_about(reports, source)}</p>'
        f'{_tiles(reports)}<div class="figures">{body}</div>{_table(reports)}'
        "<footer>Only what brokers have acknowledged is counted. Times are UTC. Made by <code>pykafka report</code>."
        "</footer></body></html>\n"
    )


def _about(reports: Sequence[WriteReport], source: str) -> str:
    if not reports:
        return f"{escape(source)} has no reports."
    jobs = sorted({get_query_id(report) for report in reports})
    of = jobs[0] if len(jobs) == 1 else format_count(len(jobs), "job")
    first, last = reports[0].started_at, reports[-1].started_at
    form = "%H:%M:%S" if last.date() == first.date() else "%Y-%m-%d %H:%M:%S"
    until = f" to {last:{form}}" if len(reports) > 1 else ""
    return escape(f"{format_count(len(reports), 'write')} of {of}, {first:%Y-%m-%d %H:%M:%S}{until}; {source}")


def _tiles(reports: Sequence[WriteReport]) -> str:
    latencies = merge_latencies(reports)
    rows, letters = sum(one.rows for one in reports), sum(one.dead_letters for one in reports)
    wire, plain = sum(one.wire_bytes for one in reports), sum(one.uncompressed_bytes for one in reports)
    retries, failed = sum(one.retries for one in reports), sum(one.status == FAILED for one in reports)
    duration_ms = sum(one.duration_ms for one in reports)
    batches = sum(one.batches for one in reports)
    throttle_ms, paced_ms = sum(one.throttle_ms for one in reports), sum(one.paced_ms for one in reports)
    mean = f"; a batch {format_bytes(round(wire / batches))}" if batches else ""
    requests = sum(one.requests for one in reports)
    asked = f"; {short(1000 * requests / duration_ms)} requests/s" if requests and duration_ms else ""
    speed = short(1000 * rows / duration_ms) if duration_ms else NONE
    tiles = (
        ("rows", short(rows), f"{rows:,} acknowledged"),
        ("writes", f"{len(reports):,}", f"{failed:,} failed" if failed else "none failed"),
        ("rows per second", speed, f"in {milliseconds(duration_ms)} of writing{asked}"),
        (
            "bytes on the wire",
            format_bytes(wire),
            f"{ratio(wire / plain)} of {format_bytes(plain)}{mean}" if plain else "none",
        ),
        ("latency, 99 %", milliseconds(latencies.percentile(0.99)), f"half {milliseconds(latencies.percentile(0.5))}"),
        ("retried", short(retries), f"of {rows:,} records"),
        ("dead letters", short(letters), f"{letters:,} refused" if letters else "no row was refused"),
        (
            "blocked on memory",
            milliseconds(sum(one.blocked_ms for one in reports)),
            f"throttled by quotas {milliseconds(throttle_ms)}, by maxBytesPerSecond {milliseconds(paced_ms)}; "
            "all tasks added up",
        ),
    )
    shown = "".join(
        f"<div><dt>{name}</dt><dd>{escape(value)}<small>{escape(more)}</small></dd></div>"
        for name, value, more in tiles
    )
    return f'<dl class="tiles">{shown}</dl>'


def _table(reports: Sequence[WriteReport]) -> str:
    head = "".join(f'<th scope="col"{_class(name)}>{name}</th>' for name in _COLUMNS)
    several = len({get_query_id(report) for report in reports}) > 1
    rows = "".join(f"<tr>{_row(report, several)}</tr>" for report in reversed(reports[-_WRITES_MAX:]))
    cut = f", the latest {_WRITES_MAX} of {len(reports):,}" if len(reports) > _WRITES_MAX else ""
    return f"<section><h2>Writes{cut}</h2><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></section>"


def _row(report: WriteReport, several: bool) -> str:
    """`several`: of more than one job, so each row names its own."""
    cells = (
        *cells_of(report),
        f"{report.tasks:,}",
        f"✗ {report.status}" if report.status == FAILED else report.status,
        report.batch if several else report.batch.partition("/")[2],
    )
    return "".join(
        f"<td{_class(name, failed=name == 'status' and report.status == FAILED)}>{escape(cell)}</td>"
        for name, cell in zip(_COLUMNS, cells, strict=True)
    )


def _class(name: str, *, failed: bool = False) -> str:
    classes = ["text"] * (name in _TEXT) + ["failed"] * failed
    return f' class="{" ".join(classes)}"' if classes else ""

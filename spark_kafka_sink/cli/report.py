"""`pykafka report`: what a job has written, as a table or as a page with charts."""

from __future__ import annotations

import argparse
from collections import deque
from pathlib import Path

from spark_kafka_sink.errors import ConfigurationError

HELP = "show what jobs with the option reportPath have written"
WRITES_MAX = 500


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("path", metavar="PATH", help="what reportPath was: a file, a folder, or a URI such as s3a://bucket/reports")
    add("--html", type=Path, metavar="OUT", help="write a page with charts to this file; it needs no network")
    add("--last", type=int, default=WRITES_MAX, metavar="N", help="show the latest N writes (default: %(default)s)")
    add("--job", metavar="ID", help="show only this query or application")


def run(chosen: argparse.Namespace) -> int:
    from spark_kafka_sink.reports import text_report
    from spark_kafka_sink.reports.html_page import render_page
    from spark_kafka_sink.reports.store import read_reports
    from spark_kafka_sink.reports.write_report import get_query_id

    if chosen.last < 1:
        raise ConfigurationError("--last is the number of writes, at least 1")
    if chosen.job is None:
        reports = read_reports(chosen.path, chosen.last)
    else:
        of_job = (report for report in read_reports(chosen.path) if get_query_id(report) == chosen.job)
        reports = list(deque(of_job, maxlen=chosen.last))
    for line in text_report.render_lines(reports):
        print(line)
    if chosen.html is not None:
        try:
            chosen.html.write_text(render_page(reports, chosen.path), encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"--html: {chosen.html} cannot be written: {error.strerror}") from error
        print(f"\nwrote {chosen.html}")
    return 0

"""`pykafka report`: show the write reports of jobs as a table or as a page with charts."""

from __future__ import annotations

import argparse
from collections import deque
from pathlib import Path

from spark_kafka_sink.errors import ConfigurationError

COMMAND_HELP = "show the write reports of jobs that set the option reportPath"
DEFAULT_REPORT_COUNT = 500


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "report_path",
        metavar="PATH",
        help="the value of reportPath: a file, a directory or a URI such as s3a://bucket/reports",
    )
    parser.add_argument(
        "--html", type=Path, metavar="OUT", help="write a page with charts to this file; viewing it needs no network"
    )
    parser.add_argument(
        "--last",
        type=int,
        default=DEFAULT_REPORT_COUNT,
        metavar="N",
        help="show the latest N writes (default: %(default)s)",
    )
    parser.add_argument("--job", metavar="ID", help="show only the writes of this query or application")


def run(args: argparse.Namespace) -> int:
    from spark_kafka_sink.reports import text_report
    from spark_kafka_sink.reports.html_page import render_page
    from spark_kafka_sink.reports.store import read_reports, strip_query
    from spark_kafka_sink.reports.write_report import get_query_id

    if args.last < 1:
        raise ConfigurationError(f"--last must be at least 1, not {args.last}")
    if args.job is None:
        reports = read_reports(args.report_path, max_reports=args.last)
    else:
        job_reports = (report for report in read_reports(args.report_path) if get_query_id(report) == args.job)
        # --last counts only the job's reports, so all reports are read.
        reports = list(deque(job_reports, maxlen=args.last))
    for line in text_report.render_report_lines(reports):
        print(line)
    if args.html is not None:
        try:
            args.html.write_text(render_page(reports, strip_query(args.report_path)), encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"--html: {args.html} cannot be written: {error.strerror}") from error
        print(f"\nWrote {args.html}.")
    return 0

"""`pykafka doctor`: diagnose why writes to Kafka fail, with the driver's own checks and additional ones."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.cli.client_options import (
    BOOTSTRAP_SERVERS_OPTION,
    add_connection_arguments,
    parse_client_options,
    parse_option_arguments,
    parse_properties,
    read_text_file,
    silence_client_log,
)
from spark_kafka_sink.errors import ConfigurationError

if TYPE_CHECKING:
    from spark_kafka_sink.preflight import CheckResult, Target
    from spark_kafka_sink.producer.config import ProducerConfig

COMMAND_HELP = "check whether this machine can write to a cluster, and suggest remedies"

MARKS = {"passed": "✔", "warning": "!", "failed": "✘", "skipped": "-"}
"""The mark shown before a check's name, by the value of the check's outcome."""
PLAIN_MARKS = {**MARKS, "passed": "ok", "failed": "X"}
"""Marks for terminals that cannot show the characters in MARKS."""

ROWS_BY_TASK = "rows by task"
_SKEW_REMEDY = (
    "The write is as slow as its task with the most rows. If the option distribution is set and most rows share one "
    "partition or key, use a more selective key or remove the option. Otherwise, use more tasks: df.repartition(n)."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_connection_arguments(parser)
    parser.add_argument(
        "--topic", dest="topics", action="append", default=[], metavar="NAME", help="check this topic; may be repeated"
    )
    parser.add_argument(
        "--transactional-id",
        metavar="ID",
        help="check the permission to use this transactional id; does not begin a transaction",
    )
    parser.add_argument(
        "--spark-conf",
        type=Path,
        metavar="FILE",
        help="file of DataFrame writer options (kafka.bootstrap.servers, topic, ...), as JSON or as NAME=VALUE lines",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


class _PlannedWrite(NamedTuple):
    """The write to check, as the options describe it."""

    config: ProducerConfig
    target: Target
    report_path: str | None = None
    """The path of the write reports; None if the options set none. Only the options of a Spark job can set it."""


def run(args: argparse.Namespace) -> int:
    from spark_kafka_sink.preflight import INTERACTIVE_TIMEOUTS, Outcome, preflight

    load_write = _load_producer_write if args.spark_conf is None else _load_spark_write
    config, target, report_path = load_write(args)
    target = replace(
        target,
        topics=tuple(dict.fromkeys([*args.topics, *target.topics])),
        connect_all_brokers=True,
        allow_auto_topic_creation=False,
        # An id from the command line replaces the ids that the options define.
        transactional_id=args.transactional_id or target.transactional_id,
        transactional_id_prefix="" if args.transactional_id else target.transactional_id_prefix,
        max_record_bytes=config.max_request_size,
    )
    with silence_client_log():
        checks = preflight(config.client_config(), target, timeouts=INTERACTIVE_TIMEOUTS, thorough=True)
    if args.spark_conf is not None:
        checks = [_add_kafka_prefix(check) for check in checks]
    if report_path is not None:
        checks.append(_check_task_skew(report_path))
    failed_count = sum(check.outcome is Outcome.FAILED for check in checks)
    if args.json:
        document = {"ok": not failed_count, "checks": [_check_to_json(check) for check in checks]}
        print(json.dumps(document, ensure_ascii=False))
    else:
        _print_checks(checks, failed_count)
    return 1 if failed_count else 0


def _load_producer_write(args: argparse.Namespace) -> _PlannedWrite:
    """Return the write of a producer whose options are on the command line and in the file of `--command-config`."""
    from spark_kafka_sink.preflight import Target
    from spark_kafka_sink.producer.config import ProducerConfig

    config = ProducerConfig.parse(parse_client_options(args))
    target = Target(idempotent=config.enable_idempotence, transactional_id=config.transactional_id)
    return _PlannedWrite(config, target)


def _load_spark_write(args: argparse.Namespace) -> _PlannedWrite:
    """Return the write of the Spark job that the file in `--spark-conf` describes.

    `-X`, whose names may have the prefix `kafka.`, and `--bootstrap-server` override options in the file.
    """
    if args.command_config is not None:
        raise ConfigurationError("--command-config and --spark-conf cannot be used together")
    try:
        from spark_kafka_sink.spark.checks import build_write_target
        from spark_kafka_sink.spark.constants import CONCURRENT_TASKS_OPTION
        from spark_kafka_sink.spark.options.names import KAFKA_PREFIX
        from spark_kafka_sink.spark.options.parse import parse_options
    except ImportError as error:
        raise ConfigurationError(f"--spark-conf: {error}") from error
    options = dict(_parse_spark_conf(read_text_file(args.spark_conf, "--spark-conf")))
    for name, value in parse_option_arguments(args.options).items():
        options[KAFKA_PREFIX + name.removeprefix(KAFKA_PREFIX)] = value
    if args.bootstrap_server:
        options[KAFKA_PREFIX + BOOTSTRAP_SERVERS_OPTION] = args.bootstrap_server
    # In a job, the methods that `register` installs set the number of concurrent tasks. Set any value here, because
    # some options are rejected without one.
    sink_options = parse_options({**options, CONCURRENT_TASKS_OPTION: "1"})
    return _PlannedWrite(sink_options.producer_config(), build_write_target(sink_options), sink_options.report_path)


def _add_kafka_prefix(check: CheckResult) -> CheckResult:
    """Add the prefix `kafka.` to the option names in a check, because the user's file has it."""
    from spark_kafka_sink.spark.options.names import add_kafka_prefix

    return replace(check, detail=add_kafka_prefix(check.detail), remedy=add_kafka_prefix(check.remedy))


def _check_task_skew(report_path: str) -> CheckResult:
    """Check whether the rows of the latest reported write were evenly distributed over its tasks.

    The check is skipped if the reports cannot be read or list no tasks.
    """
    # Other commands and --help do not need these modules, so they are not imported at the top.
    from spark_kafka_sink.preflight import CheckResult, Outcome
    from spark_kafka_sink.reports.skew import (
        SKEW_THRESHOLD,
        compute_mean_task_rows,
        compute_skew,
        count_task_rows,
        describe_largest_partition,
        describe_task_skew,
    )
    from spark_kafka_sink.reports.store import read_reports

    try:
        latest_report = next(iter(read_reports(report_path, max_reports=1)), None)
    except ConfigurationError as error:
        return CheckResult(ROWS_BY_TASK, Outcome.SKIPPED, f"no report to check: {error}")
    if latest_report is None or not latest_report.task_list:
        return CheckResult(ROWS_BY_TASK, Outcome.SKIPPED, "there is no report, or the latest one lists no tasks")
    detail = f"latest write: {describe_task_skew(latest_report)} {describe_largest_partition(latest_report)}".rstrip()
    skew = compute_skew(count_task_rows(latest_report).values(), compute_mean_task_rows(latest_report))
    if skew < SKEW_THRESHOLD:
        return CheckResult(ROWS_BY_TASK, Outcome.PASSED, detail)
    return CheckResult(ROWS_BY_TASK, Outcome.WARNING, detail, _SKEW_REMEDY)


def _parse_spark_conf(text: str) -> Mapping[str, str]:
    """Parse options from a JSON object or from NAME=VALUE lines. Raise ConfigurationError if the JSON is invalid.

    An option whose value is null is not set, like an option of a Spark job whose value is None.
    """
    if not text.lstrip().startswith("{"):
        return parse_properties(text.splitlines(), "--spark-conf")
    try:
        options = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"--spark-conf: the file is not valid JSON: {error}") from None
    return {str(name): _to_spark_string(value) for name, value in options.items() if value is not None}


def _to_spark_string(value: object) -> str:
    """Convert a value to the string that Spark would pass to a data source, for example True to `true`."""
    return value if isinstance(value, str) else json.dumps(value)


def _check_to_json(check: CheckResult) -> dict[str, str]:
    return {"name": check.name, "outcome": check.outcome.value, "detail": check.detail, "remedy": check.remedy}


def _print_checks(checks: Sequence[CheckResult], failed_count: int) -> None:
    marks = MARKS if _is_encodable("".join(MARKS.values())) else PLAIN_MARKS
    for check in checks:
        print(f"{marks[check.outcome.value]:2} {check.name}: {check.detail}")
        if check.remedy:
            print(f"     {check.remedy}")
    print(f"\n{failed_count} of {len(checks)} checks failed." if failed_count else "\nNo checks failed.")


def _is_encodable(text: str) -> bool:
    """Return whether the encoding of stdout can represent all characters of `text`."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True

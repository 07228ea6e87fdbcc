"""`pykafka doctor`: why can Kafka not be written to from here? The checks of the driver, and a few more."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from spark_kafka_sink.cli.client_options import (
    SERVERS,
    add_connection_arguments,
    given_options,
    properties,
    quiet,
    text_of,
)
from spark_kafka_sink.errors import ConfigurationError

if TYPE_CHECKING:
    from spark_kafka_sink.preflight import Check, Target
    from spark_kafka_sink.producer.config import ProducerConfig

HELP = "check whether this machine can write to a cluster, and say what to do if not"

MARKS = {"passed": "✔", "warning": "!", "failed": "✘", "skipped": "-"}
PLAIN_MARKS = {**MARKS, "passed": "ok", "failed": "X"}
"""For terminals that cannot show the others."""

ROWS_OF_TASKS = "rows by task"
SPREAD = (
    "The write is as slow as its fullest task. Where one partition or key has most rows (option distribution), make "
    "its key finer, or write without distribution; else let more tasks write: df.repartition(n)."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_connection_arguments(parser)
    add = parser.add_argument
    add("--topic", action="append", default=[], metavar="NAME", help="check this topic; may be repeated")
    add("--transactional-id", metavar="ID", help="try the right to write in transactions of this id; none is begun")
    add(
        "--spark-conf",
        type=Path,
        metavar="FILE",
        help="options as a DataFrame's writer gets them (kafka.bootstrap.servers, topic...): JSON, or lines NAME=VALUE",
    )
    add("--json", action="store_true", help="print one JSON document")


def run(chosen: argparse.Namespace) -> int:
    from spark_kafka_sink.preflight import INTERACTIVE_TIMEOUTS, Outcome, preflight

    config, target, report_path = _of_options(chosen) if chosen.spark_conf is None else _of_spark(chosen)
    target = replace(
        target,
        topics=tuple(dict.fromkeys([*chosen.topic, *target.topics])),
        connect_all_brokers=True,
        allow_auto_topic_creation=False,
        transactional_id=chosen.transactional_id or target.transactional_id,
        transactional_id_prefix="" if chosen.transactional_id else target.transactional_id_prefix,
        max_record_bytes=config.max_request_size,
    )
    with quiet():
        checks = preflight(config.client_config(), target, timeouts=INTERACTIVE_TIMEOUTS, thorough=True)
    if report_path is not None:
        checks.append(_rows_of_tasks(report_path))
    failed = sum(check.outcome is Outcome.FAILED for check in checks)
    if chosen.json:
        print(json.dumps({"ok": not failed, "checks": [_as_json(check) for check in checks]}, ensure_ascii=False))
    else:
        _print(checks, failed)
    return 1 if failed else 0


def _of_options(chosen: argparse.Namespace) -> tuple[ProducerConfig, Target, str | None]:
    from spark_kafka_sink.preflight import Target
    from spark_kafka_sink.producer.config import ProducerConfig

    config = ProducerConfig.parse(given_options(chosen))
    return config, Target(idempotent=config.enable_idempotence, transactional_id=config.transactional_id), None


def _of_spark(chosen: argparse.Namespace) -> tuple[ProducerConfig, Target, str | None]:
    """What the driver looks at for a write with these options. `-X` and `--bootstrap-server` win."""
    if chosen.command_config is not None:
        raise ConfigurationError("give --command-config or --spark-conf, not both")
    try:
        from spark_kafka_sink.spark.checks import build_write_target
        from spark_kafka_sink.spark.constants import CONCURRENT_TASKS_OPTION
        from spark_kafka_sink.spark.options.parse import parse_options
    except ImportError as error:
        raise ConfigurationError(f"--spark-conf: {error}") from error
    options = dict(_options_of(text_of(chosen.spark_conf, "--spark-conf")))
    options.update({f"kafka.{name}": value for name, value in properties(chosen.option, "-X").items()})
    if chosen.bootstrap_server:
        options[f"kafka.{SERVERS}"] = chosen.bootstrap_server
    parsed = parse_options({**options, CONCURRENT_TASKS_OPTION: "1"})  # as `register` says it, for options that need it
    return parsed.producer_config(), build_write_target(parsed), parsed.report_path


def _rows_of_tasks(report_path: str) -> Check:
    """How the rows of the job's last write were spread over its tasks, if it has written a report."""
    from spark_kafka_sink.preflight import Check, Outcome
    from spark_kafka_sink.reports.skew import (
        SKEW_THRESHOLD,
        compute_skew,
        describe_largest_partition,
        describe_task_skew,
        mean_task_rows,
        task_row_counts,
    )
    from spark_kafka_sink.reports.store import read_reports

    try:
        reports = [each for each in read_reports(report_path, 1) if each.task_list]
    except ConfigurationError as error:
        return Check(ROWS_OF_TASKS, Outcome.SKIPPED, f"there is no report of a write: {error}")
    if not reports:
        return Check(ROWS_OF_TASKS, Outcome.SKIPPED, "there is no report of a write")
    last = reports[-1]
    detail = f"of the last write: {describe_task_skew(last)} {describe_largest_partition(last)}".rstrip()
    if compute_skew(task_row_counts(last).values(), mean_task_rows(last)) < SKEW_THRESHOLD:
        return Check(ROWS_OF_TASKS, Outcome.PASSED, detail)
    return Check(ROWS_OF_TASKS, Outcome.WARNING, detail, SPREAD)


def _options_of(text: str) -> Mapping[str, str]:
    if not text.lstrip().startswith("{"):
        return properties(text.splitlines(), "--spark-conf")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"--spark-conf: this is not JSON: {error}") from None
    return {str(name): _as_spark(value) for name, value in found.items()}


def _as_spark(value: object) -> str:
    """As Spark hands over what a program gives: true, not True."""
    return value if isinstance(value, str) else json.dumps(value)


def _as_json(check: Check) -> dict[str, str]:
    return {"name": check.name, "outcome": check.outcome.value, "detail": check.detail, "remedy": check.remedy}


def _print(checks: Sequence[Check], failed: int) -> None:
    marks = MARKS if _can_show("".join(MARKS.values())) else PLAIN_MARKS
    for check in checks:
        print(f"{marks[check.outcome.value]:2} {check.name}: {check.detail}")
        if check.remedy:
            print(f"     {check.remedy}")
    print(f"\n{failed} of {len(checks)} checks failed." if failed else "\nNo check failed.")


def _can_show(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True

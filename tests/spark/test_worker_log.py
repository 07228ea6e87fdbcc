"""Log lines of Spark's Python processes: with time, level and logger, unless the user has configured logging there."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from spark_kafka_sink.producer.column_plan import ColumnPlan
from spark_kafka_sink.spark.worker_log import LOGGER, install_stderr_handler
from spark_kafka_sink.spark.writer import KafkaBatchWriter
from tests.spark.task_reports import OPTIONS, create_task_report

TIME = r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d"


@contextmanager
def logging_as_in_a_worker(*handlers: logging.Handler, level: int = logging.NOTSET) -> Iterator[None]:
    """Remove pytest's handlers for the block. `handlers`: those that the user has added to the root logger."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.getLogger(), "handlers", list(handlers))
        patch.setattr(LOGGER, "handlers", [])
        before = LOGGER.level
        LOGGER.setLevel(level)
        try:
            yield
        finally:
            LOGGER.setLevel(before)


def test_worker_prints_warning_with_time_level_and_logger(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_as_in_a_worker():
        install_stderr_handler()
        logging.getLogger("spark_kafka_sink.client.connections").warning("Connection failed: %s", "a:1")
    line = rf"{TIME} WARNING spark_kafka_sink\.client\.connections: Connection failed: a:1\n"
    assert re.fullmatch(line, capsys.readouterr().err)


def test_worker_names_options_in_warnings_as_spark_job_does(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_as_in_a_worker():
        install_stderr_handler()
        logging.getLogger("spark_kafka_sink.client").warning("no response within %d s (request.timeout.ms)", 1)
    assert capsys.readouterr().err.endswith("no response within 1 s (kafka.request.timeout.ms)\n")


def test_prints_results_of_writes_but_no_connection_messages(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_as_in_a_worker():
        KafkaBatchWriter(OPTIONS, ColumnPlan(value=0)).commit([create_task_report(0)])
        logging.getLogger("spark_kafka_sink.client.connections").info("Connected")
    assert re.fullmatch(rf"{TIME} INFO spark_kafka_sink: Wrote 10 rows .*\n", capsys.readouterr().err)


def test_prints_message_once_after_several_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_as_in_a_worker():
        install_stderr_handler()
        install_stderr_handler()
        LOGGER.warning("once")
    assert capsys.readouterr().err.count("once") == 1


def test_prints_nothing_when_user_has_configured_logging(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_as_in_a_worker(logging.NullHandler()):
        install_stderr_handler()
        LOGGER.warning("twice")
    assert capsys.readouterr().err == ""


def test_keeps_log_level_of_user() -> None:
    with logging_as_in_a_worker(level=logging.ERROR):
        install_stderr_handler()
        assert LOGGER.level == logging.ERROR
        assert len(LOGGER.handlers) == 1

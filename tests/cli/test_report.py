"""`pykafka report` prints reports as a table and as an HTML page."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from spark_kafka_sink.cli import main
from spark_kafka_sink.reports.store import save_report
from spark_kafka_sink.reports.write_report import FAILED
from tests.reports.report_factories import make_micro_batches, make_report


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Write a file with the reports of two jobs."""
    path = str(tmp_path / "reports.jsonl")
    for write_report in [*(make_report(number) for number in range(3)), *make_micro_batches(2)]:
        save_report(path, write_report)
    return path


def test_table_has_line_for_each_write_and_total(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", path, "--job", "6d2a"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "6d2a"
    assert lines[1].split() == [
        "started", "(UTC)", "rows", "bytes", "rows/s", "ratio", "p50", "p95", "p99", "retried", "dead", "blocked",
        "batch",
    ]  # fmt: skip
    assert lines[2] == (
        "2023-11-14 22:13:20  1,000  100.0 KB      2k   0.40  21 ms  21 ms  21 ms        3     2    40 ms  0"
    )
    assert lines[5].split()[:3] == ["all", "3,000", "300.0"]
    assert lines[7:9] == [
        "topic   partition  first offset  last offset   rows",
        "orders          0             0        2,999  3,000",
    ]
    assert lines[-1] == "dead letters: 6 RecordTooLargeError"


def test_shows_rows_by_task_of_longest_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, (write,) = str(tmp_path / "reports.jsonl"), make_micro_batches(1)
    tasks = tuple(dataclasses.replace(task, rows=7 if task.partition_id == 5 else 1) for task in write.task_list)
    save_report(path, dataclasses.replace(write, task_list=tasks, rows=14))
    main(["report", path])
    skew = "rows by task, 2025-11-22 04:40:00: 8 tasks; the largest (5) has 4.0 times the mean, which is skewed."
    assert skew in capsys.readouterr().out


def test_shows_load_of_brokers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "reports.jsonl")
    for number in range(2):
        write = make_report(number)
        producer = dataclasses.replace(write.producer, requests=10, batches=4, throttle_ms=250)
        save_report(path, dataclasses.replace(write, producer=producer, paced_ms=1_500))
    main(["report", path])
    assert (
        "brokers: 20 requests, 20 per second; 11.0 KB per batch; tasks were throttled by quotas for 500 ms, "
        "by maxBytesPerSecond for 3 s\n"
    ) in capsys.readouterr().out


def test_shows_full_names_of_several_jobs(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["report", path])
    out = capsys.readouterr().out
    assert "  6d2a/2\n" in out
    assert "  6d2a41f0-77a5-4c0e-9a38-8a4ef3a8ad51/1\n" in out


def test_last_limits_number_of_writes(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["report", path, "--job", "6d2a", "--last", "1"])
    assert capsys.readouterr().out.splitlines()[2].endswith("  2")


def test_marks_failed_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "reports.jsonl")
    save_report(path, dataclasses.replace(make_report(), status=FAILED))
    main(["report", path])
    assert "  0 FAILED\n" in capsys.readouterr().out


def test_writes_html_page(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "page.html"
    assert main(["report", path, "--html", str(out)]) == 0
    assert out.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert capsys.readouterr().out.endswith(f"\nWrote {out}.\n")


def test_prints_message_without_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").touch()
    assert main(["report", str(tmp_path / "empty")]) == 0
    assert capsys.readouterr().out == "no reports\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.jsonl"], "cannot be read: no such file or directory"),
        (["ftp://host/x"], "ftp: paths are not supported for reports"),
        (["{path}", "--last", "0"], "--last must be at least 1, not 0"),
        (["{path}", "--html", "{path}/page.html"], "--html: {path}/page.html cannot be written: Not a directory"),
    ],
)
def test_prints_error_for_invalid_paths_and_numbers(
    path: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *(argument.replace("{path}", path) for argument in arguments)]) == 1
    assert message.replace("{path}", path) in capsys.readouterr().err


def test_sanitizes_text_of_report_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "reports.jsonl")
    save_report(path, dataclasses.replace(make_report(), batch="\x1b[2J\n/\x1b]0;x"))
    main(["report", path])
    assert "\x1b" not in capsys.readouterr().out

"""WriteReport: its log line, its JSON and sums of reports."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable
from typing import Any

import pytest

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.producer.results import OffsetRange
from spark_kafka_sink.reports.write_report import WriteReport, merge_latencies, merge_report_ranges, parse_report
from tests.reports.report_factories import make_report


def test_json_round_trip_keeps_all_fields() -> None:
    parsed = parse_report(make_report().to_json())
    assert parsed.latencies.counts == make_report().latencies.counts
    assert parsed.to_json() == make_report().to_json()
    assert (parsed.partitions, parsed.task_list, parsed.errors) == (
        make_report().partitions,
        make_report().task_list,
        {"RecordTooLargeError": 2},
    )


def test_json_has_computed_fields() -> None:
    plain = json.loads(make_report(latency_ms=20).to_json())
    assert plain["started_at"] == "2023-11-14T22:13:20.000+00:00"
    assert (plain["compression_ratio"], plain["rows_per_second"], plain["blocked_ms"]) == (0.4, 2000, 40)
    assert plain["latency_ms"] == {"p50": 21, "p95": 21, "p99": 21, "max": 21}
    assert plain["latency_counts"] == [[21, 1000]]
    assert plain["partitions"] == [
        {"topic": "orders", "partition": 0, "first_offset": 0, "last_offset": 999, "rows": 1000}
    ]


def test_empty_report_has_no_ratio_and_no_percentile() -> None:
    empty = WriteReport(batch="b", tasks=0, partitions={}, longest_task_ms=0)
    plain = json.loads(empty.to_json())
    assert (plain["compression_ratio"], plain["rows_per_second"], plain["latency_ms"]["p99"]) == (None, None, None)
    assert math.isnan(parse_report(empty.to_json()).latency_ms(0.5))


def test_parses_report_of_older_version() -> None:
    line = (
        '{"batch": "q/1", "tasks": 1, "partitions": [{"topic": "t", "partition": 0, "first_offset": 0, '
        '"last_offset": 9, "rows": 10}], "rows": 10, "bytes": 80, "retries": 0, "dead_letters": 0, '
        '"dead_letters_cut": 0, "longest_task_ms": 5}'
    )
    assert (parse_report(line).rows, parse_report(line).status) == (10, "committed")


@pytest.mark.parametrize("line", ["no json", "[]", "{}", '{"partitions": 3}', '{"partitions": [], "other": 1}'])
def test_rejects_line_that_is_not_a_report(line: str) -> None:
    with pytest.raises(ConfigurationError, match="not a write report"):
        parse_report(line)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("password=hush", "column 1: Expecting value"),
        ('{"password" "hush"}', "column 13: Expecting ':' delimiter"),
        ('{"partitions": [], "batch": ["hush"]}', "batch is an array, not a string"),
        ('{"partitions": [], "errors": {"hush": "hush"}}', "a count in errors is a string, not an integer in range"),
        ('{"partitions": [], "rows": "hush"}', "rows is a string, not an integer in range"),
        (
            '{"partitions": [{"first_offset": 0, "last_offset": 0, "rows": 1, "digest": "hush"}]}',
            "digest is a string, but not 32 hexadecimal digits",
        ),
    ],
)
def test_error_shows_kind_of_problem_without_text_of_the_line(line: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f"this is not a write report ({problem})")) as caught:
        parse_report(line)
    assert "hush" not in str(caught.value)


def test_error_names_missing_field() -> None:
    with pytest.raises(ConfigurationError, match=r"\(the field partitions is missing\)"):
        parse_report("{}")


def test_merges_reports_of_micro_batches() -> None:
    reports = [make_report(0, latency_ms=10), make_report(1, latency_ms=100)]
    assert merge_report_ranges(reports) == {"orders": {0: OffsetRange(0, 1999, 2000)}}
    merged = merge_latencies(reports)
    assert merged.percentile(0.5) == pytest.approx(10, rel=1 / 15)
    assert merged.percentile(0.95) == pytest.approx(100, rel=1 / 15)
    assert reports[0].latencies.percentile(1.0) < 11, "a report is not changed by what it is added to"


@pytest.mark.parametrize(
    "value", ["12", None, True, 1.5, math.inf, -math.inf, math.nan, 10**400, -1, [], {}, "x\n\x1b[2J"]
)
@pytest.mark.parametrize(
    ("name", "replace"),
    [
        ("rows", lambda plain, value: plain.update(rows=value)),
        ("started_ms", lambda plain, value: plain.update(started_ms=value)),
        ("partition", lambda plain, value: plain["partitions"][0].update(partition=value)),
        ("rows", lambda plain, value: plain["partitions"][0].update(rows=value)),
        ("bytes", lambda plain, value: plain["task_list"][0].update(bytes=value)),
        ("a count in errors", lambda plain, value: plain["errors"].update(RecordTooLargeError=value)),
        ("a count in latency_counts", lambda plain, value: plain.update(latency_counts=[[1.0, value]])),
    ],
)
def test_error_names_field_that_is_not_an_integer(
    name: str, replace: Callable[[dict[str, Any], object], None], value: object
) -> None:
    plain = json.loads(make_report().to_json())
    replace(plain, value)
    with pytest.raises(ConfigurationError, match=rf"\({name} is .*, not an integer in range\)") as caught:
        parse_report(json.dumps(plain))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 7}, "batch is 7, not a string"),
        ({"status": None}, "status is null, not a string"),
        ({"started_ms": 1 << 62}, "which is out of range"),
        (
            {"latency_counts": [[math.inf, 1]]},
            "latency_counts has a time that is Infinity, not a positive number in range",
        ),
        ({"latency_counts": [["1", 1]]}, "latency_counts has a time that is a string, not a positive number in range"),
        ({"partitions": [{"topic": 1, "partition": 0}]}, "the field first_offset is missing"),
        ({"partitions": 1}, "its fields are not those of a write report"),
    ],
)
def test_error_names_field_with_invalid_string_or_time(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        parse_report(json.dumps(json.loads(make_report().to_json()) | changes))


def test_rejects_deeply_nested_json() -> None:
    with pytest.raises(ConfigurationError, match="not a write report"):
        parse_report("[" * 1_000_000)


def test_log_line_reports_rows_sent_without_acknowledgement() -> None:
    unacknowledged = dataclasses.replace(make_report(), is_acknowledged=False)
    assert unacknowledged.line().startswith("Sent, not acknowledged (acks=0): 1,000 rows (")
    assert make_report().line().startswith("Wrote 1,000 rows (")
    assert not parse_report(unacknowledged.to_json()).is_acknowledged


def test_report_without_is_acknowledged_is_acknowledged() -> None:
    plain = json.loads(make_report().to_json())
    del plain["is_acknowledged"]
    assert parse_report(json.dumps(plain)).is_acknowledged
    with pytest.raises(ConfigurationError, match="is_acknowledged is 1, not true or false"):
        parse_report(json.dumps({**plain, "is_acknowledged": 1}))

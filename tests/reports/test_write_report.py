"""A report: its line, its JSON, and sums of several."""

from __future__ import annotations

import json
import math

import pytest

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.producer.futures import OffsetRange
from spark_kafka_sink.reports.write_report import WriteReport, from_json, latencies_of, ranges_of
from tests.reports.some_reports import report


def test_a_line_of_json_has_all_of_a_report() -> None:
    again = from_json(report().to_json())
    assert again.latencies.counts == report().latencies.counts
    assert again.to_json() == report().to_json()
    assert (again.partitions, again.task_list, again.errors) == (
        report().partitions,
        report().task_list,
        {"RecordTooLargeError": 2},
    )


def test_the_json_has_the_numbers_that_people_look_for() -> None:
    plain = json.loads(report(latency_ms=20).to_json())
    assert plain["started_at"] == "2023-11-14T22:13:20.000+00:00"
    assert (plain["compression_ratio"], plain["rows_per_second"], plain["blocked_ms"]) == (0.4, 2000, 40)
    assert plain["latency_ms"] == {"p50": 21, "p95": 21, "p99": 21, "max": 21}
    assert plain["latency_counts"] == [[21, 1000]]
    assert plain["partitions"] == [
        {"topic": "orders", "partition": 0, "first_offset": 0, "last_offset": 999, "rows": 1000}
    ]


def test_a_report_of_nothing_has_no_ratio_and_no_percentile() -> None:
    empty = WriteReport(
        batch="b", tasks=0, partitions={}, rows=0, bytes=0, retries=0, dead_letters=0, dead_letters_cut=0,
        longest_task_ms=0,
    )  # fmt: skip
    plain = json.loads(empty.to_json())
    assert (plain["compression_ratio"], plain["rows_per_second"], plain["latency_ms"]["p99"]) == (None, None, None)
    assert math.isnan(from_json(empty.to_json()).latency_ms(0.5))


def test_a_line_of_an_older_version_is_read() -> None:
    line = (
        '{"batch": "q/1", "tasks": 1, "partitions": [{"topic": "t", "partition": 0, "first_offset": 0, '
        '"last_offset": 9, "rows": 10}], "rows": 10, "bytes": 80, "retries": 0, "dead_letters": 0, '
        '"dead_letters_cut": 0, "longest_task_ms": 5}'
    )
    assert (from_json(line).rows, from_json(line).status) == (10, "committed")


@pytest.mark.parametrize("line", ["no json", "[]", "{}", '{"partitions": 3}', '{"partitions": [], "other": 1}'])
def test_a_line_that_is_no_report_is_shown(line: str) -> None:
    with pytest.raises(ConfigurationError, match="no report of a write"):
        from_json(line)


def test_a_field_that_is_missing_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"\(it has no partitions\)"):
        from_json("{}")


def test_reports_of_micro_batches_add_up() -> None:
    reports = [report(0, latency_ms=10), report(1, latency_ms=100)]
    assert ranges_of(reports) == {"orders": {0: OffsetRange(0, 1999, 2000)}}
    merged = latencies_of(reports)
    assert merged.percentile(0.5) == pytest.approx(10, rel=1 / 15)
    assert merged.percentile(0.95) == pytest.approx(100, rel=1 / 15)
    assert reports[0].latencies.percentile(1.0) < 11, "a report is not changed by what it is added to"

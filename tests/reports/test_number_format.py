"""Formats of numbers."""

from __future__ import annotations

import pytest

from spark_kafka_sink.reports.number_format import (
    format_milliseconds,
    format_number,
    format_percentage,
    format_ratio,
)

NAN = float("nan")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (7, "7"), (999, "999"), (999.7, "1k"), (1_234, "1.23k"), (88_100, "88.1k"), (3.2e6, "3.2M"), (NAN, "-")],
)
def test_formats_numbers_with_si_prefixes(value: float, text: str) -> None:
    assert format_number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 ms"), (0.0625, "0.0625 ms"), (21, "21 ms"), (104.4, "104 ms"), (1_300, "1.3 s"), (119_000, "119 s"),
        (240_000, "4 min"), (NAN, "-"),
    ],
)  # fmt: skip
def test_formats_milliseconds(value: float, text: str) -> None:
    assert format_milliseconds(value) == text


def test_formats_percentages_and_ratios() -> None:
    assert (format_percentage(1, 8), format_percentage(1, 0), format_ratio(0.3333), format_ratio(NAN)) == (
        "12%",
        "-",
        "0.33",
        "-",
    )

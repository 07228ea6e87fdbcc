"""Output formats of `pykafka cat`."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import pyarrow as pa
import pytest

from spark_kafka_sink.cli.row_formats import format_json_lines


@pytest.mark.parametrize("character", ["\x1b", "\x7f", "\x9b", "\u202e", "\u2066", "\u200b", "\U000e0001"])
def test_json_escapes_invisible_characters(character: str) -> None:
    text = f"stra\u00dfe {character}[2J"
    row = {"key": text.encode(), "value": text.encode(), "headers": [{"key": text, "value": text.encode()}]}
    rows = pa.Table.from_pylist([{**row, "timestamp": datetime(2026, 1, 1, tzinfo=timezone.utc)}])
    (line,) = format_json_lines(rows, ())
    assert line.decode().removesuffix("\n").isprintable()
    assert "stra\u00dfe" in line.decode()
    shown = json.loads(line)
    assert (shown["key"], shown["value"], shown["headers"]) == (text, text, [{"key": text, "value": text}])

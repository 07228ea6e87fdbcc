"""Builders of encoders from format options and columns."""

from __future__ import annotations

import base64
import sys

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import MissingDependencyError, OptionFaults
from spark_kafka_sink.formats.encoder_builders import build_encoders
from spark_kafka_sink.formats.format_builders import SchemaOptions
from spark_kafka_sink.formats.options import RECORD_PARTS, FormatOptions
from spark_kafka_sink.producer.table_plan import ArrowColumns


@pytest.mark.parametrize("part", RECORD_PARTS)
def test_raises_error_for_schema_that_needs_missing_package(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the error was only collected, the key would have no encoder and would be written as null."""
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    options = FormatOptions(part, "protobuf-confluent", ("a",), SchemaOptions(base64.b64encode(b"\n\0").decode()))
    faults = OptionFaults()
    with pytest.raises(MissingDependencyError, match=r"requires the package protobuf on the driver: pip install"):
        build_encoders([options], ArrowColumns([pa.field("a", pa.int64())]), faults)
    assert not faults

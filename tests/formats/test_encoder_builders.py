"""The encoders of both sides of a record, from the options of formats and the columns."""

from __future__ import annotations

import base64
import sys

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import MissingDependencyError, OptionFaults
from spark_kafka_sink.formats.encoder_builders import build_encoders
from spark_kafka_sink.formats.format_builders import SchemaOptions
from spark_kafka_sink.formats.options import SIDES, FormatOptions
from spark_kafka_sink.producer.table_plan import ArrowColumns


@pytest.mark.parametrize("side", SIDES)
def test_schema_that_needs_a_missing_package_is_an_error(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the error there was no encoder, and a key without an encoder was written as null."""
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    options = FormatOptions(side, "protobuf-confluent", ("a",), SchemaOptions(base64.b64encode(b"\n\0").decode()))
    faults = OptionFaults()
    with pytest.raises(MissingDependencyError, match=r"needs the package protobuf on the driver: pip install"):
        build_encoders([options], ArrowColumns([pa.field("a", pa.int64())]), faults)
    assert not faults

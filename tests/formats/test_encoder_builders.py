"""Builders of encoders from format options and columns."""

from __future__ import annotations

import base64
import sys

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import MissingDependencyError, OptionProblem, OptionProblems
from spark_kafka_sink.formats.encoder_builders import build_encoders
from spark_kafka_sink.formats.format_builders import SchemaSpec
from spark_kafka_sink.formats.options import RECORD_PARTS, FormatOptions
from spark_kafka_sink.producer.table_plan import ArrowColumns


@pytest.mark.parametrize("part", RECORD_PARTS)
def test_raises_error_for_schema_that_needs_missing_package(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the error was only collected, the key would have no encoder and would be written as null."""
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    options = FormatOptions(part, "protobuf-confluent", ("a",), SchemaSpec(base64.b64encode(b"\n\0").decode()))
    problems = OptionProblems()
    with pytest.raises(
        MissingDependencyError, match=r"requires the protobuf package on the driver, in version .*: pip install"
    ):
        build_encoders([options], ArrowColumns([pa.field("a", pa.int64())]), problems)
    assert not problems


@pytest.mark.parametrize(
    ("columns", "hint"),
    [
        (("a", "s.x"), " To encode all fields of the struct, name only 's.*'."),
        (("a", "s.*"), " To encode all fields of the struct, name only 's.*'."),
        (("a.x",), ""),
    ],
)
def test_suggests_ways_to_encode_fields_of_a_column(columns: tuple[str, ...], hint: str) -> None:
    problems = OptionProblems()
    fields = [pa.field("a", pa.int64()), pa.field("s", pa.struct([pa.field("x", pa.int64())]))]
    build_encoders([FormatOptions("value", "json", columns)], ArrowColumns(fields), problems)
    name = columns[-1]
    (problem,) = problems.render()
    assert problem.endswith(
        f" names the column '{name}', which does not exist. There is '{name[0]}', but parts of columns cannot be named "
        f"here. Select the part as a column first.{hint}"
    )


@pytest.mark.parametrize(
    ("requested_column", "message"),
    [
        (
            "nowhere.*",
            "names the struct column 'nowhere', which does not exist. The struct columns are s, twice, twice.",
        ),
        ("a.*", "names the column 'a', which is not a struct. The struct columns are s, twice, twice."),
        ("twice.*", "names the column 'twice', which occurs more than once."),
    ],
)
def test_rejects_column_whose_fields_cannot_be_encoded(requested_column: str, message: str) -> None:
    struct = pa.struct([pa.field("b", pa.int64())])
    fields = [pa.field("a", pa.int64()), *(pa.field(name, struct) for name in ("s", "twice", "twice"))]
    options = FormatOptions("value", "json", (requested_column,), SchemaSpec())
    problems = OptionProblems()
    build_encoders([options], ArrowColumns(fields), problems)
    (problem,) = problems
    assert isinstance(problem, OptionProblem)
    assert problem.render() == f"valueColumns {message}"

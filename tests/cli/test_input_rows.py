"""Rows of Parquet and CSV files and of lines, and the errors that name what is wrong with them."""

from __future__ import annotations

import errno
import io
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from spark_kafka_sink.cli import input_rows
from spark_kafka_sink.cli.input_rows import InputColumns, open_input_file, open_lines
from spark_kafka_sink.errors import ConfigurationError, DataError
from spark_kafka_sink.testing import EmbeddedBroker
from tests.cli.produce_cases import broker as broker
from tests.cli.produce_cases import produce, read_written_rows

Output = pytest.CaptureFixture[str]


def test_writes_columns_of_parquet_file(tmp_path: Path, broker: EmbeddedBroker) -> None:
    times = [datetime(2026, 1, 2, tzinfo=timezone.utc), datetime(2026, 1, 3, tzinfo=timezone.utc)]
    table = pa.table(
        {"value": pa.array([b"\xff", None], pa.binary()), "key": [1, 2], "timestamp": pa.array(times), "other": [0, 0]}
    )
    parquet.write_table(table, tmp_path / "rows.parquet")
    assert produce(broker, "--file", str(tmp_path / "rows.parquet")) == 0
    assert sorted(read_written_rows(broker, "key", "value", "timestamp")) == [
        (b"1", b"\xff", times[0]),
        (b"2", None, times[1]),
    ]


def test_writes_csv_fields_as_text(tmp_path: Path, broker: EmbeddedBroker) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('id,text,at\n007,"a ""b"", c",1767312000000\n8,,1767312000001\n9,"",1767312000002\n')
    arguments = ["--value-column", "text", "--key-column", "id", "--timestamp-column", "at"]
    assert produce(broker, "--file", str(path), *arguments) == 0
    rows = [
        (key, value, time.timestamp()) for key, value, time in read_written_rows(broker, "key", "value", "timestamp")
    ]
    assert rows == [(b"007", b'a "b", c', 1767312000.0), (b"8", None, 1767312000.001), (b"9", b"", 1767312000.002)]


def test_names_missing_column_and_corrupt_file(tmp_path: Path, capsys: Output, broker: EmbeddedBroker) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    assert produce(broker, "--file", str(tmp_path / "rows.csv")) == 1
    assert "--value-column: " in (errors := capsys.readouterr().err)
    assert "has no column value. Its columns are a, b." in errors
    (tmp_path / "rows.parquet").write_bytes(b"PAR0 and so on")
    assert produce(broker, "--file", str(tmp_path / "rows.parquet")) == 1
    assert "is corrupt" in capsys.readouterr().err


def write_table_of_texts(path: Path, names: list[str | bytes]) -> None:
    """Write a Parquet or CSV file with one row and columns with these names."""
    encoded_names = [name.encode() if isinstance(name, str) else name for name in names]
    if path.suffix == ".csv":
        path.write_bytes(b",".join(encoded_names) + b"\n" + b",".join([b"1"] * len(names)) + b"\n")
    else:
        fields = [pa.field(name, pa.string()) for name in encoded_names]
        parquet.write_table(pa.Table.from_arrays([pa.array(["1"])] * len(names), schema=pa.schema(fields)), path)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_rejects_file_with_column_name_that_is_not_utf8(tmp_path: Path, suffix: str) -> None:
    write_table_of_texts(path := tmp_path / f"rows.{suffix}", ["value", b"Gr\xf6\xdfe"])
    with pytest.raises(ConfigurationError) as caught:
        open_input_file(path, InputColumns(), [])
    assert str(caught.value) == (
        f"--file: {path} has a column name that is not encoded in UTF-8. Convert the file to UTF-8."
    )


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("name", ["value", "key", "timestamp"])
def test_rejects_name_of_several_columns_only_if_it_is_needed(tmp_path: Path, suffix: str, name: str) -> None:
    write_table_of_texts(path := tmp_path / f"rows.{suffix}", ["value", "key", "timestamp", "id", name])
    with pytest.raises(ConfigurationError) as caught:
        open_input_file(path, InputColumns(), [])
    assert str(caught.value) == (
        f"--{name}-column: {path} has several columns named {name}. Rename all but one of them."
    )
    write_table_of_texts(path, ["value", "id", "id"])
    rows, _ = open_input_file(path, InputColumns(), [])
    assert rows.read_all().to_pylist() == [{"value": "1"}]


def test_error_has_number_of_invalid_line() -> None:
    with pytest.raises(DataError, match="line 3 has no ':' between"):
        list(open_lines(io.BytesIO(b"a:1\nb:2\nc\n"), ":", [], 100))
    with pytest.raises(DataError, match=r"line 2 is longer than max.request.size, 5 bytes"):
        list(open_lines(io.BytesIO(b"a\n123456"), None, [], 5))


def test_number_of_invalid_line_counts_lines_of_earlier_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_rows, "MAX_READ_BYTES", 4)
    with pytest.raises(DataError, match="line 3 has no ':' between"):
        list(open_lines(io.BytesIO(b"a:1\nb:2\nc\n"), ":", [], 100))


def test_writes_values_of_dictionary_column_unchanged(tmp_path: Path, broker: EmbeddedBroker) -> None:
    values = pa.array([b"\xff", b"a", b"\xff"], pa.binary()).dictionary_encode()
    parquet.write_table(pa.table({"value": values}), tmp_path / "rows.parquet")
    assert produce(broker, "--file", str(tmp_path / "rows.parquet")) == 0
    assert read_written_rows(broker, "value") == [(b"a",), (b"\xff",), (b"\xff",)]


def test_names_file_whose_column_cannot_be_converted(tmp_path: Path, capsys: Output, broker: EmbeddedBroker) -> None:
    parquet.write_table(pa.table({"value": [{"a": 1}]}), path := tmp_path / "rows.parquet")
    assert produce(broker, "--file", str(path)) == 1
    assert f"pykafka: --file: {path}: Unsupported cast from struct" in capsys.readouterr().err
    (path := tmp_path / "rows.csv").write_text("value,timestamp\na,soon\n")
    assert produce(broker, "--file", str(path)) == 1
    assert f"pykafka: --file: {path}: row 1: " in capsys.readouterr().err
    assert read_written_rows(broker, "value") == []


@pytest.mark.parametrize(
    ("bad_time", "reason"),
    [
        ("soon", "Failed to parse string: 'soon'"),
        ("1767312000000", "a timestamp has another format than those of the rows before it"),
    ],
)
def test_file_is_written_up_to_row_that_cannot_be_converted(
    tmp_path: Path, capsys: Output, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, bad_time: str, reason: str
) -> None:
    monkeypatch.setattr(input_rows, "BATCH_ROWS", 4)
    times = ["2026-05-01 12:00:00"] * 6 + [bad_time, "later", "2026-05-01 12:00:00"]
    table = pa.table({"value": [str(number) for number in range(1, 10)], "timestamp": times})
    parquet.write_table(table, path := tmp_path / "rows.parquet")
    assert produce(broker, "--file", str(path)) == 1
    assert f"pykafka: --file: {path}: row 7: {reason}" in capsys.readouterr().err
    assert read_written_rows(broker, "value") == [(str(number).encode(),) for number in range(1, 7)]


def test_yields_lines_before_one_that_is_too_long() -> None:
    reader = open_lines(io.BytesIO(b"a\nb\n123456"), None, [], 5)
    assert reader.read_next_batch().to_pydict() == {"value": [b"a", b"b"]}
    with pytest.raises(DataError, match="line 3 is longer"):
        reader.read_next_batch()


def test_names_parquet_file_with_damaged_page_and_writes_rows_before_it(
    tmp_path: Path, capsys: Output, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_rows, "BATCH_ROWS", 4)
    table = pa.table({"value": [str(number) * 100 for number in range(8)]})
    path = tmp_path / "rows.parquet"
    parquet.write_table(table, path, row_group_size=4, compression="snappy", use_dictionary=False)
    damage_last_row_group(path)
    assert produce(broker, "--file", str(path)) == 1
    assert f"pykafka: --file: {path}: " in capsys.readouterr().err
    assert len(read_written_rows(broker, "value")) == 4


def damage_last_row_group(path: Path) -> None:
    """Overwrite the end of the last page, which is compressed."""
    column = parquet.read_metadata(path).row_group(1).column(0)
    with path.open("r+b") as file:
        file.seek(column.data_page_offset + column.total_compressed_size - 20)
        file.write(b"\xff" * 20)


class FailingStream(io.RawIOBase):
    """A stream with one line, after which reading fails."""

    def __init__(self) -> None:
        self._has_line = True

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        if not self._has_line:
            raise OSError(errno.EIO, "Input/output error")
        self._has_line = False
        buffer[:2] = b"a\n"
        return 2


def test_yields_lines_before_stream_cannot_be_read() -> None:
    reader = open_lines(io.BufferedReader(FailingStream()), None, [], 100)
    assert reader.read_next_batch().to_pydict() == {"value": [b"a"]}
    with pytest.raises(DataError, match="the input cannot be read: Input/output error"):
        reader.read_next_batch()

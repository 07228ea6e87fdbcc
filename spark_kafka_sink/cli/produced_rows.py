"""Where `pykafka produce` has its rows from: lines of a stream, or columns of a file; as a stream of Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BufferedReader, BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.errors import ConfigurationError, DataError

READ_BYTES = 1 << 20
ROWS_AT_ONCE = 50_000

Headers = Sequence[tuple[str, bytes]]
_HEADERS = pa.field("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))


@dataclass(frozen=True)
class InputColumns:
    """Of a file. None: the column of the usual name, if there is one."""

    value: str = "value"
    key: str | None = None
    timestamp: str | None = None


def rows_of_lines(
    stream: BufferedReader | BytesIO, key_separator: str | None, headers: Headers, line_bytes_max: int
) -> pa.RecordBatchReader:
    """What stands ready in the stream, line by line a record; the last one may have no line end."""
    fields = [pa.field("value", pa.binary())]
    if key_separator is not None:
        fields.append(pa.field("key", pa.binary()))
    columns = _columns_of_lines(stream, None if key_separator is None else key_separator.encode(), line_bytes_max)
    return _reader(fields, columns, headers)


def _columns_of_lines(
    stream: BufferedReader | BytesIO, separator: bytes | None, line_bytes_max: int
) -> Iterator[list[pa.Array]]:
    before, rest = 0, b""
    while data := stream.read1(READ_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        if len(rest) > line_bytes_max:
            number = before + len(lines) + 1
            raise DataError(f"line {number} is longer than max.request.size, {line_bytes_max} bytes")
        if lines:
            yield _of_lines(lines, separator, before)
            before += len(lines)
    if rest:
        yield _of_lines([rest], separator, before)


def _of_lines(lines: list[bytes], separator: bytes | None, before: int) -> list[pa.Array]:
    """`before`: how many lines came before these."""
    if separator is None:
        return [pa.array(lines, pa.binary())]
    parts = [line.split(separator, 1) for line in lines]
    for number, part in enumerate(parts, before + 1):
        if len(part) != 2:
            raise DataError(f"line {number} has no {separator.decode()!r} between key and value")
    keys, values = zip(*parts, strict=True)
    return [pa.array(values, pa.binary()), pa.array(keys, pa.binary())]


def _reader(fields: list[pa.Field], columns: Iterator[list[pa.Array]], headers: Headers) -> pa.RecordBatchReader:
    """The columns, and the same headers in each row."""
    schema = pa.schema([*fields, _HEADERS] if headers else fields)
    one = pa.scalar([{"key": name, "value": value} for name, value in headers], _HEADERS.type)

    def batches() -> Iterator[pa.RecordBatch]:
        for arrays in columns:
            repeated = [pa.repeat(one, len(arrays[0]))] if headers else []
            yield pa.RecordBatch.from_arrays([*arrays, *repeated], schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def rows_of_file(path: Path, wanted: InputColumns, headers: Headers) -> tuple[pa.RecordBatchReader, int | None]:
    """The file's rows, some at a time, and how many there are, if the file says so."""
    suffix = path.suffix.lower()
    total: int | None = None
    try:
        if suffix == ".parquet":
            batches, schema, total = _parquet(path)
        elif suffix in (".csv", ".tsv"):
            batches, schema = _csv(path, "\t" if suffix == ".tsv" else ",")
        else:
            raise ConfigurationError(f"--file: {path} is neither .parquet nor .csv nor .tsv")
    except OSError as error:
        raise ConfigurationError(f"--file: {path} cannot be read: {error.strerror or error}") from error
    except pa.ArrowInvalid as error:
        raise ConfigurationError(f"--file: {path} is damaged: {error}") from error
    named = _named(schema, wanted, path)
    roles = [("value", named.value), ("key", named.key), ("timestamp", named.timestamp)]
    chosen = {role: name for role, name in roles if name is not None}
    try:
        fields = [pa.field(role, _type_of(role, schema.field(name).type)) for role, name in chosen.items()]
    except pa.ArrowNotImplementedError as error:
        raise DataError(f"--file: {path}: {error}") from error
    return _reader(fields, _converted(batches, chosen, path), headers), total


def _parquet(path: Path) -> tuple[Iterator[pa.RecordBatch], pa.Schema, int]:
    from pyarrow import parquet

    file = parquet.ParquetFile(path)
    return file.iter_batches(batch_size=ROWS_AT_ONCE), file.schema_arrow, file.metadata.num_rows


def _csv(path: Path, delimiter: str) -> tuple[Iterator[pa.RecordBatch], pa.Schema]:
    """All columns as text: what is in the file is what is sent. A field that is empty, and not quoted, is a null."""
    from pyarrow import csv

    parsing = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    with csv.open_csv(path, parse_options=parsing) as peek:
        names = peek.schema.names
    texts = csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()),
        strings_can_be_null=True,
        null_values=[""],
        quoted_strings_can_be_null=False,
    )
    reader = csv.open_csv(path, parse_options=parsing, convert_options=texts)
    return iter(reader), reader.schema


def _named(schema: pa.Schema, wanted: InputColumns, path: Path) -> InputColumns:
    """With the usual names where none were given. ConfigurationError names a column that is missing."""
    key = wanted.key or ("key" if "key" in schema.names else None)
    timestamp = wanted.timestamp or ("timestamp" if "timestamp" in schema.names else None)
    for flag, name in (("--value-column", wanted.value), ("--key-column", key), ("--timestamp-column", timestamp)):
        if name is not None and name not in schema.names:
            raise ConfigurationError(f"{flag}: {path} has no column {name}, but {', '.join(schema.names)}")
    return InputColumns(wanted.value, key, timestamp)


def _converted(batches: Iterator[pa.RecordBatch], chosen: Mapping[str, str], path: Path) -> Iterator[list[pa.Array]]:
    try:
        for batch in batches:
            yield [
                (_times_of if role == "timestamp" else _bytes_of)(batch.column(name)) for role, name in chosen.items()
            ]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(f"--file: {path}: {error}") from error


def _type_of(role: str, kind: pa.DataType) -> pa.DataType:
    """Which type the column has here: it is known before there are rows."""
    return (_times_of if role == "timestamp" else _bytes_of)(pa.nulls(0, kind)).type


def _bytes_of(column: pa.Array) -> pa.Array:
    """Text and bytes as they are, numbers and times as text."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _bytes_of(column.dictionary_decode())
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    return column if is_bytes else column.cast(pa.string())


def _times_of(column: pa.Array) -> pa.Array:
    """Milliseconds since 1970 as numbers or digits, or times."""
    if pa.types.is_string(column.type):
        digits = pc.all(pc.match_substring_regex(column, "^-?[0-9]+$")).as_py()
        return column.cast(pa.int64()) if digits else column.cast(pa.timestamp("ms")).cast(pa.int64())
    return column

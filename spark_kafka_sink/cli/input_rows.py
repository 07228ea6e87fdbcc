"""Readers of `pykafka produce`'s input, the lines of a stream or the columns of a file, as Arrow batches.

The batches contain all lines before the first invalid one, and all rows of a file before the first one that cannot be
converted. Then the reader raises a DataError that counts lines and rows from 1. If the input itself cannot be read, for
example because a file is damaged, the batches end with the last block before the damage, and the error has no number.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.errors import ConfigurationError, DataError

MAX_READ_BYTES = 1 << 20
BATCH_ROWS = 50_000

Headers = Sequence[tuple[str, bytes]]
_HEADERS_FIELD = pa.field("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))


@dataclass(frozen=True)
class InputColumns:
    """Names of the columns to read from a file.

    If `key` or `timestamp` is None, the column of that name is read if the file has one.
    """

    value: str = "value"
    key: str | None = None
    timestamp: str | None = None


def open_lines(
    stream: BufferedReader | BytesIO, key_separator: str | None, headers: Headers, max_line_bytes: int
) -> pa.RecordBatchReader:
    """Return a reader that yields each line of the stream as a record, as soon as the line is available.

    The last line need not end with a line feed. The reader raises DataError if a line is longer than `max_line_bytes`
    or lacks the separator, or if the stream cannot be read.
    """
    fields = [pa.field("value", pa.binary())]
    if key_separator is not None:
        fields.append(pa.field("key", pa.binary()))
    batch_columns = _read_line_columns(stream, key_separator, max_line_bytes)
    return _build_reader(fields, batch_columns, headers)


def _read_line_columns(
    stream: BufferedReader | BytesIO, separator: str | None, max_line_bytes: int
) -> Iterator[list[pa.Array]]:
    """Read the stream in blocks. After each block, yield the lines that are now complete, as columns."""
    line_count = 0
    partial_line = b""
    while data := _read_block(stream):
        *lines, partial_line = (partial_line + data).split(b"\n")
        if lines:
            yield from _split_lines(lines, separator, line_count)
            line_count += len(lines)
        # This limits the memory for a line that never ends. The producer rejects complete lines that are too long.
        if len(partial_line) > max_line_bytes:
            raise DataError(f"line {line_count + 1} is longer than max.request.size, {max_line_bytes} bytes")
    if partial_line:
        yield from _split_lines([partial_line], separator, line_count)


def _read_block(stream: BufferedReader | BytesIO) -> bytes:
    """Return the available bytes, at least one unless the stream has ended. Raise DataError if reading fails."""
    try:
        return stream.read1(MAX_READ_BYTES)
    except OSError as error:
        raise DataError(f"the input cannot be read: {error.strerror or error}") from error


def _split_lines(lines: list[bytes], separator: str | None, previous_count: int) -> Iterator[list[pa.Array]]:
    """Yield the lines as columns of values and keys, up to the first line without the separator.

    Then raise DataError for that line.

    `previous_count`: the number of preceding lines, for error messages.
    """
    column = pa.array(lines, pa.binary())
    if separator is None:
        yield [column]
        return
    parts = pc.split_pattern(column, separator, max_splits=1)
    invalid_index = pc.index(pc.equal(pc.list_value_length(parts), 1), True).as_py()
    valid_parts = parts if invalid_index < 0 else parts.slice(0, invalid_index)
    if len(valid_parts):
        yield [pc.list_element(valid_parts, 1), pc.list_element(valid_parts, 0)]
    if invalid_index >= 0:
        line_number = previous_count + invalid_index + 1
        raise DataError(f"line {line_number} has no {separator!r} between key and value")


def _build_reader(
    fields: list[pa.Field], batch_columns: Iterator[list[pa.Array]], headers: Headers
) -> pa.RecordBatchReader:
    """Build a reader that yields the columns of each batch, and adds the same headers to each row."""
    schema = pa.schema([*fields, _HEADERS_FIELD] if headers else fields)
    header_scalar = pa.scalar([{"key": name, "value": value} for name, value in headers], _HEADERS_FIELD.type)

    def build_batches() -> Iterator[pa.RecordBatch]:
        for arrays in batch_columns:
            header_columns = [pa.repeat(header_scalar, len(arrays[0]))] if headers else []
            yield pa.RecordBatch.from_arrays([*arrays, *header_columns], schema=schema)

    return pa.RecordBatchReader.from_batches(schema, build_batches())


class _OpenFile(NamedTuple):
    """An input file's batches, which are read as they are consumed."""

    batches: Iterator[pa.RecordBatch]
    schema: pa.Schema
    row_count: int | None
    """The number of rows; None if the format does not record it."""


def open_input_file(path: Path, columns: InputColumns, headers: Headers) -> tuple[pa.RecordBatchReader, int | None]:
    """Return a reader for the rows, and the row count (None if the file does not contain it).

    Raise ConfigurationError if the file cannot be read, or if a column is missing or duplicated, and DataError if a
    column's type is unsupported.
    """
    try:
        file = _open_by_suffix(path)
        names_by_role = _resolve_columns(file.schema, columns, path)
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"--file: {path} has a column name that is not encoded in UTF-8. Convert the file to UTF-8."
        ) from error
    fields = _convert_schema(file.schema, names_by_role, path)
    return _build_reader(fields, _convert_batches(file.batches, names_by_role, path), headers), file.row_count


def _open_by_suffix(path: Path) -> _OpenFile:
    """Open a file in the format that its suffix names. Raise ConfigurationError if it cannot be read."""
    suffix = path.suffix.lower()
    try:
        if suffix == ".parquet":
            return _open_parquet(path)
        if suffix in (".csv", ".tsv"):
            return _open_csv(path, delimiter="\t" if suffix == ".tsv" else ",")
    except OSError as error:
        raise ConfigurationError(f"--file: {path} cannot be read: {error.strerror or error}") from error
    except pa.ArrowInvalid as error:
        raise ConfigurationError(f"--file: {path} is corrupt: {error}") from error
    raise ConfigurationError(f"--file: {path} is not a .parquet, .csv or .tsv file")


def _open_parquet(path: Path) -> _OpenFile:
    from pyarrow import parquet

    file = parquet.ParquetFile(path)
    return _OpenFile(file.iter_batches(batch_size=BATCH_ROWS), file.schema_arrow, file.metadata.num_rows)


def _open_csv(path: Path, delimiter: str) -> _OpenFile:
    """Open a CSV file and read all columns as text, so that fields are sent unchanged.

    An empty field without quotes is read as null.
    """
    from pyarrow import csv

    parse_options = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    # Read the names first, because the types can only be set by name.
    with csv.open_csv(path, parse_options=parse_options) as header_reader:
        names = header_reader.schema.names
    convert_options = csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()),
        strings_can_be_null=True,
        null_values=[""],
        quoted_strings_can_be_null=False,
    )
    reader = csv.open_csv(path, parse_options=parse_options, convert_options=convert_options)
    return _OpenFile(iter(reader), reader.schema, row_count=None)


def _resolve_columns(schema: pa.Schema, columns: InputColumns, path: Path) -> dict[str, str]:
    """Return the name of the column to read for each role.

    The role `value` is always included. The roles `key` and `timestamp` are included if the user has named a column for
    them or the file has a column of that name. Raise ConfigurationError if the file lacks the value column or a column
    that the user has named, or if several columns have the same name as the one to read.
    """
    key = columns.key or ("key" if "key" in schema.names else None)
    timestamp = columns.timestamp or ("timestamp" if "timestamp" in schema.names else None)
    for flag, name in (("--value-column", columns.value), ("--key-column", key), ("--timestamp-column", timestamp)):
        if name is not None and name not in schema.names:
            raise ConfigurationError(f"{flag}: {path} has no column {name}. Its columns are {', '.join(schema.names)}.")
        if schema.names.count(name) > 1:
            raise ConfigurationError(f"{flag}: {path} has several columns named {name}. Rename all but one of them.")
    optional_names_by_role = {"value": columns.value, "key": key, "timestamp": timestamp}
    return {role: name for role, name in optional_names_by_role.items() if name is not None}


def _convert_schema(schema: pa.Schema, names_by_role: Mapping[str, str], path: Path) -> list[pa.Field]:
    """Return a field for each role, with the type of the converted column. Raise DataError if a type is unsupported."""
    try:
        return [
            pa.field(role, _find_converted_type(role, schema.field(name).type)) for role, name in names_by_role.items()
        ]
    except pa.ArrowNotImplementedError as error:
        raise DataError(f"--file: {path}: {error}") from error


def _convert_batches(
    batches: Iterator[pa.RecordBatch], names_by_role: Mapping[str, str], path: Path
) -> Iterator[list[pa.Array]]:
    """Yield the converted columns of each batch.

    Raise DataError if a batch cannot be read or a row cannot be converted. In the latter case, all rows before that row
    have been yielded.
    """
    row_count = 0

    def convert(batch: pa.RecordBatch) -> list[pa.Array]:
        return [_convert_column(role, batch.column(name)) for role, name in names_by_role.items()]

    try:
        for batch in batches:
            try:
                columns = convert(batch)
            except pa.ArrowInvalid as error:
                convertible_rows = _count_convertible_rows(batch, convert)
                if convertible_rows:
                    yield convert(batch.slice(0, convertible_rows))
                row_number = row_count + convertible_rows + 1
                # The error of the batch may be about a later row.
                reason = _find_conversion_error(batch.slice(convertible_rows, 1), convert)
                raise DataError(f"--file: {path}: row {row_number}: {reason}") from error
            yield columns
            row_count += batch.num_rows
    except (OSError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(f"--file: {path}: {error}") from error


def _count_convertible_rows(batch: pa.RecordBatch, convert: Callable[[pa.RecordBatch], object]) -> int:
    """Return the number of rows before the first row with which `convert` fails.

    The rows are found by bisection, because Arrow's errors do not contain the index of the row.
    """

    def fails_with(row_count: int) -> bool:
        try:
            convert(batch.slice(0, row_count))
        except pa.ArrowInvalid:
            return True
        return False

    return bisect_left(range(1, batch.num_rows + 1), True, key=fails_with)


def _find_conversion_error(row: pa.RecordBatch, convert: Callable[[pa.RecordBatch], object]) -> str:
    """Return the reason why a row cannot be converted together with the rows before it."""
    try:
        convert(row)
    except pa.ArrowInvalid as error:
        return str(error)
    return "a timestamp has another format than those of the rows before it"


def _find_converted_type(role: str, data_type: pa.DataType) -> pa.DataType:
    """Return the type that a column will have after conversion, without reading any row."""
    return _convert_column(role, pa.nulls(0, data_type)).type


def _convert_column(role: str, column: pa.Array) -> pa.Array:
    return _convert_timestamps(column) if role == "timestamp" else _convert_key_or_value(column)


def _convert_key_or_value(column: pa.Array) -> pa.Array:
    """Convert a column to text. Columns of bytes are returned unchanged."""
    data_type = column.type
    if pa.types.is_dictionary(data_type):
        return _convert_key_or_value(column.dictionary_decode())
    is_bytes = (
        pa.types.is_binary(data_type) or pa.types.is_large_binary(data_type) or pa.types.is_fixed_size_binary(data_type)
    )
    return column if is_bytes else column.cast(pa.string())


def _convert_timestamps(column: pa.Array) -> pa.Array:
    """Convert text to milliseconds since the epoch. Columns of other types are returned unchanged.

    Either all rows contain a number of milliseconds, or all contain a timestamp such as 2026-05-01 12:00:00.
    """
    if pa.types.is_string(column.type):
        has_only_numbers = pc.all(pc.match_substring_regex(column, "^-?[0-9]+$")).as_py()
        return column.cast(pa.int64()) if has_only_numbers else column.cast(pa.timestamp("ms")).cast(pa.int64())
    return column

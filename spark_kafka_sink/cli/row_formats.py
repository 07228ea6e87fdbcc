"""Output formats of `pykafka cat`: text, JSON and a table."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from spark_kafka_sink.diagnostics.text import sanitize

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers")
MAX_ROWS_PER_CHUNK = 1_000
"""Maximum number of rows to convert to Python objects at once. The objects need far more memory than Arrow columns."""

MIN_TABLE_WIDTH = 60
_MIN_VALUE_WIDTH = 20
_COLUMN_WIDTHS = {"partition": 9, "offset": 12, "timestamp": 23, "key": 16, "headers": 24}
_COLUMN_SEPARATOR = "  "
_ELLIPSIS = "..."
_NULL = "null"

Row = dict[str, Any]
RowFormatter = Callable[["pa.Table", Sequence[str]], Iterator[bytes]]


def format_text_lines(rows: pa.Table, columns: Sequence[str]) -> Iterator[bytes]:
    """Format rows as raw bytes, with tabs between columns."""
    for row in _iterate_rows(rows, columns):
        yield b"\t".join(_encode_cell(name, row[name]) for name in columns) + b"\n"


def format_json_lines(rows: pa.Table, columns: Sequence[str]) -> Iterator[bytes]:
    """Format rows as JSON with all fields. `columns` is ignored, because JSON consumers can pick fields themselves."""
    for row in _iterate_rows(rows, rows.column_names):
        row["timestamp"] = row["timestamp"].isoformat()
        row["key"], row["value"] = _bytes_to_json(row["key"]), _bytes_to_json(row["value"])
        row["headers"] = [
            {"key": header["key"], "value": _bytes_to_json(header["value"])} for header in row["headers"] or ()
        ]
        yield _escape_invisible(json.dumps(row, ensure_ascii=False)).encode() + b"\n"


def _escape_invisible(text: str) -> str:
    """Escape characters that control a terminal or change the text direction."""
    if text.isprintable():
        return text
    # JSON's escape sequence of a character is its encoding without the quotes.
    return "".join(character if character.isprintable() else json.dumps(character)[1:-1] for character in text)


class TableFormatter:
    """Formats rows as a table, with a heading above the first row. Cells that do not fit are cut and end with `...`."""

    def __init__(self) -> None:
        self._is_heading_written = False

    def __call__(self, rows: pa.Table, columns: Sequence[str]) -> Iterator[bytes]:
        widths = _compute_column_widths(columns, max(MIN_TABLE_WIDTH, shutil.get_terminal_size().columns))
        if not self._is_heading_written:
            yield _format_table_line(columns, widths)
            yield _format_table_line(["-" * width for width in widths], widths)
            self._is_heading_written = True
        for row in _iterate_rows(rows, columns):
            yield _format_table_line([_format_cell(name, row[name]) for name in columns], widths)


def _iterate_rows(rows: pa.Table, columns: Sequence[str]) -> Iterator[Row]:
    """Yield the rows as dictionaries of Python objects, converting one chunk at a time."""
    for batch in rows.select(columns).to_batches(max_chunksize=MAX_ROWS_PER_CHUNK):
        yield from batch.to_pylist()


def _encode_cell(name: str, value: Any) -> bytes:
    """Return the raw bytes of a cell. Null is empty."""
    if name == "headers":
        return b",".join(header["key"].encode() + b"=" + (header["value"] or b"") for header in value or ())
    if isinstance(value, bytes) or value is None:
        return value or b""
    return _format_cell(name, value).encode()


def _format_cell(name: str, value: Any) -> str:
    """Format a cell as text. Null is `null`, except that missing headers are empty."""
    if value is None:
        return "" if name == "headers" else _NULL
    if name == "timestamp":
        return f"{value:%Y-%m-%d %H:%M:%S}.{value.microsecond // 1000:03}"
    if name == "headers":
        return ", ".join(f"{header['key']}={_format_cell('value', header['value'])}" for header in value)
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)


def _compute_column_widths(columns: Sequence[str], table_width: int) -> list[int]:
    """Return the width of each column. The value column gets the width that the other columns leave."""
    fixed_width = sum(_COLUMN_WIDTHS.get(name, 0) for name in columns)
    separator_width = len(_COLUMN_SEPARATOR) * (len(columns) - 1)
    value_width = max(_MIN_VALUE_WIDTH, table_width - fixed_width - separator_width)
    return [_COLUMN_WIDTHS.get(name, value_width) for name in columns]


def _format_table_line(cells: Sequence[str], widths: Sequence[int]) -> bytes:
    fitted_cells = [_fit_cell(cell, width) for cell, width in zip(cells, widths, strict=True)]
    return _COLUMN_SEPARATOR.join(fitted_cells).rstrip().encode() + b"\n"


def _fit_cell(cell: str, width: int) -> str:
    """Return the cell as exactly `width` characters: padded, or cut and ended with `...`."""
    text = sanitize(cell, width + 1)
    return text.ljust(width) if len(text) <= width else text[: width - len(_ELLIPSIS)] + _ELLIPSIS


def _bytes_to_json(data: bytes | None) -> object:
    """Decode bytes to a string if they are UTF-8. Otherwise, return {"base64": ...}."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}

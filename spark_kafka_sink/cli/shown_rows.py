"""Rows of a topic as lines: text, JSON, or a table for people."""

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
ROWS_AT_ONCE = 1_000
"""As Python's objects, which take much more memory than columns."""

TABLE_WIDTH_MIN = 60
_WIDTHS = {"partition": 9, "offset": 12, "timestamp": 23, "key": 16, "headers": 24}
_NULL = "null"

Row = dict[str, Any]
Lines = Callable[["pa.Table", Sequence[str]], Iterator[bytes]]


def text_lines(rows: pa.Table, columns: Sequence[str]) -> Iterator[bytes]:
    """The bytes as they are, columns separated by tabs."""
    for row in _rows(rows, columns):
        yield b"\t".join(_as_bytes(name, row[name]) for name in columns) + b"\n"


def json_lines(rows: pa.Table, columns: Sequence[str]) -> Iterator[bytes]:
    """All of a row, whatever the columns: what reads JSON chooses itself."""
    for row in _rows(rows, rows.column_names):
        row["timestamp"] = row["timestamp"].isoformat()
        row["key"], row["value"] = _readable(row["key"]), _readable(row["value"])
        row["headers"] = [
            {"key": header["key"], "value": _readable(header["value"])} for header in row["headers"] or ()
        ]
        yield _escape_invisible(json.dumps(row, ensure_ascii=False)).encode() + b"\n"


def _escape_invisible(text: str) -> str:
    """Escape characters that a terminal would act on, or that change the direction of text."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else json.dumps(character)[1:-1] for character in text)


class TableLines:
    """A heading above the first row; what does not fit is cut, and `...` says so."""

    def __init__(self) -> None:
        self._has_heading = False

    def __call__(self, rows: pa.Table, columns: Sequence[str]) -> Iterator[bytes]:
        widths = _column_widths(columns, max(TABLE_WIDTH_MIN, shutil.get_terminal_size().columns))
        if not self._has_heading:
            yield _table_line(columns, widths)
            yield _table_line(["-" * width for width in widths], widths)
            self._has_heading = True
        for row in _rows(rows, columns):
            yield _table_line([_as_cell(name, row[name]) for name in columns], widths)


def _rows(rows: pa.Table, columns: Sequence[str]) -> Iterator[Row]:
    for part in rows.select(columns).to_batches(max_chunksize=ROWS_AT_ONCE):
        yield from part.to_pylist()


def _as_bytes(name: str, value: Any) -> bytes:
    if name == "headers":
        return b",".join(header["key"].encode() + b"=" + (header["value"] or b"") for header in value or ())
    if isinstance(value, bytes) or value is None:
        return value or b""
    return _as_cell(name, value).encode()


def _as_cell(name: str, value: Any) -> str:
    if value is None:
        return "" if name == "headers" else _NULL
    if name == "timestamp":
        return f"{value:%Y-%m-%d %H:%M:%S}.{value.microsecond // 1000:03}"
    if name == "headers":
        return ", ".join(f"{header['key']}={_as_cell('value', header['value'])}" for header in value)
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)


def _column_widths(columns: Sequence[str], width: int) -> list[int]:
    """Each has its own, and the value what is left."""
    known = sum(_WIDTHS.get(name, 0) for name in columns)
    rest = max(20, width - known - 2 * (len(columns) - 1))
    return [_WIDTHS.get(name, rest) for name in columns]


def _table_line(cells: Sequence[str], widths: Sequence[int]) -> bytes:
    fitted = [_fitted(cell, width) for cell, width in zip(cells, widths, strict=True)]
    return "  ".join(fitted).rstrip().encode() + b"\n"


def _fitted(cell: str, width: int) -> str:
    shown = sanitize(cell, width + 1)
    return shown.ljust(width) if len(shown) <= width else shown[: width - 3] + "..."


def _readable(data: bytes | None) -> object:
    """Text as text; other bytes as {"base64": ...}."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}

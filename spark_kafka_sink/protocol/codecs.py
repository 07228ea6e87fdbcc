"""How a value of each of the protocol's types lies on the wire, plain or compact (KIP-482), nullable or not.

A codec writes a value and reads it. Types of variable length begin with a length prefix:

    type                     before flexible versions        in flexible versions ("compact")
    string                   int16 length, -1 = null         unsigned varint length + 1, 0 = null
    bytes, records, array    int32 length or count, -1       unsigned varint length or count + 1, 0 = null
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.protocol.primitives import Buffer, Reader, Writer, compact_length

ZERO_UUID = UUID(int=0)
_UUIDS_REMEMBERED = 4096

# struct's letters for the types of fixed size
FIXED_FORMATS = {"bool": "?", "int8": "b", "int16": "h", "uint16": "H", "int32": "i", "int64": "q"}


class Codec(Protocol):
    bytes_min: int

    def write(self, writer: Writer, value: Any) -> None: ...
    def read(self, reader: Reader) -> Any: ...


class Prefix(NamedTuple):
    """How a length is written and read; -1 is null."""

    pack: Callable[[int], bytes]
    read: Callable[[Reader], int]
    bytes_min: int


_INT16_PREFIX = Prefix(struct.Struct(">h").pack, Reader.int16_length, 2)
_INT32_PREFIX = Prefix(struct.Struct(">i").pack, Reader.int32_length, 4)
_COMPACT_PREFIX = Prefix(compact_length, Reader.compact_length, 1)


class _Prefixed:
    """What the types of variable length have in common: a prefix, and a null that is allowed or not."""

    def __init__(self, prefix: Prefix, nullable: bool) -> None:
        self._pack_length = prefix.pack
        self._read_length = prefix.read
        self._null_length = -1 if nullable else None  # the reader refuses all other negative lengths
        self.bytes_min = prefix.bytes_min


class ScalarCodec:
    """One value of fixed size that stands alone: a tagged field."""

    def __init__(self, type_name: str) -> None:
        self._layout = struct.Struct(">" + FIXED_FORMATS[type_name])
        self.bytes_min = self._layout.size

    def write(self, writer: Writer, value: Any) -> None:
        writer.put(self._layout.pack(value))

    def read(self, reader: Reader) -> Any:
        return reader.fixed(self._layout)[0]


class UuidCodec:
    bytes_min = 16

    def write(self, writer: Writer, value: UUID) -> None:
        writer.put(value.bytes)

    def read(self, reader: Reader) -> UUID:
        return _uuid(bytes(reader.take(16)))


@lru_cache(_UUIDS_REMEMBERED)
def _uuid(data: bytes) -> UUID:
    """The ids of the same few topics come again in every answer, and a UUID is slow to make."""
    return UUID(bytes=data)


STRING_BYTES_MAX = 2**15 - 1
"""No longer string can be written in all versions of the protocol."""


def is_writable(text: str) -> bool:
    """Can it be written as a string, in every version? A text with a lone surrogate, as in some file names, cannot."""
    try:
        return len(text.encode()) <= STRING_BYTES_MAX
    except UnicodeEncodeError:
        return False


class StringCodec(_Prefixed):
    def write(self, writer: Writer, value: str | None) -> None:
        if value is None:
            writer.put(self._pack_length(-1))
        else:
            data = value.encode()
            writer.put(self._pack_length(len(data)))
            writer.put(data)

    def read(self, reader: Reader) -> str | None:
        length = self._read_length(reader)
        if length == self._null_length:
            return None
        data = reader.take(length)
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise DecodeError(f"string before byte {reader.position} is not UTF-8") from error


class BytesCodec(_Prefixed):
    def write(self, writer: Writer, value: Buffer | None) -> None:
        if value is None:
            writer.put(self._pack_length(-1))
        else:
            writer.put(self._pack_length(len(value)))
            writer.put(bytes(value))

    def read(self, reader: Reader) -> bytes | None:
        length = self._read_length(reader)
        return None if length == self._null_length else bytes(reader.take(length))


class RecordsCodec(_Prefixed):
    """Record batches: passed through as segments when written, as a view when read."""

    def write(self, writer: Writer, value: Buffer | Sequence[Buffer] | None) -> None:
        if value is None:
            writer.put(self._pack_length(-1))
        else:
            writer.splice(value if isinstance(value, (list, tuple)) else (value,), self._pack_length)

    def read(self, reader: Reader) -> memoryview | None:
        length = self._read_length(reader)
        return None if length == self._null_length else reader.take(length)


class ArrayCodec(_Prefixed):
    def __init__(self, prefix: Prefix, nullable: bool, element: Codec) -> None:
        super().__init__(prefix, nullable)
        self._element = element

    def write(self, writer: Writer, value: list[Any] | None) -> None:
        if value is None:
            writer.put(self._pack_length(-1))
            return
        writer.put(self._pack_length(len(value)))
        write = self._element.write
        for element in value:
            write(writer, element)

    def read(self, reader: Reader) -> list[Any] | None:
        count = self._read_length(reader)
        if count == 0:
            return []
        if count == self._null_length:
            return None
        reader.count(count, self._element.bytes_min)
        read = self._element.read
        return [read(reader) for _ in range(count)]


_SHORT = 8
"""Most arrays of integers are the replicas of a partition. A topic of ten thousand has thirty thousand of them."""


class FixedArrayCodec(_Prefixed):
    """An array of integers: packed and unpacked in one call."""

    def __init__(self, prefix: Prefix, nullable: bool, type_name: str) -> None:
        super().__init__(prefix, nullable)
        self._letter = FIXED_FORMATS[type_name]
        self._element_bytes = struct.calcsize(">" + self._letter)
        self._short = [struct.Struct(f">{count}{self._letter}") for count in range(_SHORT)]

    def write(self, writer: Writer, value: list[Any] | None) -> None:
        if value is None:
            writer.put(self._pack_length(-1))
        else:
            writer.put(self._pack_length(len(value)))
            writer.put(struct.pack(f">{len(value)}{self._letter}", *value))

    def read(self, reader: Reader) -> list[Any] | None:
        count = self._read_length(reader)
        if count == self._null_length:
            return None
        reader.count(count, self._element_bytes)
        layout = self._short[count] if count < _SHORT else struct.Struct(f">{count}{self._letter}")
        return list(reader.fixed(layout))


def scalar_codec(type_name: str, *, flexible: bool, nullable: bool) -> Codec:
    """The codec of a type that is neither a struct nor an array."""
    if type_name in FIXED_FORMATS:
        return ScalarCodec(type_name)
    if type_name == "uuid":
        return UuidCodec()
    if type_name == "string":
        return StringCodec(_COMPACT_PREFIX if flexible else _INT16_PREFIX, nullable)
    prefix = _COMPACT_PREFIX if flexible else _INT32_PREFIX
    return RecordsCodec(prefix, nullable) if type_name == "records" else BytesCodec(prefix, nullable)


def array_codec(element: Codec | str, *, flexible: bool, nullable: bool) -> Codec:
    """The codec of an array of a type of fixed size, given by its name, or of what another codec reads."""
    prefix = _COMPACT_PREFIX if flexible else _INT32_PREFIX
    if isinstance(element, str):
        return FixedArrayCodec(prefix, nullable, element)
    return ArrayCodec(prefix, nullable, element)

"""How a value of each of the protocol's types lies on the wire, plain or compact (KIP-482), nullable or not.

A codec knows the size of a value, writes it and reads it. Types of variable length begin with a length prefix:

    type                     before flexible versions        in flexible versions ("compact")
    string                   int16 length, -1 = null         unsigned varint length + 1, 0 = null
    bytes, records, array    int32 length or count, -1       unsigned varint length or count + 1, 0 = null
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Protocol
from uuid import UUID

from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.protocol.primitives import Buffer, Reader, Writer, unsigned_varint_size

ZERO_UUID = UUID(int=0)
_ZERO_UUID_BYTES = bytes(16)
_BUFFER_TYPES = (bytes, bytearray, memoryview)

# struct's letters for the types of fixed size
FIXED_FORMATS = {"bool": "?", "int8": "b", "int16": "h", "int32": "i", "int64": "q"}


class Codec(Protocol):
    bytes_min: int

    def size(self, value: Any) -> int: ...
    def write(self, writer: Writer, value: Any) -> None: ...
    def read(self, reader: Reader) -> Any: ...


class FixedPrefix:
    """A length as int16 or int32; -1 is null."""

    def __init__(self, letter: str) -> None:
        self._layout = struct.Struct(">" + letter)
        self.bytes_min = self._layout.size

    def size(self, length: int) -> int:
        return self.bytes_min

    def write(self, writer: Writer, length: int) -> None:
        writer.fixed(self._layout, length)

    def read(self, reader: Reader) -> int:
        length: int = reader.fixed(self._layout)[0]
        return length


class CompactPrefix:
    """A length plus one as an unsigned varint; 0 is null, here as -1."""

    bytes_min = 1

    def size(self, length: int) -> int:
        return unsigned_varint_size(length + 1)

    def write(self, writer: Writer, length: int) -> None:
        writer.unsigned_varint(length + 1)

    def read(self, reader: Reader) -> int:
        return reader.unsigned_varint() - 1


Prefix = FixedPrefix | CompactPrefix

_INT16_PREFIX = FixedPrefix("h")
_INT32_PREFIX = FixedPrefix("i")
_COMPACT_PREFIX = CompactPrefix()


class _Prefixed:
    """What the types of variable length have in common: a prefix, and a null that is allowed or not."""

    def __init__(self, prefix: Prefix, nullable: bool) -> None:
        self.prefix = prefix
        self.nullable = nullable
        self.bytes_min = prefix.bytes_min

    def read_length(self, reader: Reader) -> int:
        length = self.prefix.read(reader)
        if length < 0 and not (length == -1 and self.nullable):
            raise DecodeError(f"length {length} before byte {reader.position}")
        return length


class FixedCodec:
    """One or more neighbouring fields of fixed size; the value is a tuple."""

    def __init__(self, types: Sequence[str]) -> None:
        self._layout = struct.Struct(">" + "".join(FIXED_FORMATS[name] for name in types))
        self.bytes_min = self._layout.size

    def size(self, value: tuple[Any, ...]) -> int:
        return self.bytes_min

    def write(self, writer: Writer, value: tuple[Any, ...]) -> None:
        writer.fixed(self._layout, *value)

    def read(self, reader: Reader) -> tuple[Any, ...]:
        return reader.fixed(self._layout)


class ScalarCodec:
    """One value of fixed size that stands alone: a tagged field."""

    def __init__(self, type_name: str) -> None:
        self._layout = struct.Struct(">" + FIXED_FORMATS[type_name])
        self.bytes_min = self._layout.size

    def size(self, value: Any) -> int:
        return self.bytes_min

    def write(self, writer: Writer, value: Any) -> None:
        writer.fixed(self._layout, value)

    def read(self, reader: Reader) -> Any:
        return reader.fixed(self._layout)[0]


class UuidCodec:
    bytes_min = 16

    def size(self, value: UUID) -> int:
        return 16

    def write(self, writer: Writer, value: UUID) -> None:
        writer.raw(value.bytes)

    def read(self, reader: Reader) -> UUID:
        data = reader.take(16)
        return ZERO_UUID if data == _ZERO_UUID_BYTES else UUID(bytes=bytes(data))


class StringCodec(_Prefixed):
    def size(self, value: str | None) -> int:
        if value is None:
            return self.prefix.size(-1)
        length = len(value) if value.isascii() else len(value.encode())
        return self.prefix.size(length) + length

    def write(self, writer: Writer, value: str | None) -> None:
        if value is None:
            self.prefix.write(writer, -1)
        else:
            data = value.encode()
            self.prefix.write(writer, len(data))
            writer.raw(data)

    def read(self, reader: Reader) -> str | None:
        length = self.read_length(reader)
        if length < 0:
            return None
        data = reader.take(length)
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise DecodeError(f"string before byte {reader.position} is not UTF-8") from error


class BytesCodec(_Prefixed):
    def size(self, value: Buffer | None) -> int:
        return self.prefix.size(-1) if value is None else self.prefix.size(len(value)) + len(value)

    def write(self, writer: Writer, value: Buffer | None) -> None:
        if value is None:
            self.prefix.write(writer, -1)
        else:
            self.prefix.write(writer, len(value))
            writer.raw(value)

    def read(self, reader: Reader) -> bytes | None:
        length = self.read_length(reader)
        return None if length < 0 else bytes(reader.take(length))


class RecordsCodec(_Prefixed):
    """Record batches: passed through as segments when written, as a view when read."""

    def size(self, value: Buffer | Sequence[Buffer] | None) -> int:
        return self.prefix.size(-1 if value is None else _total(value))

    def write(self, writer: Writer, value: Buffer | Sequence[Buffer] | None) -> None:
        if value is None:
            self.prefix.write(writer, -1)
        else:
            self.prefix.write(writer, _total(value))
            writer.splice([value] if isinstance(value, _BUFFER_TYPES) else value)

    def read(self, reader: Reader) -> memoryview | None:
        length = self.read_length(reader)
        return None if length < 0 else reader.take(length)


def _total(value: Buffer | Sequence[Buffer]) -> int:
    return len(value) if isinstance(value, _BUFFER_TYPES) else sum(map(len, value))


class ArrayCodec(_Prefixed):
    def __init__(self, prefix: Prefix, nullable: bool, element: Codec) -> None:
        super().__init__(prefix, nullable)
        self._element = element

    def size(self, value: list[Any] | None) -> int:
        if value is None:
            return self.prefix.size(-1)
        return self.prefix.size(len(value)) + sum(map(self._element.size, value))

    def write(self, writer: Writer, value: list[Any] | None) -> None:
        if value is None:
            self.prefix.write(writer, -1)
            return
        self.prefix.write(writer, len(value))
        write = self._element.write
        for element in value:
            write(writer, element)

    def read(self, reader: Reader) -> list[Any] | None:
        count = self.read_length(reader)
        if count <= 0:
            return None if count < 0 else []
        reader.count(count, self._element.bytes_min)
        read = self._element.read
        return [read(reader) for _ in range(count)]


class FixedArrayCodec(_Prefixed):
    """An array of integers: packed and unpacked in one call."""

    def __init__(self, prefix: Prefix, nullable: bool, type_name: str) -> None:
        super().__init__(prefix, nullable)
        self._letter = FIXED_FORMATS[type_name]
        self._element_bytes = struct.calcsize(">" + self._letter)

    def size(self, value: list[Any] | None) -> int:
        if value is None:
            return self.prefix.size(-1)
        return self.prefix.size(len(value)) + len(value) * self._element_bytes

    def write(self, writer: Writer, value: list[Any] | None) -> None:
        if value is None:
            self.prefix.write(writer, -1)
        else:
            self.prefix.write(writer, len(value))
            writer.raw(struct.pack(f">{len(value)}{self._letter}", *value))

    def read(self, reader: Reader) -> list[Any] | None:
        count = self.read_length(reader)
        if count < 0:
            return None
        reader.count(count, self._element_bytes)
        return list(struct.unpack(f">{count}{self._letter}", reader.take(count * self._element_bytes)))


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

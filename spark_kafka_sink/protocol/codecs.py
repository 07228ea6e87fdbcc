"""Codecs for the protocol's types, each in plain or compact encoding (KIP-482), and nullable or not.

Types of variable length begin with a length prefix:

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
from spark_kafka_sink.protocol.primitives import Buffer, Reader, Writer, encode_compact_length

ZERO_UUID = UUID(int=0)
_UUID_BYTES = 16
_UUID_CACHE_SIZE = 4096

FIXED_SIZE_FORMATS = {"bool": "?", "int8": "b", "int16": "h", "uint16": "H", "int32": "i", "int64": "q"}
"""`struct` format characters, by type name."""


class FieldCodec(Protocol):
    """Encodes and decodes values of one type."""

    min_bytes: int
    """Size of the shortest encoded value."""

    def write(self, writer: Writer, value: Any) -> None: ...
    def read(self, reader: Reader) -> Any: ...


class LengthPrefix(NamedTuple):
    """Encoding of a length or element count. A length of -1 stands for null."""

    encode: Callable[[int], bytes]
    read: Callable[[Reader], int]
    min_bytes: int


_INT16_PREFIX = LengthPrefix(struct.Struct(">h").pack, Reader.read_int16_length, min_bytes=2)
_INT32_PREFIX = LengthPrefix(struct.Struct(">i").pack, Reader.read_int32_length, min_bytes=4)
_COMPACT_PREFIX = LengthPrefix(encode_compact_length, Reader.read_compact_length, min_bytes=1)


class _LengthPrefixedCodec:
    """Base class for types of variable length. Decoding rejects null unless the codec is nullable."""

    def __init__(self, prefix: LengthPrefix, nullable: bool) -> None:
        self._encode_length = prefix.encode
        self._read_length = prefix.read
        # Reader rejects all other negative lengths, and -1 as well if the codec is not nullable.
        self._null_length = -1 if nullable else None
        self.min_bytes = prefix.min_bytes


class ScalarCodec:
    """Codec for a single fixed-size value, for example in a tagged field."""

    def __init__(self, type_name: str) -> None:
        self._layout = struct.Struct(">" + FIXED_SIZE_FORMATS[type_name])
        self.min_bytes = self._layout.size

    def write(self, writer: Writer, value: Any) -> None:
        writer.put(self._layout.pack(value))

    def read(self, reader: Reader) -> Any:
        return reader.unpack(self._layout)[0]


class UuidCodec:
    min_bytes = _UUID_BYTES

    def write(self, writer: Writer, value: UUID) -> None:
        writer.put(value.bytes)

    def read(self, reader: Reader) -> UUID:
        return _parse_uuid(bytes(reader.read_view(_UUID_BYTES)))


# Responses repeat the ids of a few topics, and UUID() is slow.
@lru_cache(_UUID_CACHE_SIZE)
def _parse_uuid(data: bytes) -> UUID:
    return UUID(bytes=data)


MAX_STRING_BYTES = 2**15 - 1
"""Maximum size, in UTF-8, of a string that can be encoded in every protocol version."""


def is_encodable_string(text: str) -> bool:
    """Return whether the text can be encoded as a string in every protocol version.

    Text cannot be encoded if it is too long or contains a lone surrogate, as some file names do.
    """
    try:
        return len(text.encode()) <= MAX_STRING_BYTES
    except UnicodeEncodeError:
        return False


class StringCodec(_LengthPrefixedCodec):
    def write(self, writer: Writer, value: str | None) -> None:
        if value is None:
            writer.put(self._encode_length(-1))
        else:
            data = value.encode()
            writer.put(self._encode_length(len(data)))
            writer.put(data)

    def read(self, reader: Reader) -> str | None:
        length = self._read_length(reader)
        if length == self._null_length:
            return None
        data = reader.read_view(length)
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise DecodeError(f"the string that ends at byte {reader.position} is not valid UTF-8") from error


class BytesCodec(_LengthPrefixedCodec):
    def write(self, writer: Writer, value: Buffer | None) -> None:
        if value is None:
            writer.put(self._encode_length(-1))
        else:
            writer.put(self._encode_length(len(value)))
            writer.put(bytes(value))

    def read(self, reader: Reader) -> bytes | None:
        length = self._read_length(reader)
        return None if length == self._null_length else bytes(reader.read_view(length))


class RecordsCodec(_LengthPrefixedCodec):
    """Codec for record batches, which are written as segments and read as a view, without copying."""

    def write(self, writer: Writer, value: Buffer | Sequence[Buffer] | None) -> None:
        if value is None:
            writer.put(self._encode_length(-1))
        else:
            writer.put_payload(value if isinstance(value, (list, tuple)) else (value,), self._encode_length)

    def read(self, reader: Reader) -> memoryview | None:
        length = self._read_length(reader)
        return None if length == self._null_length else reader.read_view(length)


class ArrayCodec(_LengthPrefixedCodec):
    """Codec for arrays whose elements have their own codec."""

    def __init__(self, prefix: LengthPrefix, nullable: bool, element: FieldCodec) -> None:
        super().__init__(prefix, nullable)
        self._element = element

    def write(self, writer: Writer, value: list[Any] | None) -> None:
        if value is None:
            writer.put(self._encode_length(-1))
            return
        writer.put(self._encode_length(len(value)))
        write = self._element.write
        for element in value:
            write(writer, element)

    def read(self, reader: Reader) -> list[Any] | None:
        count = self._read_length(reader)
        if count == 0:
            return []
        if count == self._null_length:
            return None
        reader.reserve_elements(count, self._element.min_bytes)
        read = self._element.read
        return [read(reader) for _ in range(count)]


_CACHED_LAYOUTS = 8
"""Number of layouts to compile in advance, for arrays of 0 to 7 elements.

Most integer arrays list a partition's replicas. They are short, and the metadata of a large topic has many of them.
"""


class FixedArrayCodec(_LengthPrefixedCodec):
    """Codec for arrays of fixed-size values. Each array is packed or unpacked in one call."""

    def __init__(self, prefix: LengthPrefix, nullable: bool, type_name: str) -> None:
        super().__init__(prefix, nullable)
        self._format = FIXED_SIZE_FORMATS[type_name]
        self._element_size = struct.calcsize(">" + self._format)
        self._layouts = [struct.Struct(f">{count}{self._format}") for count in range(_CACHED_LAYOUTS)]

    def write(self, writer: Writer, value: list[Any] | None) -> None:
        if value is None:
            writer.put(self._encode_length(-1))
        else:
            writer.put(self._encode_length(len(value)))
            writer.put(struct.pack(f">{len(value)}{self._format}", *value))

    def read(self, reader: Reader) -> list[Any] | None:
        count = self._read_length(reader)
        if count == self._null_length:
            return None
        reader.reserve_elements(count, self._element_size)
        layout = self._layouts[count] if count < _CACHED_LAYOUTS else struct.Struct(f">{count}{self._format}")
        return list(reader.unpack(layout))


def build_scalar_codec(type_name: str, *, flexible: bool, nullable: bool) -> FieldCodec:
    """Build the codec for a type that is neither a struct nor an array. Fixed-size types are never nullable."""
    if type_name in FIXED_SIZE_FORMATS:
        return ScalarCodec(type_name)
    if type_name == "uuid":
        return UuidCodec()
    if type_name == "string":
        return StringCodec(_COMPACT_PREFIX if flexible else _INT16_PREFIX, nullable)
    prefix = _COMPACT_PREFIX if flexible else _INT32_PREFIX
    return RecordsCodec(prefix, nullable) if type_name == "records" else BytesCodec(prefix, nullable)


def build_array_codec(element: FieldCodec | str, *, flexible: bool, nullable: bool) -> FieldCodec:
    """Build the codec for an array.

    `element`: the type name if the elements have a fixed size, otherwise their codec.
    """
    prefix = _COMPACT_PREFIX if flexible else _INT32_PREFIX
    if isinstance(element, str):
        return FixedArrayCodec(prefix, nullable, element)
    return ArrayCodec(prefix, nullable, element)

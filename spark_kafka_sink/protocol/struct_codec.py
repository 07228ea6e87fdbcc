"""Struct codecs: a write and a read function, generated from a struct's declaration for one version.

Like the methods of a `dataclass`, the functions are compiled once, from Python source. No declarations are looked up at
run time: adjacent fixed-size fields are packed and unpacked together, every other field is one call to its codec, and
fields that the version lacks are left out. For example, PartitionProduceResponse in version 9 becomes

    def write(writer, value):
        put = writer.put
        put(_pack_0(value.index, value.error_code, value.base_offset, ...))
        _write_2(writer, value.record_errors)
        _write_4(writer, value.error_message)
        if value.unknown_tags: _write_tagged_fields(writer, value)
        else: put(_no_tagged_fields)

    def read(reader):
        value = _new(_type)
        value.index, value.error_code, value.base_offset, ... = reader.unpack(_layout_1)
        value.record_errors = _read_3(reader)
        value.error_message = _read_5(reader)
        value.current_leader = None
        value.unknown_tags = None
        count = reader.read_unsigned_varint()
        if count: _read_tagged_fields(reader, count, value)
        return value

The numbers in names such as `_write_2` only make the names unique.

A decoded struct is created without calling `__init__`, which would assign every field twice. The generated source
contains field names from our own declarations, but never data from a peer.

In flexible versions, a struct ends with tagged fields. They are rare, so ordinary methods write and read them:

    number of fields; then, in ascending order of tags: tag, size in bytes, value        (numbers: unsigned varints)
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from spark_kafka_sink.errors import DecodeError, UnsupportedVersionError
from spark_kafka_sink.protocol.codecs import FIXED_SIZE_FORMATS, FieldCodec, build_array_codec, build_scalar_codec
from spark_kafka_sink.protocol.primitives import Reader, Writer, encode_unsigned_varint
from spark_kafka_sink.protocol.schema import FieldSpec, Struct, get_field_specs

WriteFunction = Callable[[Writer, Any], None]
ReadFunction = Callable[[Reader], Any]


class _TaggedField(NamedTuple):
    name: str
    codec: FieldCodec


class StructCodec:
    """The codec for one version of a struct.

    `flexible`: whether this version of the message has compact lengths and tagged fields.
    """

    write: WriteFunction
    read: ReadFunction

    def __init__(self, struct_type: type[Struct], version: int, flexible: bool) -> None:
        self._type = struct_type
        self._version = version
        self._flexible = flexible
        self._tagged_fields: dict[int, _TaggedField] = {}
        self._defaults = struct_type()
        builder = _SourceBuilder(struct_type)
        for name, spec in get_field_specs(struct_type).items():
            self._add_field(name, spec, builder)
        if flexible:
            tagged_defaults = {name: getattr(self._defaults, name) for name, _ in self._tagged_fields.values()}
            builder.add_tagged_fields(tagged_defaults, self._write_tagged_fields, self._read_tagged_fields)
        self.write, self.read = builder.compile()
        self.min_bytes = builder.min_bytes

    def _add_field(self, name: str, spec: FieldSpec, builder: _SourceBuilder) -> None:
        """Add a field to the generated source.

        If this version lacks the field, the write function rejects any value but the default. If the field is
        ignorable, the write function omits the value instead.
        """
        if self._version not in spec.versions:
            if not spec.ignorable:
                default = getattr(self._defaults, name)
                builder.add_error_if(name, "!=", default, self._build_error_message(f"{name} does not exist"))
            return
        if spec.nullable_versions is not None and self._version not in spec.nullable_versions:
            # Other versions allow null, so the value may be None.
            builder.add_error_if(name, "is", None, self._build_error_message(f"{name} must not be null"))
        if spec.tag is not None:
            self._tagged_fields[spec.tag] = _TaggedField(name, self._build_codec(spec))
        elif spec.type_name in FIXED_SIZE_FORMATS:
            builder.add_fixed_size_field(name, spec.type_name)
        else:
            builder.add_field(name, self._build_codec(spec))

    def _build_error_message(self, problem: str) -> str:
        """Return a message such as "FetchTopic.topic_id does not exist in version 12"."""
        return f"{self._type.__name__}.{problem} in version {self._version}"

    def _build_codec(self, spec: FieldSpec) -> FieldCodec:
        """Build the codec for a field's value. The elements of an array are never null."""
        nullable = spec.nullable_versions is not None and self._version in spec.nullable_versions
        if spec.type_name == "struct":
            assert isinstance(spec.inner_type, type)
            return get_struct_codec(spec.inner_type, self._version, self._flexible)
        if spec.type_name != "array":
            return build_scalar_codec(spec.type_name, flexible=self._flexible, nullable=nullable)
        if isinstance(spec.inner_type, type):
            struct_element = get_struct_codec(spec.inner_type, self._version, self._flexible)
            return build_array_codec(struct_element, flexible=self._flexible, nullable=nullable)
        assert spec.inner_type is not None
        if spec.inner_type in FIXED_SIZE_FORMATS:  # such an array is packed and unpacked in one call
            return build_array_codec(spec.inner_type, flexible=self._flexible, nullable=nullable)
        element = build_scalar_codec(spec.inner_type, flexible=self._flexible, nullable=False)
        return build_array_codec(element, flexible=self._flexible, nullable=nullable)

    def _write_tagged_fields(self, writer: Writer, value: Struct) -> None:
        """Write the unknown tagged fields, and the declared ones whose value differs from the default."""
        encoded_values = dict(value.unknown_tags or {})
        for tag, (name, codec) in self._tagged_fields.items():
            field_value = getattr(value, name)
            if field_value != getattr(self._defaults, name):
                encoded_values[tag] = _encode_value(codec, field_value)
        writer.put(encode_unsigned_varint(len(encoded_values)))
        for tag, data in sorted(encoded_values.items()):
            writer.put(encode_unsigned_varint(tag) + encode_unsigned_varint(len(data)) + data)

    def _read_tagged_fields(self, reader: Reader, count: int, value: Struct) -> None:
        """Read `count` tagged fields into `value`. Those that are not declared are kept in `unknown_tags`."""
        reader.reserve_elements(count, min_element_bytes=2)  # one byte each for the tag and the size
        unknown_tags: dict[int, bytes] = {}
        for _ in range(count):
            tag = reader.read_unsigned_varint()
            size = reader.read_unsigned_varint()
            if tag not in self._tagged_fields:
                unknown_tags[tag] = bytes(reader.read_view(size))
                continue
            name, codec = self._tagged_fields[tag]
            setattr(value, name, _read_tagged_value(reader, size, codec))
        if unknown_tags:
            value.unknown_tags = unknown_tags


_codecs: dict[tuple[type[Struct], int, bool], StructCodec] = {}
"""Codecs by (struct type, version, whether the version is flexible). If two threads build the same codec concurrently,
either result may be kept."""


def get_struct_codec(struct_type: type[Struct], version: int, flexible: bool) -> StructCodec:
    """Return the codec for a version of a struct, building it on first use. Thread-safe."""
    key = (struct_type, version, flexible)
    codec = _codecs.get(key)
    if codec is None:
        codec = _codecs[key] = StructCodec(struct_type, version, flexible)
    return codec


class _SourceBuilder:
    """Builds the source of a codec's two functions. Fields must be added in the order in which they are encoded."""

    def __init__(self, struct_type: type[Any]) -> None:
        self._type = struct_type
        self._namespace: dict[str, Any] = {
            "_new": object.__new__,
            "_type": struct_type,
            "_VersionError": UnsupportedVersionError,
        }  # global names in the generated source
        self._write_lines: list[str] = ["put = writer.put"]
        self._read_lines: list[str] = []
        self._read_tag_lines: list[str] = []
        self._read_fields: list[str] = []  # names of the untagged fields that the read function assigns
        self._fixed_size_run: dict[str, str] = {}  # adjacent fixed-size fields not yet in the source: name -> format
        self.min_bytes = 0  # size of the shortest encoded struct

    def add_error_if(self, name: str, operator: str, operand: object, message: str) -> None:
        """Make the write function raise UnsupportedVersionError if `value.<name> <operator> <operand>` is true."""
        condition = f"value.{name} {operator} {self._bind('operand', operand)}"
        self._write_lines.append(f"if {condition}: raise _VersionError({self._bind('message', message)})")

    def add_fixed_size_field(self, name: str, type_name: str) -> None:
        """Add a field to the current run of fixed-size fields, which are packed and unpacked together."""
        self._fixed_size_run[name] = FIXED_SIZE_FORMATS[type_name]

    def add_field(self, name: str, codec: FieldCodec) -> None:
        """Add a field that has its own codec."""
        self._end_fixed_size_run()
        self._write_lines.append(f"{self._bind('write', codec.write)}(writer, value.{name})")
        self._read_lines.append(f"value.{name} = {self._bind('read', codec.read)}(reader)")
        self._read_fields.append(name)
        self.min_bytes += codec.min_bytes

    def add_tagged_fields(
        self, defaults: dict[str, object], write: WriteFunction, read: Callable[[Reader, int, Any], None]
    ) -> None:
        """Add the tagged fields at the end of the struct. Must be called last.

        `defaults`: default values by field name. A field with its default value is not written.
        `write`: writes the tagged fields. Called only if there are any to write.
        `read`: reads the tagged fields. Called only if the encoded struct has any.
        """
        self._end_fixed_size_run()
        self.min_bytes += 1
        self._namespace |= {"_write_tagged_fields": write, "_read_tagged_fields": read, "_no_tagged_fields": b"\0"}
        differences = [f"value.{name} != {self._bind('default', default)}" for name, default in defaults.items()]
        self._write_lines += [
            f"if {' or '.join(['value.unknown_tags', *differences])}: _write_tagged_fields(writer, value)",
            "else: put(_no_tagged_fields)",
        ]
        self._read_tag_lines = [
            "count = reader.read_unsigned_varint()",
            "if count: _read_tagged_fields(reader, count, value)",
        ]

    def compile(self) -> tuple[WriteFunction, ReadFunction]:
        """Compile the source. Return the write function and the read function."""
        self._end_fixed_size_run()
        read_lines = [
            "value = _new(_type)",
            *self._read_lines,
            *self._build_default_lines(),
            *self._read_tag_lines,
            "return value",
        ]
        source = _format_function("write(writer, value)", self._write_lines)
        source += _format_function("read(reader)", read_lines)
        exec(compile(source, f"<{self._type.__name__}>", "exec"), self._namespace)
        return self._namespace["write"], self._namespace["read"]

    def _end_fixed_size_run(self) -> None:
        """Add the collected run of fixed-size fields, if any, to both functions."""
        if not self._fixed_size_run:
            return
        layout = struct.Struct(">" + "".join(self._fixed_size_run.values()))
        values = ", ".join(f"value.{name}" for name in self._fixed_size_run)
        self._write_lines.append(f"put({self._bind('pack', layout.pack)}({values}))")
        # The comma after the names also unpacks a tuple of a single value.
        self._read_lines.append(f"{values}, = reader.unpack({self._bind('layout', layout)})")
        self._read_fields.extend(self._fixed_size_run)
        self.min_bytes += layout.size
        self._fixed_size_run.clear()

    def _build_default_lines(self) -> list[str]:
        """Build the lines that assign defaults to all fields not read so far, including tagged fields."""
        lines = []
        for field in dataclasses.fields(self._type):
            if field.name in self._read_fields:
                continue
            if field.default is None:
                default = "None"
            elif field.default_factory is dataclasses.MISSING:
                default = self._bind("default", field.default)
            else:
                default = "[]" if field.default_factory is list else f"{self._bind('default', field.default_factory)}()"
            lines.append(f"value.{field.name} = {default}")
        return lines

    def _bind(self, prefix: str, value: object) -> str:
        """Make a value available to the generated source. Return its name there."""
        name = f"_{prefix}_{len(self._namespace)}"
        self._namespace[name] = value
        return name


def _format_function(signature: str, lines: Collection[str]) -> str:
    return f"def {signature}:\n" + "".join(f"    {line}\n" for line in lines)


def _encode_value(codec: FieldCodec, value: object) -> bytes:
    writer = Writer()
    codec.write(writer, value)
    return b"".join(writer.to_segments())


def _read_tagged_value(reader: Reader, size: int, codec: FieldCodec) -> Any:
    """Read a tagged field's value. Raise DecodeError unless its encoded size is exactly `size`."""
    if size > reader.remaining_bytes:
        raise DecodeError(
            f"expected a tagged field of {size} bytes at byte {reader.position}, but only {reader.remaining_bytes} "
            "remain"
        )
    # Let the reader end with the value, so that the codec cannot read the bytes after it.
    outer_end, reader.end = reader.end, reader.position + size
    value = codec.read(reader)
    if reader.position != reader.end:
        raise DecodeError(
            f"the tagged field of {size} bytes ends at byte {reader.end}, but its value ends at byte {reader.position}"
        )
    reader.end = outer_end
    return value

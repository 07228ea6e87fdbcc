"""How one struct lies on the wire in one version: a pair of functions, written from its declaration and compiled once.

Python compiles them, as it does for `dataclass`. So nothing is looked up for each message: neighbouring fields of fixed
size are packed and unpacked together, each other field is one call of its codec, and what the version lacks does not
appear. PartitionProduceResponse in version 9 becomes

    def write(writer, value):
        put = writer.put
        put(_pack_0(value.index, value.error_code, value.base_offset, ...))
        _write_2(writer, value.record_errors)
        _write_4(writer, value.error_message)
        if value.unknown_tags: _write_tags(writer, value)
        else: put(_no_tags)

    def read(reader):
        value = _make(_type)
        value.index, value.error_code, value.base_offset, ... = reader.fixed(_layout_1)
        value.record_errors = _read_3(reader)
        value.error_message = _read_5(reader)
        value.current_leader = None
        value.unknown_tags = None
        tags = reader.unsigned_varint()
        if tags: _read_tags(reader, tags, value)
        return value

A struct that is read is made without its `__init__`, which would take each field by name once more: all are set here.
The names of fields come from our own declarations, never from the wire.

What is rare is not generated: flexible versions end with tagged fields, nearly always none.

    number of tags, then for each, in rising order: tag, size in bytes, value       all numbers unsigned varints
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from spark_kafka_sink.errors import DecodeError, UnsupportedVersionError
from spark_kafka_sink.protocol.codecs import FIXED_FORMATS, Codec, array_codec, scalar_codec
from spark_kafka_sink.protocol.primitives import Reader, Writer, unsigned_varint
from spark_kafka_sink.protocol.schema import FieldSpec, Struct, field_specs

Write = Callable[[Writer, Any], None]
Read = Callable[[Reader], Any]


class _Tagged(NamedTuple):
    name: str
    codec: Codec


class StructCodec:
    """Writes and reads one struct in one version."""

    write: Write
    read: Read

    def __init__(self, struct_type: type[Struct], version: int, flexible: bool) -> None:
        self._type = struct_type
        self._version = version
        self._flexible = flexible
        self._tagged: dict[int, _Tagged] = {}
        self._defaults = struct_type()
        code = _Code(struct_type)
        for name, spec in field_specs(struct_type).items():
            self._lay_out(name, spec, code)
        if flexible:
            tagged = {name: getattr(self._defaults, name) for name, _ in self._tagged.values()}
            code.tags(tagged, self._write_tags, self._read_tags)
        self.write, self.read = code.compile()
        self.bytes_min = code.bytes_min

    def _lay_out(self, name: str, spec: FieldSpec, code: _Code) -> None:
        if self._version not in spec.versions:
            if not spec.ignorable:
                default = getattr(self._defaults, name)
                code.refuse(name, "!=", default, self._words(f"{name} does not exist"))
            return
        if spec.nullable is not None and self._version not in spec.nullable:
            code.refuse(name, "is", None, self._words(f"{name} must not be null"))
        if spec.tag is not None:
            self._tagged[spec.tag] = _Tagged(name, self._codec(spec))
        elif spec.kind in FIXED_FORMATS:
            code.fixed(name, spec.kind)
        else:
            code.field(name, self._codec(spec))

    def _words(self, words: str) -> str:
        return f"{self._type.__name__}.{words} in version {self._version}"

    def _codec(self, spec: FieldSpec) -> Codec:
        nullable = spec.nullable is not None and self._version in spec.nullable
        if spec.kind == "struct":
            assert isinstance(spec.element, type)
            return struct_codec(spec.element, self._version, self._flexible)
        if spec.kind != "array":
            return scalar_codec(spec.kind, flexible=self._flexible, nullable=nullable)
        if isinstance(spec.element, type):
            struct_element = struct_codec(spec.element, self._version, self._flexible)
            return array_codec(struct_element, flexible=self._flexible, nullable=nullable)
        assert spec.element is not None
        if spec.element in FIXED_FORMATS:
            return array_codec(spec.element, flexible=self._flexible, nullable=nullable)
        element = scalar_codec(spec.element, flexible=self._flexible, nullable=False)
        return array_codec(element, flexible=self._flexible, nullable=nullable)

    # --- tagged fields

    def _write_tags(self, writer: Writer, value: Struct) -> None:
        """The known ones that have another value than their default, and those that we do not know."""
        data = dict(value.unknown_tags or {})
        for tag, (name, codec) in self._tagged.items():
            field_value = getattr(value, name)
            if field_value != getattr(self._defaults, name):
                data[tag] = _encoded(codec, field_value)
        writer.put(unsigned_varint(len(data)))
        for tag in sorted(data):
            writer.put(unsigned_varint(tag) + unsigned_varint(len(data[tag])) + data[tag])

    def _read_tags(self, reader: Reader, count: int, value: Struct) -> None:
        reader.count(count, 2)
        unknown: dict[int, bytes] = {}
        for _ in range(count):
            tag = reader.unsigned_varint()
            size = reader.unsigned_varint()
            if tag not in self._tagged:
                unknown[tag] = bytes(reader.take(size))
                continue
            name, codec = self._tagged[tag]
            setattr(value, name, _read_exactly(reader, size, codec))
        if unknown:
            value.unknown_tags = unknown


_codecs: dict[tuple[type[Struct], int, bool], StructCodec] = {}  # two threads may both make one: the two are equal


def struct_codec(struct_type: type[Struct], version: int, flexible: bool) -> StructCodec:
    key = (struct_type, version, flexible)
    codec = _codecs.get(key)
    if codec is None:
        codec = _codecs[key] = StructCodec(struct_type, version, flexible)
    return codec


class _Code:
    """The source of both functions. Add the fields in the order of the wire, then compile."""

    def __init__(self, struct_type: type[Any]) -> None:
        self._type = struct_type
        self._names: dict[str, Any] = {
            "_make": object.__new__,
            "_type": struct_type,
            "_refusal": UnsupportedVersionError,
        }  # what the code refers to
        self._write: list[str] = ["put = writer.put"]
        self._read: list[str] = []
        self._read_last: list[str] = []
        self._fields: list[str] = []
        self._run: dict[str, str] = {}  # fields of fixed size since the last other one, and struct's letters
        self.bytes_min = 0

    def refuse(self, name: str, operator: str, operand: object, words: str) -> None:
        """Refuse to write a struct whose field is so."""
        error = self._bind("words", words)
        self._write.append(f"if value.{name} {operator} {self._bind('operand', operand)}: raise _refusal({error})")

    def fixed(self, name: str, kind: str) -> None:
        """A field of a type of fixed size."""
        self._run[name] = FIXED_FORMATS[kind]

    def field(self, name: str, codec: Codec) -> None:
        """A field of any other type."""
        self._end_run()
        self._write.append(f"{self._bind('write', codec.write)}(writer, value.{name})")
        self._read.append(f"value.{name} = {self._bind('read', codec.read)}(reader)")
        self._fields.append(name)
        self.bytes_min += codec.bytes_min

    def tags(self, tagged: dict[str, object], write_tags: Write, read_tags: Callable[[Reader, int, Any], None]) -> None:
        """End with tagged fields, here by name with their defaults, which are not written."""
        self._end_run()
        self.bytes_min += 1
        self._names |= {"_write_tags": write_tags, "_read_tags": read_tags, "_no_tags": b"\0"}
        worth_writing = [f"value.{name} != {self._bind('default', default)}" for name, default in tagged.items()]
        self._write += [
            f"if {' or '.join(['value.unknown_tags', *worth_writing])}: _write_tags(writer, value)",
            "else: put(_no_tags)",
        ]
        self._read_last = ["tags = reader.unsigned_varint()", "if tags: _read_tags(reader, tags, value)"]

    def compile(self) -> tuple[Write, Read]:
        self._end_run()
        read = ["value = _make(_type)", *self._read, *self._defaults(), *self._read_last, "return value"]
        source = _function("write(writer, value)", self._write) + _function("read(reader)", read)
        exec(compile(source, f"<{self._type.__name__}>", "exec"), self._names)
        return self._names["write"], self._names["read"]

    def _end_run(self) -> None:
        if not self._run:
            return
        layout = struct.Struct(">" + "".join(self._run.values()))
        values = ", ".join(f"value.{name}" for name in self._run)
        self._write.append(f"put({self._bind('pack', layout.pack)}({values}))")
        self._read.append(f"{values}, = reader.fixed({self._bind('layout', layout)})")
        self._fields.extend(self._run)
        self.bytes_min += layout.size
        self._run.clear()

    def _defaults(self) -> list[str]:
        """Give the fields that were not read their defaults; tags that are there come afterwards."""
        lines = []
        for field in dataclasses.fields(self._type):
            if field.name in self._fields:
                continue
            if field.default is None:
                default = "None"
            elif field.default_factory is dataclasses.MISSING:
                default = self._bind("default", field.default)
            else:
                default = "[]" if field.default_factory is list else f"{self._bind('default', field.default_factory)}()"
            lines.append(f"value.{field.name} = {default}")
        return lines

    def _bind(self, kind: str, thing: object) -> str:
        name = f"_{kind}_{len(self._names)}"
        self._names[name] = thing
        return name


def _function(signature: str, lines: Collection[str]) -> str:
    return f"def {signature}:\n" + "".join(f"    {line}\n" for line in lines)


def _encoded(codec: Codec, value: object) -> bytes:
    writer = Writer()
    codec.write(writer, value)
    return b"".join(writer.segments())


def _read_exactly(reader: Reader, size: int, codec: Codec) -> Any:
    """A tagged value, which must fill the size that it announces."""
    if size > reader.remaining:
        raise DecodeError(f"tag of {size} bytes at byte {reader.position}, {reader.remaining} are left")
    outer_end, reader.end = reader.end, reader.position + size
    value = codec.read(reader)
    if reader.position != reader.end:
        raise DecodeError(f"tag of {size} bytes ends at byte {reader.end}, its value at {reader.position}")
    reader.end = outer_end
    return value

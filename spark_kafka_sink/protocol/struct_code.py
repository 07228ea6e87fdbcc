"""The code of one struct in one version: two functions, written from its declaration and compiled, as `dataclass` does.

Nothing is left to be looked up for each message: neighbouring fields of fixed size are packed and unpacked together,
each other field is one call of its codec, and what the version lacks does not appear. PartitionProduceResponse in
version 9 becomes

    def write(writer, value):
        put = writer.put
        put(_pack_0(value.index, value.error_code, value.base_offset, ...))
        _write_2(writer, value.record_errors)
        _write_4(writer, value.error_message)
        if value.unknown_tags: _write_tags(writer, value)
        else: put(_no_tags)

    def read(reader):
        value = _make(_type)
        if reader.end - reader.position >= _size:
            value.index, value.error_code, value.base_offset, ..., ending = _unpack(reader.buffer, reader.position)
            if ending == _usual:
                reader.position += _size
                value.record_errors = []
                value.error_message = None
                value.current_leader = None
                value.unknown_tags = None
                return value
        value.index, value.error_code, value.base_offset, ... = reader.fixed(_layout_1)
        value.record_errors = _read_3(reader)
        value.error_message = _read_5(reader)
        value.current_leader = None
        value.unknown_tags = None
        tags = reader.unsigned_varint()
        if tags: _read_tags(reader, tags, value)
        return value

The first part is for structs of fixed fields, after which two or more others come: arrays of errors, messages, tags. Of
a long answer nearly all structs end alike, with nothing in them. So these bytes are compared as a whole.

A struct that is read is made without its `__init__`, which would take each field by name once more: all are set here.

The names of fields come from our own declarations, never from the wire.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Collection
from typing import Any

from spark_kafka_sink.errors import UnsupportedVersionError
from spark_kafka_sink.protocol.codecs import FIXED_FORMATS, Codec
from spark_kafka_sink.protocol.primitives import Reader, Writer

Write = Callable[[Writer, Any], None]
Read = Callable[[Reader], Any]
ReadTags = Callable[[Reader, int, Any], None]


class StructCode:
    """Add the fields in the order of the wire, then compile."""

    def __init__(self, struct_type: type[Any]) -> None:
        self._type = struct_type
        self._names: dict[str, Any] = {
            "_make": object.__new__,
            "_type": struct_type,
            "_refusal": UnsupportedVersionError,
        }  # what the code refers to
        self._write: list[str] = ["put = writer.put"]
        self._read: list[str] = []
        self._fields: list[str] = []
        self._run: dict[str, str] = {}  # fields of fixed size since the last other one, and struct's letters
        self._first_run: dict[str, str] = {}  # if the struct begins with one
        self._rest: list[bytes | None] = []  # each later field as it is usually written; None: it has no usual form
        self.bytes_min = 0

    def refuse(self, name: str, operator: str, operand: object, words: str) -> None:
        """Refuse to write a struct whose field is so."""
        error = self._bind("words", words)
        self._write.append(f"if value.{name} {operator} {self._bind('operand', operand)}: raise _refusal({error})")

    def fixed(self, name: str, kind: str) -> None:
        """A field of a type of fixed size."""
        self._run[name] = FIXED_FORMATS[kind]

    def field(self, name: str, codec: Codec, usual: bytes | None) -> None:
        """A field of any other type. `usual`: its default as it is written, if that may be."""
        self._end_run()
        self._rest.append(usual)
        self._write.append(f"{self._bind('write', codec.write)}(writer, value.{name})")
        self._read.append(f"value.{name} = {self._bind('read', codec.read)}(reader)")
        self._fields.append(name)
        self.bytes_min += codec.bytes_min

    def compile(self) -> tuple[Write, Read]:
        """Of a struct without tagged fields."""
        self._end_run()
        return self._compiled(
            self._write, ["value = _make(_type)", *self._read, *self._defaults_but(self._fields), "return value"]
        )

    def compile_with_tags(
        self, tagged: dict[str, object], write_tags: Write, read_tags: ReadTags
    ) -> tuple[Write, Read]:
        """Of one that ends with tagged fields, here by name with their defaults, which are not written."""
        self._end_run()
        self.bytes_min += 1
        self._names |= {"_write_tags": write_tags, "_read_tags": read_tags, "_no_tags": b"\0"}
        worth_writing = [f"value.{name} != {self._bind('default', default)}" for name, default in tagged.items()]
        write = [
            *self._write,
            f"if {' or '.join(['value.unknown_tags', *worth_writing])}: _write_tags(writer, value)",
            "else: put(_no_tags)",
        ]
        read = [
            "value = _make(_type)",
            *self._read_usual(),
            *self._read,
            *self._defaults_but(self._fields),
            "tags = reader.unsigned_varint()",
            "if tags: _read_tags(reader, tags, value)",
            "return value",
        ]
        return self._compiled(write, read)

    def _read_usual(self) -> list[str]:
        """Read the first run and, if it is what usually comes, all that follows at once."""
        known = [usual for usual in self._rest if usual is not None]
        if not self._first_run or len(known) < max(2, len(self._rest)):
            return []
        usual = b"".join([*known, b"\0"])
        layout = struct.Struct(f">{''.join(self._first_run.values())}{len(usual)}s")
        unpack = self._bind("unpack", layout.unpack_from)
        return [
            f"if reader.end - reader.position >= {layout.size}:",
            f"    {_targets(self._first_run)}ending = {unpack}(reader.buffer, reader.position)",
            f"    if ending == {self._bind('usual', usual)}:",
            f"        reader.position += {layout.size}",
            *(f"        {line}" for line in self._defaults_but(self._first_run)),
            "        return value",
        ]

    def _end_run(self) -> None:
        if not self._run:
            return
        if self._fields:
            self._rest.append(None)
        else:
            self._first_run = dict(self._run)
        layout = struct.Struct(">" + "".join(self._run.values()))
        self._write.append(
            f"put({self._bind('pack', layout.pack)}({', '.join(f'value.{name}' for name in self._run)}))"
        )
        self._read.append(f"{_targets(self._run)}= reader.fixed({self._bind('layout', layout)})")
        self._fields.extend(self._run)
        self.bytes_min += layout.size
        self._run.clear()

    def _defaults_but(self, known: Collection[str]) -> list[str]:
        """Give all other fields their defaults."""
        lines = []
        for field in dataclasses.fields(self._type):
            if field.name in known:
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

    def _compiled(self, write: list[str], read: list[str]) -> tuple[Write, Read]:
        source = _function("write(writer, value)", write) + _function("read(reader)", read)
        exec(compile(source, f"<{self._type.__name__}>", "exec"), self._names)
        return self._names["write"], self._names["read"]


def _targets(names: Collection[str]) -> str:
    return "".join(f"value.{name}, " for name in names)


def _function(signature: str, lines: list[str]) -> str:
    return f"def {signature}:\n" + "".join(f"    {line}\n" for line in lines)

"""How one struct is laid out in one version: worked out once, then cached.

A plan is the codec of a struct. It walks over the declaration when it is made and leaves two functions, `write` and
`read`, that know nothing of declarations any more (struct_code.py). What comes seldom it does itself: to refuse what
the version cannot say, and the tagged fields that follow in flexible versions:

    number of tags, then for each, in rising order: tag, size in bytes, value       all numbers unsigned varints
"""

from __future__ import annotations

from typing import Any, NamedTuple

from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.protocol.codecs import FIXED_FORMATS, Codec, array_codec, scalar_codec
from spark_kafka_sink.protocol.primitives import Reader, Writer, unsigned_varint
from spark_kafka_sink.protocol.schema import FieldSpec, Struct, field_specs
from spark_kafka_sink.protocol.struct_code import Read, StructCode, Write


class _Tagged(NamedTuple):
    name: str
    codec: Codec


class StructPlan:
    """Writes and reads one struct in one version."""

    write: Write
    read: Read

    def __init__(self, struct_type: type[Struct], version: int, flexible: bool) -> None:
        self._type = struct_type
        self._version = version
        self._flexible = flexible
        self._tagged: dict[int, _Tagged] = {}
        self._defaults = struct_type()
        code = StructCode(struct_type)
        for name, spec in field_specs(struct_type).items():
            self._lay_out(name, spec, code)
        if flexible:
            tagged = {name: getattr(self._defaults, name) for name, _ in self._tagged.values()}
            self.write, self.read = code.compile_with_tags(tagged, self._write_tags, self._read_tags)
        else:
            self.write, self.read = code.compile()
        self.bytes_min = code.bytes_min

    def _lay_out(self, name: str, spec: FieldSpec, code: StructCode) -> None:
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
            codec = self._codec(spec)
            default = getattr(self._defaults, name)
            usual = None if default is None and not _is_nullable(spec, self._version) else _encoded(codec, default)
            code.field(name, codec, usual)

    def _words(self, words: str) -> str:
        return f"{self._type.__name__}.{words} in version {self._version}"

    def _codec(self, spec: FieldSpec) -> Codec:
        nullable = _is_nullable(spec, self._version)
        if spec.kind == "struct":
            assert isinstance(spec.element, type)
            return struct_plan(spec.element, self._version, self._flexible)
        if spec.kind != "array":
            return scalar_codec(spec.kind, flexible=self._flexible, nullable=nullable)
        if isinstance(spec.element, type):
            plan = struct_plan(spec.element, self._version, self._flexible)
            return array_codec(plan, flexible=self._flexible, nullable=nullable)
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


def _is_nullable(spec: FieldSpec, version: int) -> bool:
    return spec.nullable is not None and version in spec.nullable


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


_plans: dict[tuple[type[Struct], int, bool], StructPlan] = {}  # two threads may both work one out: the plans are equal


def struct_plan(struct_type: type[Struct], version: int, flexible: bool) -> StructPlan:
    key = (struct_type, version, flexible)
    plan = _plans.get(key)
    if plan is None:
        plan = _plans[key] = StructPlan(struct_type, version, flexible)
    return plan

"""How one struct is laid out in one version: worked out once, then cached.

A plan is the codec of a struct. It walks over steps instead of declarations: neighbouring fields of fixed size are one
step, packed and unpacked together; each other field is a step of its own; fields that the version lacks are no step at
all. In flexible versions the tagged fields follow:

    number of tags, then for each, in rising order: tag, size in bytes, value       all numbers unsigned varints
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, NamedTuple

from spark_kafka_sink.errors import DecodeError, UnsupportedVersionError
from spark_kafka_sink.protocol.codecs import FIXED_FORMATS, Codec, FixedCodec, array_codec, scalar_codec
from spark_kafka_sink.protocol.primitives import Reader, Writer, unsigned_varint_size
from spark_kafka_sink.protocol.schema import FieldSpec, Struct, field_specs


class _Step(NamedTuple):
    """One field, or a run of fields of fixed size whose value is the tuple of theirs."""

    names: tuple[str, ...]
    is_run: bool
    get: Callable[[Struct], Any]
    codec: Codec


class _Tagged(NamedTuple):
    name: str
    codec: Codec


class StructPlan:
    """Sizes, writes and reads one struct in one version."""

    def __init__(self, struct_type: type[Struct], version: int, flexible: bool) -> None:
        self._type = struct_type
        self._version = version
        self._flexible = flexible
        self._steps: list[_Step] = []
        self._tagged: dict[int, _Tagged] = {}
        self._not_nullable: list[str] = []
        self._missing: list[str] = []
        self._defaults = struct_type()
        self._lay_out(field_specs(struct_type))
        self._fixed_size = sum(step.codec.bytes_min for step in self._steps if step.is_run)
        self._variable = [step for step in self._steps if not step.is_run]
        self.bytes_min = sum(step.codec.bytes_min for step in self._steps) + (1 if flexible else 0)

    def _lay_out(self, specs: dict[str, FieldSpec]) -> None:
        run: dict[str, str] = {}
        for name, spec in specs.items():
            if self._version not in spec.versions:
                if not spec.ignorable:
                    self._missing.append(name)
                continue
            if spec.nullable is not None and self._version not in spec.nullable:
                self._not_nullable.append(name)
            if spec.tag is not None:
                self._tagged[spec.tag] = _Tagged(name, self._codec(spec))
            elif spec.kind in FIXED_FORMATS:
                run[name] = spec.kind
            else:
                self._end_run(run)
                self._steps.append(_Step((name,), False, attrgetter(name), self._codec(spec)))
        self._end_run(run)

    def _end_run(self, run: dict[str, str]) -> None:
        if run:
            names = tuple(run)
            get = attrgetter(*names) if len(names) > 1 else _single(names[0])
            self._steps.append(_Step(names, True, get, FixedCodec(list(run.values()))))
            run.clear()

    def _codec(self, spec: FieldSpec) -> Codec:
        nullable = spec.nullable is not None and self._version in spec.nullable
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

    def size(self, value: Struct) -> int:
        self._check(value)
        total = self._fixed_size
        for step in self._variable:
            total += step.codec.size(step.get(value))
        if self._flexible:
            total += self._tags_size(value)
        return total

    def write(self, writer: Writer, value: Struct) -> None:
        for step in self._steps:
            step.codec.write(writer, step.get(value))
        if self._flexible:
            self._write_tags(writer, value)

    def read(self, reader: Reader) -> Any:
        values: dict[str, Any] = {}
        for names, is_run, _, codec in self._steps:
            if is_run:
                values.update(zip(names, codec.read(reader), strict=True))
            else:
                values[names[0]] = codec.read(reader)
        if self._flexible:
            self._read_tags(reader, values)
        return self._type(**values)

    def _check(self, value: Struct) -> None:
        """Refuses what this version cannot say."""
        for name in self._missing:
            if getattr(value, name) != getattr(self._defaults, name):
                raise UnsupportedVersionError(f"{self._type.__name__}.{name} does not exist in version {self._version}")
        for name in self._not_nullable:
            if getattr(value, name) is None:
                raise UnsupportedVersionError(
                    f"{self._type.__name__}.{name} must not be null in version {self._version}"
                )

    def _tags(self, value: Struct) -> Iterator[tuple[int, Codec, Any]]:
        """The known tags that are worth writing."""
        for tag, (name, codec) in self._tagged.items():
            field_value = getattr(value, name)
            if field_value != getattr(self._defaults, name):
                yield tag, codec, field_value

    def _tags_size(self, value: Struct) -> int:
        if not self._tagged and not value.unknown_tags:
            return 1
        sizes = [(tag, codec.size(field_value)) for tag, codec, field_value in self._tags(value)]
        sizes += [(tag, len(data)) for tag, data in (value.unknown_tags or {}).items()]
        size = unsigned_varint_size(len(sizes))
        return size + sum(unsigned_varint_size(tag) + unsigned_varint_size(length) + length for tag, length in sizes)

    def _write_tags(self, writer: Writer, value: Struct) -> None:
        if not self._tagged and not value.unknown_tags:
            writer.unsigned_varint(0)
            return
        known = {tag: (codec, field_value) for tag, codec, field_value in self._tags(value)}
        unknown = value.unknown_tags or {}
        writer.unsigned_varint(len(known) + len(unknown))
        for tag in sorted([*known, *unknown]):
            writer.unsigned_varint(tag)
            if tag in known:
                codec, field_value = known[tag]
                writer.unsigned_varint(codec.size(field_value))
                codec.write(writer, field_value)
            else:
                writer.unsigned_varint(len(unknown[tag]))
                writer.raw(unknown[tag])

    def _read_tags(self, reader: Reader, values: dict[str, Any]) -> None:
        count = reader.unsigned_varint()
        if count == 0:
            return
        reader.count(count, 2)
        unknown: dict[int, bytes] = {}
        for _ in range(count):
            tag = reader.unsigned_varint()
            size = reader.unsigned_varint()
            if tag not in self._tagged:
                unknown[tag] = bytes(reader.take(size))
                continue
            name, codec = self._tagged[tag]
            values[name] = _read_exactly(reader, size, codec)
        if unknown:
            values["unknown_tags"] = unknown


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


def _single(name: str) -> Callable[[Struct], tuple[Any]]:
    get = attrgetter(name)
    return lambda value: (get(value),)


_plans: dict[tuple[type[Struct], int, bool], StructPlan] = {}  # two threads may both work one out: the plans are equal


def struct_plan(struct_type: type[Struct], version: int, flexible: bool) -> StructPlan:
    key = (struct_type, version, flexible)
    plan = _plans.get(key)
    if plan is None:
        plan = _plans[key] = StructPlan(struct_type, version, flexible)
    return plan

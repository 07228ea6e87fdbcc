"""The options that say which columns become the value or the key, in which format: `valueFormat` and its like."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass

from spark_kafka_sink.formats.planning import (
    FORMATS,
    NO_SCHEMA,
    WITH_DESCRIPTOR,
    WITH_REGISTRY,
    WITH_SCHEMA,
    SchemaChoice,
)
from spark_kafka_sink.named_file import named_file

SIDES = ("value", "key")

_MEANINGS = (
    ("Format", "makes the value out of columns: " + ", ".join(f"`{name}`" for name in FORMATS)),
    ("Columns", "the columns of the value, as `id, name`, or `payload.*` for the fields of a struct"),
    ("Schema", "the schema that the value follows; without one it is made from the types of the columns"),
    (
        "SchemaFile",
        "a file with the schema of the value, which the driver [reads](security.md#who-may-set-a-jobs-options)",
    ),
    ("SchemaName", "how the record or message of the value is called"),
    ("Subject", "the subject of the schema registry, in place of the one by `subjectNameStrategy`"),
)
FORMAT_OPTIONS = tuple(
    (f"{side}{name}", meaning.replace("value", side)) for side in SIDES for name, meaning in _MEANINGS
)
"""Names and meanings, for the table of all options."""

_NAME = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^,`]+?))\s*(?:,|$)")


@dataclass(frozen=True)
class FormatOptions:
    """One of the two sides of a record, `value` or `key`, and how columns become it. No columns: all but the roles."""

    side: str
    format: str
    columns: tuple[str, ...] = ()
    schema: SchemaChoice = NO_SCHEMA
    subject: str | None = None

    @property
    def has_registry(self) -> bool:
        return self.format in WITH_REGISTRY


def encoded_sides(options: Mapping[str, str]) -> dict[str, None]:
    """Which of value and key are made out of columns, for options that may be faulty: no encoder is planned yet."""
    given = {name.lower() for name in options}
    return dict.fromkeys(side for side in SIDES if {f"{side}format", f"{side}columns"} & given)


def parse_formats(own: Mapping[str, str], faults: list[str]) -> tuple[FormatOptions, ...]:
    """`own` has its names in lower case."""
    parsed = [_parse_format(own, side, faults) for side in SIDES]
    return tuple(options for options in parsed if options is not None)


def _parse_format(own: Mapping[str, str], side: str, faults: list[str]) -> FormatOptions | None:
    """The options of one side, or None if its column is written as it is."""
    given = own.get(f"{side}format", own.get("valueformat") if f"{side}columns" in own else None)
    if given is None:
        faults.extend(
            f"Option '{side}{name}' has no effect without '{side}Format'; set it to one of {_formats()}."
            for name, _ in _MEANINGS
            if f"{side}{name}".lower() in own
        )
        return None
    name = given.strip().lower()
    if name not in FORMATS:
        faults.append(f"Option '{side}Format' must be one of {_formats()}, not {given!r}.")
        return None
    columns = _names(own.get(f"{side}columns", ""), side, faults)
    if side == "key" and "keycolumns" not in own:
        faults.append("Option 'keyFormat' needs 'keyColumns': the columns that are the key.")
    subject = own.get(f"{side}subject", "").strip() or None
    if subject and name not in WITH_REGISTRY:
        faults.append(f"Option '{side}Subject' has no effect, as the format '{name}' has no registry.")
    return FormatOptions(side, name, columns, _schema_choice(own, side, name, faults), subject)


def _schema_choice(own: Mapping[str, str], side: str, name: str, faults: list[str]) -> SchemaChoice:
    given = [option for option in ("Schema", "SchemaFile", "SchemaName") if own.get(f"{side}{option}".lower())]
    if given and name not in WITH_SCHEMA:
        faults.append(f"Option '{side}{given[0]}' has no effect, as the format '{name}' follows no schema.")
    text, path = own.get(f"{side}schema"), own.get(f"{side}schemafile")
    if text and path:
        faults.append(f"Options '{side}Schema' and '{side}SchemaFile' exclude each other.")
    elif path:
        try:
            data = named_file(path)
            text = base64.b64encode(data).decode() if name in WITH_DESCRIPTOR else data.decode()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            faults.append(f"Option '{side}SchemaFile': {path} cannot be read on the driver: {reason}.")
    return SchemaChoice(text or None, own.get(f"{side}schemaname", "").strip() or None)


def _formats() -> str:
    return ", ".join(f"'{name}'" for name in FORMATS)


def _names(text: str, side: str, faults: list[str]) -> tuple[str, ...]:
    """Names between commas; a name with a comma or a blank at its end stands in backticks, as in Spark."""
    names = []
    at = 0
    while at < len(text.rstrip()):
        match = _NAME.match(text, at)
        if match is None:
            faults.append(f"Option '{side}Columns': {text!r} is no list of columns such as 'id, name' or 'payload.*'.")
            return ()
        names.append(match[1].replace("``", "`") if match[1] else match[2])
        at = match.end()
    return tuple(names)

"""How options are read: the parsers of values, and the reading of all that a user gave by the rows of a table.

Every value may come as text, as Spark and the command line give it, or as what it means. A parser raises ValueError
with the end of a sentence that begins with the option's name: "must be ...".
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_kafka_sink.client.other_names import unknown_option
from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.errors import OptionFaults
from spark_kafka_sink.options import HiddenValueError, Option, Parser
from spark_kafka_sink.protocol.codecs import MAX_STRING_BYTES, is_encodable_string

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
_NUMBER = re.compile("[+-]?[0-9]+")


@dataclass
class Reading:
    """What became of the options that a user gave."""

    given: dict[str, object]
    """The options that have a value. None counts as no value."""
    values: dict[str, Any]
    """By the names of fields; the default of what was not given, or is wrong."""
    faults: OptionFaults = field(default_factory=OptionFaults)
    """Whoever goes on with the values adds what it finds."""
    wrong: set[str] = field(default_factory=set)
    """Fields whose option is at fault: what it was meant to be is not known, so nothing is compared with it."""

    def add_unused(self, options: Iterable[Option], condition: str) -> None:
        """Add a fault for each of the options that was given, because it has no effect unless the condition holds."""
        for option in options:
            if option.name in self.given:
                self.faults.add(option.name, f"has no effect unless {condition}.")


def read_options(
    table: Mapping[str, Option], options: Mapping[str, object], others: Collection[str], reader: str
) -> Reading:
    """Read all options of the table. The `others` are read elsewhere; each further name is a fault.

    `reader` is who reads them, for error messages. What is unknown is not shown: it may be a secret.
    """
    given = {name: value for name, value in options.items() if value is not None}
    reading = Reading(given, {option.field: option.default for option in table.values()})
    for name, value in given.items():
        option = table.get(name)
        if option is not None:
            _read_one(option, value, reading)
        elif name not in others:
            reading.faults.append(unknown_option(str(name), [*table, *others], reader))
    return reading


def _read_one(option: Option, value: object, reading: Reading) -> None:
    problem, is_shown = "", not option.secret
    try:
        parsed = option.parse(value)
    except ValueError as error:
        problem = str(error)
        is_shown = is_shown and not isinstance(error, HiddenValueError)
    else:
        if not option.refused or parsed == option.default:
            reading.values[option.field] = parsed
            return
    reading.wrong.add(option.field)
    if option.refused:
        reading.faults.add(option.name, f"cannot be set: {option.refused}.")
    elif is_shown:
        reading.faults.add(option.name, "{problem}. It is {value}.", problem=problem, value=_describe_value(value))
    else:
        reading.faults.add(option.name, "{problem}.", problem=problem)


def _describe_value(value: object) -> str:
    """Return text and numbers as they are, and only the type of other values, which may hold an address with a
    password."""
    return sanitize(repr(value)) if isinstance(value, str | int | float) else f"of type {type(value).__name__}"


# --- parsers


def text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a string")
    return value.strip()


def words(value: object) -> str | None:
    """Text; None where nothing but blanks is given."""
    return text(value) or None


def sent_text(value: object) -> str:
    """Text that goes to brokers."""
    stripped = text(value)
    if not is_encodable_string(stripped):
        raise ValueError(f"must be text of at most {MAX_STRING_BYTES} bytes in UTF-8")
    return stripped


def sent_name(value: object) -> str:
    name = sent_text(value)
    if not name:
        raise ValueError("must not be empty")
    return name


def boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise ValueError("must be true or false")


def whole(lowest: int, highest: int) -> Parser:
    """A whole number in these bounds."""

    def parse(value: object) -> int:
        words = f"must be a whole number from {lowest} to {highest}"
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError(words)
        if isinstance(value, str) and not _NUMBER.fullmatch(value.strip()):
            raise ValueError(words)
        number = int(value)
        if not lowest <= number <= highest:
            raise ValueError(words)
        return number

    return parse


@dataclass(frozen=True)
class OneOf:
    """A parser of fixed words in any case. It returns the word as `choices` spells it."""

    choices: tuple[str, ...]

    def __call__(self, value: object) -> str:
        word = str(value).strip().lower() if isinstance(value, str | int) and not isinstance(value, bool) else ""
        for choice in self.choices:
            if choice.lower() == word:
                return choice
        raise ValueError(f"must be one of {', '.join(self.choices)}")


def one_of(*choices: str) -> OneOf:
    return OneOf(choices)


def names(value: object) -> tuple[str, ...]:
    """A list, or text with commas."""
    if isinstance(value, str):
        items = value.split(",")
    elif isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        items = list(value)
    else:
        raise ValueError("must be a list, or a string with commas")
    return tuple(item.strip() for item in items if item.strip())


natural_int = whole(0, INT_MAX)
natural_long = whole(0, LONG_MAX)

"""Parsers of single option values, and a parser of all options that a user has set, which uses an option table.

A value may be text, as passed by Spark and the command line, or have the option's own type. A parser raises ValueError
with a message that continues a sentence starting with the option's name, such as "must be ...".
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_kafka_sink.client.option_suggestions import build_unknown_option_problem
from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.errors import OptionProblems
from spark_kafka_sink.options import HiddenValueError, Option, Parser
from spark_kafka_sink.protocol.codecs import MAX_STRING_BYTES, is_encodable_string

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
_INTEGER_PATTERN = re.compile("[+-]?[0-9]+")


@dataclass
class ParsedOptions:
    """A user's parsed options and the problems found in them."""

    raw_values: dict[str, object]
    """The values as set by the user, by option name. Options set to None are not included."""
    values: dict[str, Any]
    """The parsed values by field name. Options that are not set or have an invalid value have their default."""
    problems: OptionProblems = field(default_factory=OptionProblems)
    """All problems found so far. Later checks add the problems that they find."""
    invalid_fields: set[str] = field(default_factory=set)
    """The fields whose option has an invalid value.

    Later checks do not compare these fields with other options, because their intended values are unknown.
    """

    def reject_unused(self, options: Iterable[Option], condition: str) -> None:
        """Add a problem for each of these options that the user has set although it has no effect.

        `condition`: when the options would have an effect. It completes the sentence "has no effect unless ...".
        """
        for option in options:
            if option.name in self.raw_values:
                self.problems.add(option.name, f"has no effect unless {condition}.")


def parse_option_values(
    table: Mapping[str, Option], options: Mapping[str, object], other_names: Collection[str], component: str
) -> ParsedOptions:
    """Parse all options that are in the table. Collect problems instead of raising them.

    An option that is neither in the table nor in `other_names` is a problem. The problem does not show the option's
    value, which may be a secret.

    `other_names`: options that the caller parses elsewhere.
    `component`: the owner of the table, as error messages name it, such as "producer".
    """
    raw_values = {name: value for name, value in options.items() if value is not None}
    parsed_options = ParsedOptions(raw_values, {option.field: option.default for option in table.values()})
    for name, value in raw_values.items():
        option = table.get(name)
        if option is not None:
            _parse_option(option, value, parsed_options)
        elif name not in other_names:
            parsed_options.problems.append(build_unknown_option_problem(str(name), [*table, *other_names], component))
    return parsed_options


def _parse_option(option: Option, raw_value: object, parsed_options: ParsedOptions) -> None:
    """Parse one option. Store its value, or add a problem if the value is invalid or the option is not supported."""
    try:
        value = option.parse(raw_value)
    except ValueError as error:
        parsed_options.invalid_fields.add(option.field)
        if option.unsupported_reason:
            _add_unsupported_problem(option, parsed_options)
        else:
            _add_value_problem(option, raw_value, error, parsed_options)
        return
    # An option that is not supported may be set to its default.
    if not option.unsupported_reason or value == option.default:
        parsed_options.values[option.field] = value
    else:
        parsed_options.invalid_fields.add(option.field)
        _add_unsupported_problem(option, parsed_options)


def _add_unsupported_problem(option: Option, parsed_options: ParsedOptions) -> None:
    """Add the problem of an option that the user may not set."""
    parsed_options.problems.add(option.name, f"cannot be set: {option.unsupported_reason}.")


def _add_value_problem(option: Option, raw_value: object, error: ValueError, parsed_options: ParsedOptions) -> None:
    """Add the problem of an option whose parser has raised `error`. The problem shows the value unless it is secret."""
    # Pass the texts as values instead of inserting them into the template, because they may contain braces.
    problem = str(error)
    if option.secret or isinstance(error, HiddenValueError):
        parsed_options.problems.add(option.name, "{problem}.", problem=problem)
    else:
        shown_value = _describe_value(raw_value)
        parsed_options.problems.add(option.name, "{problem}. It is {value}.", problem=problem, value=shown_value)


def _describe_value(value: object) -> str:
    """Show text and numbers. Show only the type of other values, because they may contain passwords."""
    return sanitize(repr(value)) if isinstance(value, str | int | float) else f"of type {type(value).__name__}"


# --- parsers


def parse_text(value: object) -> str:
    """Return the text without surrounding whitespace. Raise ValueError if the value is not text."""
    if not isinstance(value, str):
        raise ValueError("must be a string")
    return value.strip()


def parse_optional_text(value: object) -> str | None:
    """Parse text. Return None if the text is empty or blank."""
    return parse_text(value) or None


def parse_protocol_string(value: object) -> str:
    """Parse text that can be encoded as a STRING in Kafka's protocol."""
    text = parse_text(value)
    if not is_encodable_string(text):
        raise ValueError(f"must be text of at most {MAX_STRING_BYTES} bytes in UTF-8")
    return text


def parse_protocol_name(value: object) -> str:
    """Parse nonempty text that can be encoded as a STRING in Kafka's protocol."""
    name = parse_protocol_string(value)
    if not name:
        raise ValueError("must not be empty")
    return name


def parse_boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise ValueError("must be true or false")


def build_integer_parser(minimum: int, maximum: int) -> Parser:
    """Build a parser that accepts integers from `minimum` to `maximum`, inclusive."""

    def parse(value: object) -> int:
        problem = f"must be an integer from {minimum} to {maximum}"
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError(problem)
        if isinstance(value, str) and not _INTEGER_PATTERN.fullmatch(value.strip()):
            raise ValueError(problem)
        number = int(value)
        if not minimum <= number <= maximum:
            raise ValueError(problem)
        return number

    return parse


@dataclass(frozen=True)
class ChoiceParser:
    """A parser that accepts any of the choices, ignoring case, and returns it as spelled in `choices`."""

    choices: tuple[str, ...]

    def __call__(self, value: object) -> str:
        text = str(value).strip().lower() if isinstance(value, str | int) and not isinstance(value, bool) else ""
        for choice in self.choices:
            if choice.lower() == text:
                return choice
        raise ValueError(f"must be one of {', '.join(self.choices)}")


def build_choice_parser(*choices: str) -> ChoiceParser:
    return ChoiceParser(choices)


def parse_list(value: object) -> tuple[str, ...]:
    """Parse a list of strings, or text with comma-separated items. Drop blank items."""
    if isinstance(value, str):
        items = value.split(",")
    elif isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        items = list(value)
    else:
        raise ValueError("must be a list, or a string with commas")
    return tuple(item.strip() for item in items if item.strip())


parse_non_negative_int = build_integer_parser(0, INT_MAX)
parse_non_negative_long = build_integer_parser(0, LONG_MAX)

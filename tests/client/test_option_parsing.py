"""Option values may be text or typed values, and the error for an invalid value states the requirement."""

from __future__ import annotations

import pytest

from spark_kafka_sink.client.option_parsing import (
    build_choice_parser,
    build_integer_parser,
    parse_boolean,
    parse_list,
    parse_option_values,
    parse_protocol_name,
    parse_protocol_string,
    parse_text,
)
from spark_kafka_sink.options import Option, Parser


@pytest.mark.parametrize(
    ("parse", "raw_value", "value"),
    [
        (parse_text, " a b ", "a b"),
        (parse_protocol_name, " a ", "a"),
        (parse_boolean, " True ", True),
        (parse_boolean, False, False),
        (build_integer_parser(-1, 9), " -1 ", -1),
        (build_integer_parser(-1, 9), "+9", 9),
        (build_choice_parser("all", "1"), 1, "1"),
        (build_choice_parser("GSSAPI"), "gssapi ", "GSSAPI"),
        (parse_list, "a, b,,", ("a", "b")),
        (parse_list, ["a ", " "], ("a",)),
    ],
)
def test_parses_valid_value(parse: Parser, raw_value: object, value: object) -> None:
    assert parse(raw_value) == value


@pytest.mark.parametrize(
    ("parse", "raw_value", "message"),
    [
        (parse_text, 5, "must be a string"),
        (parse_protocol_name, "  ", "must not be empty"),
        (parse_protocol_string, "\ud800", "must be text of at most 32767 bytes in UTF-8"),
        (parse_protocol_string, "ä" * 16_384, "must be text of at most 32767 bytes in UTF-8"),
        (parse_boolean, "yes", "must be true or false"),
        (parse_boolean, 1, "must be true or false"),
        (build_integer_parser(0, 9), True, "must be an integer from 0 to 9"),
        (build_integer_parser(0, 9), "1e0", "must be an integer from 0 to 9"),
        (build_integer_parser(0, 9), "\u0661", "must be an integer from 0 to 9"),
        (build_integer_parser(0, 9), 10, "must be an integer from 0 to 9"),
        (build_choice_parser("all", "1"), True, "must be one of all, 1"),
        (parse_list, 5, "must be a list, or a string with commas"),
        (parse_list, ["a", 5], "must be a list, or a string with commas"),
    ],
)
def test_rejects_invalid_value_with_requirement(parse: Parser, raw_value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(raw_value)


def test_parses_all_options_and_hides_secrets_in_faults() -> None:
    table = {
        option.name: option
        for option in (
            Option("a.ms", 1, build_integer_parser(0, 9), "time"),
            Option("b.ms", 2, build_integer_parser(0, 9), "time"),
            Option("c", "x", parse_text, "word", unsupported_reason="it is a Java class"),
            Option("d", None, build_integer_parser(0, 9), "number", secret=True),
        )
    }
    options = {
        "a.ms": 5,
        "b.ms": "ten",
        "c": "y",
        "d": "hunter1",
        "b.mss": "hunter2",
        "elsewhere": "z",
        "nothing": None,
    }
    reading = parse_option_values(table, options, ["elsewhere"], "client")
    assert reading.values == {"a_ms": 5, "b_ms": 2, "c": "x", "d": None}
    assert reading.invalid_fields == {"b_ms", "c", "d"}
    assert reading.problems.render() == [
        "b.ms must be an integer from 0 to 9. It is 'ten'.",
        "c cannot be set: it is a Java class.",
        "d must be an integer from 0 to 9.",
        "b.mss is not an option of the Kafka client. Did you mean b.ms?",
    ]
    assert parse_option_values(table, {"c": "x"}, (), "client").problems == []

"""Parsers for values of the sink's own options. client/option_parsing.py has the parsers shared with the client."""

from __future__ import annotations

from collections.abc import Callable

from spark_kafka_sink.client.new_topic import BROKER_DEFAULT
from spark_kafka_sink.client.option_parsing import INT_MAX, build_integer_parser, parse_text
from spark_kafka_sink.options import HiddenValueError, Parser
from spark_kafka_sink.protocol.topic_names import TOPIC_NAME_RULE, is_topic_name

_MAX_REPLICATION_FACTOR = 32_767


def parse_topic_name(value: object) -> str:
    """Return the topic name. Raise ValueError if Kafka does not allow it."""
    name = parse_text(value)
    if not is_topic_name(name):
        raise ValueError(f"must be a topic name of {TOPIC_NAME_RULE}")
    return name


def build_count_parser(max_count: int) -> Parser:
    """Return a parser that accepts a number from 1 to `max_count`, or -1 for the brokers' default.

    The parser raises ValueError for any other value.
    """
    parse_integer = build_integer_parser(BROKER_DEFAULT, max_count)
    requirement = f"must be {BROKER_DEFAULT} or a number from 1 to {max_count}"

    def parse(value: object) -> object:
        try:
            count = parse_integer(value)
        except ValueError:
            raise ValueError(requirement) from None  # the original message would allow 0
        # BROKER_DEFAULT is -1, so parse_integer accepts 0.
        if count == 0:
            raise ValueError(requirement)
        return count

    return parse


parse_partition_count = build_count_parser(INT_MAX)
parse_replication_factor = build_count_parser(_MAX_REPLICATION_FACTOR)


def build_checked_text_parser(find_error: Callable[[str], str | None]) -> Parser:
    """Return a parser that accepts the strings for which `find_error` returns None.

    The parser returns None for an empty string. It raises HiddenValueError, which does not show the string, if
    `find_error` returns an error message.
    """

    def parse(value: object) -> str | None:
        text = parse_text(value)
        error = find_error(text)
        if error is not None:
            raise HiddenValueError(f"cannot be used: {error.rstrip('.')}")
        return text or None

    return parse

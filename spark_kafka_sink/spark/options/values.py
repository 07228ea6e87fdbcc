"""Parsers of values that a job alone has, beside those of the client (client/option_parsing.py)."""

from __future__ import annotations

from collections.abc import Callable

from spark_kafka_sink.client.new_topic import BROKER_DEFAULT
from spark_kafka_sink.client.option_parsing import INT_MAX, integer_parser, parse_text
from spark_kafka_sink.options import HiddenValueError, Parser
from spark_kafka_sink.protocol.topic_names import TOPIC_NAME_RULE, is_topic_name

_REPLICAS_MAX = 32_767


def topic_name(value: object) -> str:
    name = parse_text(value)
    if not is_topic_name(name):
        raise ValueError(f"must be the name of a topic: it takes {TOPIC_NAME_RULE}")
    return name


def count_or_broker_default(highest: int) -> Parser:
    """A number from 1, or -1, which leaves it to the brokers."""
    known = integer_parser(BROKER_DEFAULT, highest)

    def parse(value: object) -> int:
        try:
            number = int(str(known(value)))
        except ValueError:
            number = 0
        if number == 0:
            raise ValueError(f"must be {BROKER_DEFAULT} or a number from 1 to {highest}")
        return number

    return parse


partitions = count_or_broker_default(INT_MAX)
replication = count_or_broker_default(_REPLICAS_MAX)


def text_without_error(fault_of: Callable[[str], str | None]) -> Parser:
    """Text in which `fault_of` finds no fault. The fault is a sentence or the end of one."""

    def parse(value: object) -> str | None:
        given = parse_text(value)
        fault = fault_of(given)
        if fault is not None:
            raise HiddenValueError(f"cannot be used: {fault.rstrip('.')}")
        return given or None

    return parse

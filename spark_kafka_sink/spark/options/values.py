"""Parsers of values that a job alone has, beside those of the client (client/option_parsing.py)."""

from __future__ import annotations

from collections.abc import Callable

from spark_kafka_sink.client.option_parsing import Parser, text
from spark_kafka_sink.topic_names import TOPIC_NAME_RULE, is_topic_name

NUMBER_OF_REPLICAS_MAX = 32_767


def topic_name(value: object) -> str:
    name = text(value)
    if not is_topic_name(name):
        raise ValueError(f"must be the name of a topic: it takes {TOPIC_NAME_RULE}")
    return name


def without_fault(fault_of: Callable[[str], str | None]) -> Parser:
    """Text in which `fault_of` finds no fault. The fault is a sentence or the end of one."""

    def parse(value: object) -> str | None:
        given = text(value)
        fault = fault_of(given)
        if fault is not None:
            raise ValueError(f"cannot be used: {fault.rstrip('.')}")
        return given or None

    return parse

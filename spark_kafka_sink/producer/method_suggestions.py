"""Suggestions for users who call a method by the name that it has in another Python client for Kafka.

Reading such an attribute raises an AttributeError that names the equivalent call. client/option_suggestions.py does the
same for options. Each name is a descriptor in the class. A class with `__getattr__` would need no descriptors, but its
attributes would all be slower to read, which is measurable in send().
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, NoReturn, TypeVar


class Counterpart(NamedTuple):
    """The replacement for a name from another client."""

    client: str
    """The client that the name comes from."""
    replacement: str = ""
    """The equivalent call or argument of KafkaProducer; empty if none is needed."""
    reason_not_needed: str = ""
    """Why KafkaProducer needs no replacement."""


_CONFLUENT, _KAFKA_PYTHON, _AIOKAFKA = "confluent-kafka", "kafka-python", "aiokafka"
_CALLBACK_REPLACEMENT = "add_done_callback(f), with f(future); or send(..., callback=f), with f(metadata, error)"

PRODUCER_METHODS: Mapping[str, Counterpart] = {
    "produce": Counterpart(_CONFLUENT, "send(topic, value, key)"),
    "produce_batch": Counterpart(_CONFLUENT, "send_table(topic, table)"),
    "poll": Counterpart(_CONFLUENT, reason_not_needed="the producer's own thread calls the callbacks"),
    "list_topics": Counterpart(_CONFLUENT, "partitions_for(topic)"),
    "purge": Counterpart(_CONFLUENT, "close(timeout=0), which fails the remaining records"),
    "bootstrap_connected": Counterpart(_KAFKA_PYTHON, "partitions_for(topic), which raises if no broker responds"),
    "start": Counterpart(_AIOKAFKA, reason_not_needed="the constructor starts the producer"),
    "stop": Counterpart(_AIOKAFKA, "close(), or async with KafkaProducer(...)"),
    "send_and_wait": Counterpart(_AIOKAFKA, "await send(topic, value, key)"),
    "create_batch": Counterpart(_AIOKAFKA, "send_columns(topic, columns, partition)"),
    "send_batch": Counterpart(_AIOKAFKA, "send_columns(topic, columns, partition)"),
}
FUTURE_METHODS: Mapping[str, Counterpart] = {
    "get": Counterpart(_KAFKA_PYTHON, "result(timeout)"),
    "value": Counterpart(_KAFKA_PYTHON, "result(timeout)"),
    "is_done": Counterpart(_KAFKA_PYTHON, "done()"),
    "succeeded": Counterpart(_KAFKA_PYTHON, "exception(timeout) is None"),
    "failed": Counterpart(_KAFKA_PYTHON, "exception(timeout) is not None"),
    "add_callback": Counterpart(_KAFKA_PYTHON, _CALLBACK_REPLACEMENT),
    "add_errback": Counterpart(_KAFKA_PYTHON, _CALLBACK_REPLACEMENT),
    "add_both": Counterpart(_KAFKA_PYTHON, _CALLBACK_REPLACEMENT),
}
SEND_ARGUMENTS: Mapping[str, Counterpart] = {
    "on_delivery": Counterpart(_CONFLUENT, "callback=f, with f(metadata, error)"),
    "timestamp": Counterpart(_CONFLUENT, "timestamp_ms"),
}


ClassT = TypeVar("ClassT", bound=type)


def suggest_counterparts(counterparts: Mapping[str, Counterpart]) -> Callable[[ClassT], ClassT]:
    """Return a class decorator that makes these names raise AttributeError, with a suggestion, when they are read.

    `counterparts`: names that the class does not have, and what to use instead.
    """

    def decorate(owner: ClassT) -> ClassT:
        for name, counterpart in counterparts.items():
            setattr(owner, name, _MissingMethod(name, counterpart))
        return owner

    return decorate


class _MissingMethod:
    """Descriptor for a method that does not exist. Reading it raises AttributeError, which says what to use instead."""

    def __init__(self, name: str, counterpart: Counterpart) -> None:
        self._name = name
        self._counterpart = counterpart

    def __get__(self, instance: object, owner: type) -> NoReturn:
        message = f"{owner.__name__!r} object has no attribute {self._name!r}"
        # Do not pass `obj`, so that Python does not append its own suggestion, such as "Did you mean: '_pool'?" for
        # poll.
        raise AttributeError(f"{message}. {_format_suggestion(self._counterpart)}", name=self._name)


def build_unexpected_argument_error(names: Iterable[str]) -> TypeError:
    """Build the error for keyword arguments that send() does not accept. The message names the first of them."""
    name = next(iter(names))
    message = f"KafkaProducer.send() got an unexpected keyword argument {name!r}"
    return TypeError(f"{message}. {_format_suggestion(SEND_ARGUMENTS[name])}" if name in SEND_ARGUMENTS else message)


def _format_suggestion(counterpart: Counterpart) -> str:
    if counterpart.replacement:
        advice = f"Instead, use {counterpart.replacement}."
    else:
        advice = f"KafkaProducer does not need it: {counterpart.reason_not_needed}."
    return f"That is {counterpart.client}'s name. {advice}"

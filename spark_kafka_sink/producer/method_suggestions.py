"""Method names of other Kafka clients for Python, and the calls that do the same here.

client/option_suggestions.py is the counterpart for option names. Reading such a name raises AttributeError with the
call to use here. Each name is an attribute of the class: a class with `__getattr__` reads all its attributes more
slowly, which took 2 of 15 microseconds of a call of `send`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, NoReturn, TypeVar


class Counterpart(NamedTuple):
    """The client that has a name, and the call or argument here in its place."""

    client: str
    here: str


_CONFLUENT, _KAFKA_PYTHON, _AIOKAFKA = "confluent-kafka", "kafka-python", "aiokafka"
_DONE_CALLBACK = "add_done_callback(f), where f gets the future; or send(..., callback=f) with f(metadata, error)"

PRODUCER_METHODS: Mapping[str, Counterpart] = {
    "produce": Counterpart(_CONFLUENT, "send(topic, value, key)"),
    "produce_batch": Counterpart(_CONFLUENT, "send_table(topic, table)"),
    "poll": Counterpart(_CONFLUENT, "nothing: the producer's own thread calls the callbacks"),
    "list_topics": Counterpart(_CONFLUENT, "partitions_for(topic)"),
    "purge": Counterpart(_CONFLUENT, "close(timeout=0), which fails the remaining records"),
    "bootstrap_connected": Counterpart(_KAFKA_PYTHON, "partitions_for(topic), which raises if no broker answers"),
    "start": Counterpart(_AIOKAFKA, "nothing: the constructor starts the producer"),
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
    "add_callback": Counterpart(_KAFKA_PYTHON, _DONE_CALLBACK),
    "add_errback": Counterpart(_KAFKA_PYTHON, _DONE_CALLBACK),
    "add_both": Counterpart(_KAFKA_PYTHON, _DONE_CALLBACK),
}
SEND_ARGUMENTS: Mapping[str, Counterpart] = {
    "on_delivery": Counterpart(_CONFLUENT, "callback=f, with f(metadata, error)"),
    "timestamp": Counterpart(_CONFLUENT, "timestamp_ms"),
}


ClassT = TypeVar("ClassT", bound=type)


def suggest_counterparts(counterparts: Mapping[str, Counterpart]) -> Callable[[ClassT], ClassT]:
    """Decorate a class: reading one of these names raises AttributeError with its counterpart."""

    def add_names(owner: ClassT) -> ClassT:
        for name, counterpart in counterparts.items():
            setattr(owner, name, _MissingMethod(name, counterpart))
        return owner

    return add_names


class _MissingMethod:
    def __init__(self, name: str, counterpart: Counterpart) -> None:
        self._name = name
        self._counterpart = counterpart

    def __get__(self, instance: object, owner: type) -> NoReturn:
        message = f"{owner.__name__!r} object has no attribute {self._name!r}"
        # Without `obj` Python appends no guess of its own, such as "Did you mean: '_pool'?" for poll.
        raise AttributeError(f"{message}. {_suggestion(self._counterpart)}", name=self._name)


def build_unexpected_argument_error(names: Iterable[str]) -> TypeError:
    """Build the error for the first keyword that send() does not take."""
    name = next(iter(names))
    message = f"KafkaProducer.send() got an unexpected keyword argument {name!r}"
    return TypeError(f"{message}. {_suggestion(SEND_ARGUMENTS[name])}" if name in SEND_ARGUMENTS else message)


def _suggestion(counterpart: Counterpart) -> str:
    return f"That is {counterpart.client}'s name; here it is {counterpart.here}."

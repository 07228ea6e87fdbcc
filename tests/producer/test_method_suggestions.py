"""Suggestions for method names of other clients, which name existing methods."""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping

import pytest

from spark_kafka_sink.producer.futures import ColumnsFuture, RecordFutures, SendFuture
from spark_kafka_sink.producer.method_suggestions import (
    FUTURE_METHODS,
    PRODUCER_METHODS,
    SEND_ARGUMENTS,
    Counterpart,
    build_unexpected_argument_error,
)
from spark_kafka_sink.producer.producer import KafkaProducer

CALLED = re.compile(r"\b([a-z_]+)\(")
OTHER_CALLS = {"f", "nothing"}


@pytest.mark.parametrize(
    ("kind", "counterparts"), [(KafkaProducer, PRODUCER_METHODS), (SendFuture, FUTURE_METHODS)], ids=["send", "future"]
)
def test_names_of_other_clients_are_not_ours_and_their_counterparts_exist(
    kind: type, counterparts: Mapping[str, Counterpart]
) -> None:
    assert [name for name in counterparts if hasattr(kind, name)] == []
    calls = {
        name for counterpart in counterparts.values() for name in CALLED.findall(counterpart.replacement)
    } - OTHER_CALLS
    assert calls
    assert [name for name in calls if not hasattr(kind, name) and not hasattr(KafkaProducer, name)] == []


def test_future_suggests_counterpart_of_kafka_python_method() -> None:
    for future in (ColumnsFuture("t", 1), SendFuture(RecordFutures("t"), 0)):
        message = r"has no attribute 'get'. That is kafka-python's name. Instead, use result\(timeout\)\.$"
        with pytest.raises(AttributeError, match=message) as raised:
            future.get(timeout=10)  # type: ignore[union-attr]
        assert raised.value.name == "get"


def test_python_adds_no_guess_to_a_suggested_counterpart() -> None:
    future = SendFuture(RecordFutures("t"), 0)
    with pytest.raises(AttributeError) as raised:
        future.add_callback(print)  # type: ignore[attr-defined]
    assert "Did you mean" not in "".join(traceback.format_exception(raised.value))


def test_unknown_attribute_raises_as_python_does() -> None:
    future = SendFuture(RecordFutures("t"), 0)
    with pytest.raises(AttributeError, match=r"^'SendFuture' object has no attribute 'resul'$") as raised:
        future.resul  # type: ignore[attr-defined] # noqa: B018
    assert (raised.value.name, raised.value.obj) == ("resul", future)
    assert not hasattr(future, "__arrow_c_stream__")


@pytest.mark.parametrize("name", [*SEND_ARGUMENTS, "callbak"])
def test_unexpected_argument_names_its_counterpart(name: str) -> None:
    message = str(build_unexpected_argument_error([name]))
    assert message.startswith(f"KafkaProducer.send() got an unexpected keyword argument '{name}'")
    assert ("That is confluent-kafka's name. Instead, use " in message) == (name in SEND_ARGUMENTS)


@pytest.mark.parametrize("kind", [KafkaProducer, SendFuture, ColumnsFuture])
def test_suggestions_do_not_slow_down_the_attributes_that_exist(kind: type) -> None:
    """CPython 3.11 does not specialize attribute reads of classes with `__getattr__`, so send() took 15 % longer."""
    assert not hasattr(kind, "__getattr__")

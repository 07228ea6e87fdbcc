"""Exceptions can be pickled for Spark's processes, and spell options as the user does."""

from __future__ import annotations

import pickle

import pytest

from spark_kafka_sink.errors import (
    BrokerError,
    ConfigurationError,
    DeliveryTimeoutError,
    KafkaSinkError,
    MissingDependencyError,
    OptionProblem,
    OptionProblems,
    OptionSpelling,
    TransactionTimeoutError,
    clear_tracebacks,
    copy_error,
    mark_possibly_stored,
)

IN_SPARK = OptionSpelling("kafka.{}".format)
QUOTED = OptionSpelling("'{}'".format, "Option ")
TIMEOUT = OptionProblem("delivery.timeout.ms", "must be at least {linger.ms}, which is {linger}.", {"linger": 5})


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        (OptionSpelling(), "delivery.timeout.ms must be at least linger.ms, which is 5."),
        (IN_SPARK, "kafka.delivery.timeout.ms must be at least kafka.linger.ms, which is 5."),
        (QUOTED, "Option 'delivery.timeout.ms' must be at least 'linger.ms', which is 5."),
    ],
)
def test_spells_every_option_in_a_fault(spelling: OptionSpelling, expected: str) -> None:
    assert TIMEOUT.render(spelling) == expected


def test_leaves_values_from_outside_as_they_are() -> None:
    problem = OptionProblem(
        "ssl.truststore.location", "is {file!r}, see {ssl.truststore.type}.", {"file": "/{linger.ms}/{"}
    )
    expected = "kafka.ssl.truststore.location is '/{linger.ms}/{', see kafka.ssl.truststore.type."
    assert problem.render(IN_SPARK) == expected


def test_spells_options_of_another_namespace_with_its_prefix() -> None:
    error = ConfigurationError(["a sentence", OptionProblem("ssl.keystore.key", "excludes {ssl.keystore.location}.")])
    assert error.with_prefix("registry.").render(QUOTED) == (
        "a sentence",
        "Option 'registry.ssl.keystore.key' excludes 'registry.ssl.keystore.location'.",
    )


@pytest.mark.parametrize("kind", [ConfigurationError, MissingDependencyError])
def test_error_about_an_option_keeps_its_type_and_its_message_literally(kind: type[ConfigurationError]) -> None:
    error = kind("it has a {brace}").with_option("ssl.keystore.key", "is {file}: {problem}.", file="a.p12")
    assert type(error) is kind
    assert error.render(IN_SPARK) == ("kafka.ssl.keystore.key is a.p12: it has a {brace}.",)


def test_collects_faults_in_order() -> None:
    problems = OptionProblems()
    problems.add("a", "is {value}, but not {b}.", value=1)
    problems.add("c", "is wrong.")
    assert problems.render(IN_SPARK) == ["kafka.a is 1, but not kafka.b.", "kafka.c is wrong."]
    assert ConfigurationError(problems).problems == ("a is 1, but not b.", "c is wrong.")


@pytest.mark.parametrize("kind", [ConfigurationError, MissingDependencyError])
def test_pickled_configuration_error_keeps_its_options(kind: type[ConfigurationError]) -> None:
    error = pickle.loads(pickle.dumps(kind(["a sentence", TIMEOUT])))
    assert type(error) is kind
    assert str(error) == "a sentence\ndelivery.timeout.ms must be at least linger.ms, which is 5."
    assert error.unrendered_problems == ["a sentence", TIMEOUT]
    assert error.render(IN_SPARK)[1].startswith("kafka.delivery.timeout.ms")


@pytest.mark.parametrize(
    "error",
    [
        DeliveryTimeoutError("late.", destination="topic t", address="b:9092", remedy="Wait.", possibly_stored=True),
        TransactionTimeoutError("late.", destination="topic t", address="b:9092", remedy="Wait.", possibly_stored=True),
    ],
    ids=lambda error: type(error).__name__,
)
def test_pickled_error_keeps_its_fields_and_message(error: KafkaSinkError) -> None:
    for copied in (pickle.loads(pickle.dumps(error)), copy_error(error)):
        assert type(copied) is type(error)
        assert copied.text == "late. Wait. The records may have been stored."
        assert copied.reason == f"b:9092: {copied.text}"
        assert str(copied) == f"topic t: {copied.reason}"
        assert (copied.destination, copied.address, copied.remedy, copied.possibly_stored) == (
            "topic t",
            "b:9092",
            "Wait.",
            True,
        )


def test_error_for_what_may_be_stored_is_marked_copy() -> None:
    cause = OSError("reset")
    error = KafkaSinkError("closed.")
    error.__cause__ = cause
    marked = mark_possibly_stored(error)
    assert (marked.possibly_stored, error.possibly_stored) == (True, False)
    assert str(marked) == "closed. The records may have been stored."
    assert marked.__cause__ is cause
    other = pickle.loads(pickle.dumps(mark_possibly_stored(error, "It may be done.")))
    assert str(other) == "closed. It may be done."


def test_pickled_broker_error_mentions_possibly_stored_records_once() -> None:
    error = BrokerError("FAILED (99)", code=99, name="FAILED", destination="t")
    error.possibly_stored = True
    twice = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(error))))
    assert str(twice) == "t: FAILED (99). The records may have been stored."
    assert (twice.code, twice.name) == (99, "FAILED")


@pytest.mark.parametrize(
    "error",
    [
        ConfigurationError(["late.", TIMEOUT]),
        BrokerError("late.", code=99, name="FAILED"),
        DeliveryTimeoutError("late."),
    ],
    ids=lambda error: type(error).__name__,
)
def test_rewritten_error_keeps_its_new_message_when_pickled(error: KafkaSinkError) -> None:
    message = str(error)
    error.remedy = "wait."
    error.rewrite(str.upper)
    copied = pickle.loads(pickle.dumps(error))
    assert copied.text == f"{message.upper()} WAIT."


def test_clears_tracebacks_of_errors_that_are_each_others_cause_and_context() -> None:
    """`raise error.__cause__` makes an error the context of its own cause."""
    wrapper, unwrapped = RuntimeError("wrapped"), OSError("down")
    wrapper.__cause__, unwrapped.__context__ = unwrapped, wrapper
    with pytest.raises(RuntimeError) as raised:
        raise wrapper
    clear_tracebacks(unwrapped)
    assert raised.value.__traceback__ is None

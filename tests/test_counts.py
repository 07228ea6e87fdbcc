"""How large the rooms are that a row passes. To add a concept there, take another one away."""

from __future__ import annotations

from tests.counts import (
    HOPS,
    ascents,
    batching_files,
    calls_of_one_write,
    classes_in,
    encoder_files,
    missing_hops,
    worker_modules,
)


def test_a_row_goes_down_in_at_most_24_steps_and_none_leads_back_up() -> None:
    assert len(HOPS) <= 24
    assert ascents() == []
    assert missing_hops(calls_of_one_write()) == []


def test_a_step_that_is_not_taken_is_noticed() -> None:
    calls = calls_of_one_write()
    assert missing_hops(reversed(calls)) != []


def test_batching_and_the_encoder_have_few_concepts() -> None:
    assert (
        len(classes_in(batching_files())) <= 24
    )  # names for what were tuples: a flush, an addition to a batch, a call
    assert len(classes_in(encoder_files())) <= 11


def test_a_spark_worker_imports_only_what_a_write_needs() -> None:
    modules = worker_modules()
    for room in (
        "broker",
        "reader",
        "sasl",
        "formats",
        "network.tls",
        "records.decoder",
        "protocol.messages.fetch",
        "exactly_once",
        "spark.exactly_once",
        "spark.options.delivery",
        "spark.options.parse",
        "spark.patches",
    ):
        assert not [name for name in modules if f"{name}.".startswith(f"spark_kafka_sink.{room}.")], room

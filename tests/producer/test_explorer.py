"""Some of the explorer's runs, and that it does find a fault where there is one: a rule is taken out, a seed fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from spark_kafka_sink.producer import idempotence
from spark_kafka_sink.producer.batch import ProducerBatch
from spark_kafka_sink.producer.idempotence import PartitionState
from tests.producer.explorer import explore


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.getLogger("spark_kafka_sink").setLevel(logging.ERROR)
    yield
    logging.getLogger("spark_kafka_sink").setLevel(logging.NOTSET)


@pytest.mark.parametrize("start", range(0, 40, 10))
def test_whatever_the_faults_nothing_acknowledged_is_lost_doubled_or_out_of_order(start: int) -> None:
    for seed in range(start, start + 10):
        explore(seed)


def no_rule_1(state: PartitionState, connection: object) -> bool:
    return True


def no_rule_3(state: PartitionState) -> bool:
    return state.gap is not None


def never_stored(state: PartitionState, batch: ProducerBatch) -> bool:
    return False


@pytest.mark.parametrize(
    ("rules", "seed"),
    [
        ({"may_have_another_on_wire": no_rule_1}, 6),
        ({"may_have_another_on_wire": no_rule_1}, 35),
        ({"may_begin_again": no_rule_3, "may_be_stored": never_stored}, 14),
        ({"may_begin_again": no_rule_3, "may_be_stored": never_stored}, 36),
    ],
)
def test_the_explorer_notices_a_rule_that_is_taken_out(
    rules: dict[str, Callable[..., bool]], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    explore(seed)
    for rule, without in rules.items():
        monkeypatch.setattr(idempotence, rule, without)
    with pytest.raises(AssertionError, match="doubled or out of order"):
        explore(seed)

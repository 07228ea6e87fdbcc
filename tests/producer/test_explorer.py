"""Some of the explorer's runs, and that it does find a fault where there is one."""

from __future__ import annotations

import logging

import pytest

from spark_kafka_sink.producer.idempotence import Idempotence
from tests.producer.explorer import explore, survives


@pytest.mark.parametrize("start", range(0, 40, 10))
def test_whatever_the_faults_nothing_acknowledged_is_lost_doubled_or_out_of_order(start: int) -> None:
    for seed in range(start, start + 10):
        explore(seed)


def test_the_explorer_finds_records_that_are_stored_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Idempotence, "is_in_doubt", lambda self, batch: False)
    logging.getLogger("spark_kafka_sink").setLevel(logging.ERROR)
    try:
        assert not all(survives(seed, explain=False) for seed in (70, 80))
    finally:
        logging.getLogger("spark_kafka_sink").setLevel(logging.NOTSET)

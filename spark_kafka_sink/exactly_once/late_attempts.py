"""An attempt of a task that begins after its batch was decided or aborted: no driver would end its transaction.

Spark kills attempts that have lost, but not at once. So an attempt asks twice whether the driver waits for it:

    before it gets its transactional id    because a task of the next batch may have this id by now
    after that, before it begins           because the driver looks later than now for what is left over, and finds the
                                           id, with a transaction or without one: whatever happens to the attempt,
                                           nothing stays open
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from spark_kafka_sink.errors import ExactlyOnceError
from spark_kafka_sink.exactly_once.batch_start import BatchStart
from spark_kafka_sink.exactly_once.transactions_client import EMPTY, TransactionsClient
from spark_kafka_sink.producer.config import ProducerConfig


@contextmanager
def refused_if_late(start: BatchStart, options: Mapping[str, str]) -> Iterator[None]:
    """Around the request for the id. ExactlyOnceError if the driver that began the batch waits for no task any more."""
    with TransactionsClient(ProducerConfig.parse(options).client_config()) as client:
        _refuse_if_late(client, start)
        yield
        _refuse_if_late(client, start)


def _refuse_if_late(client: TransactionsClient, start: BatchStart) -> None:
    driver = client.describe([start.driver_id]).get(start.driver_id)
    if driver is None or (driver.id_and_epoch, driver.state) != (start.driver, EMPTY):
        raise ExactlyOnceError(
            "This attempt came too late: its batch is over, or a newer driver has taken over the query with the prefix "
            f"{start.prefix}. It wrote nothing."
        )

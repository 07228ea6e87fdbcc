"""An attempt of a task that ends after its batch was decided or aborted: no driver would end its transaction.

Spark kills attempts that have lost, but not at once: one may begin its transaction after the driver has looked for what
is open. So each attempt asks, when its rows are acknowledged, whether the driver has begun to decide. If not, the
driver looks for open transactions later than now, and finds this one.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_kafka_sink.errors import ExactlyOnceError
from spark_kafka_sink.exactly_once.batch_start import BatchStart
from spark_kafka_sink.exactly_once.transactions_client import TransactionsClient
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.sending.open_transaction import PreparedTransaction

_BEGUN = "Empty"
"""What the coordinator says of the driver until it writes its decision."""


def abort_if_late(start: BatchStart, prepared: PreparedTransaction, options: Mapping[str, str]) -> None:
    """ExactlyOnceError, with the transaction aborted, if the driver that began the batch is not waiting for it."""
    with TransactionsClient(ProducerConfig.parse(options).client_config()) as client:
        driver = client.describe([start.driver_id]).get(start.driver_id)
        if driver is not None and (driver.id_and_epoch, driver.state) == (start.driver, _BEGUN):
            return
        client.abort({prepared.transactional_id: prepared.id_and_epoch})
    raise ExactlyOnceError(
        f"This attempt came too late: its batch is over, or a newer driver has taken over the query with the prefix "
        f"{start.prefix}. Its transaction was aborted."
    )

"""Statements whose deletion no test can or should detect, with the reasons.

The mutation tester (tools/mutation_tester.py) does not report these mutants unless a test detects them. A key consists
of the module, the function or method, and the first line of the statement.
"""

from __future__ import annotations

from collections.abc import Mapping

ACCEPTED_SURVIVORS: Mapping[str, str] = {
    "spark_kafka_sink/producer/transactions/transaction_call.py: TransactionCall.handle_failure: self._on_change()": (
        "only unmutes queues sooner: the sender drops the batches of a failed transaction, whether muted or not"
    ),
    "spark_kafka_sink/producer/sending/deliveries.py: Deliveries._retry: "
    '_log.debug("Retrying %r after an error: %s", batch, error)': "logging",
    "spark_kafka_sink/producer/sending/idempotence.py: _PartitionStates.__init__: super().__init__()": (
        "dict.__init__ without arguments does nothing"
    ),
    "spark_kafka_sink/producer/sending/idempotence.py: Idempotence.handle_retry: if not self.enabled:": (
        "see the next statement"
    ),
    "spark_kafka_sink/producer/sending/idempotence.py: Idempotence.handle_retry: return": (
        "nothing uses the phase of a partition if idempotence is disabled"
    ),
    "spark_kafka_sink/producer/sending/sender_thread.py: SenderThread.join: if self._has_ended:": (
        "see the next statement"
    ),
    "spark_kafka_sink/producer/sending/sender_thread.py: SenderThread.join: "
    "self._thread.join()  # the thread has only a few instructions left": (
        "the thread has released its lock in its last statement, and ends at once without being joined"
    ),
}

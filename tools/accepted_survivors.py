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
}

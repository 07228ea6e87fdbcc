"""Exactly-once delivery: each task writes in a Kafka transaction, and one driver commits all of these transactions.

Before the driver commits the first transaction, it writes the list of all of them to a Kafka topic, the decision log.
If the driver dies before it has committed the last one, the next driver finds the list and commits the rest.

    driver.py                                 begins, commits and aborts a batch. Start here
    query_transactions.py                     the steps of the protocol: fence, claim, write to the log, commit, abort
    decision_log.py, log_writer.py            read and write the decision log
    late_attempts.py, transaction_names.py    used by the tasks
    operations.py                             implements `pykafka transactions`

This package does not import Spark, so the command line works without it. docs/exactly-once-design.md describes the
protocol, and docs/glossary.md defines its terms.
"""

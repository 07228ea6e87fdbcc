"""Exactly-once delivery: many tasks write transactions, and a single driver commits them.

Start with driver.py, which begins, commits and aborts batches. It uses query_transactions.py for the transactions of
one query or job, and decision_log.py and log_writer.py for the topic that records which batches are committed. Tasks
use late_attempts.py and transaction_names.py. operations.py implements `pykafka transactions`.

This package does not import Spark, so the command line works without it. docs/exactly-once-design.md describes the
protocol, and docs/glossary.md defines its terms.
"""

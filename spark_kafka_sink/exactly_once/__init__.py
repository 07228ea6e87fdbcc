"""Exactly-once delivery: transactions that many tasks fill, and one driver commits.

transaction_names.py      transactional ids, prefixes and the record keys of the decision log
job_names.py              unique prefixes for jobs without a name
batch_content.py          the row counts that identify a batch together with its name
entries.py                the state of a prefix: its last decision and its newest driver
entry_json.py             JSON format of this state in the decision log
delivery.py               the settings of a query or job, and the names derived from them
batch_start.py            the state of a prefix when a batch starts, for its tasks and for the commit
driver.py                 the driver of a query: begins, commits and aborts batches
query_transactions.py     the transactions under one prefix, the identity of its driver, and its log entries
driver_ids.py             the successive transactional ids of a prefix's driver
decision_log.py           the newest valid entry of a prefix, read from the decision log
log_topic.py              creation and configuration check of the log's topic
log_writer.py             log records, each write in a transaction of its own
transaction_aborts.py     aborts of transactions that tasks have left open, and fencing of their ids
clients.py                clients that drivers lease for each batch
operations.py             the operations of `pykafka transactions`: list, finish, abort, give up
commit_margin.py          time limits of a decision
timeout_marks.py          marks in an id's transaction timeout: claimed, fenced
late_attempts.py          checks for task attempts that start too late, or whose id is in use
precommit_errors.py       errors before the commit of a batch
commit_errors.py          errors of a commit

This package does not import Spark, so the command line works without it. docs/exactly-once.md describes the protocol.
"""

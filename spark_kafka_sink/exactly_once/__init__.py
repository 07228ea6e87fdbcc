"""Writes that readers see exactly once: transactions that many tasks fill, and one driver commits.

transaction_names.py      the names of transactions: one prefix for each query, and ids that are used again
job_names.py              prefixes of jobs without a name, which name the driver's host and process
content.py                what a batch contains, as far as it identifies the batch
entries.py                what is decided under a prefix, and by which driver
entry_json.py             the same as a record of the decision log
delivery.py               the options of a query or job, and the names that follow from them
batch_start.py            what the driver knows when a batch begins, for its tasks and for the commit
driver.py                 what the driver of a query does, step by step
query_transactions.py     the transactions under one prefix, the identity of its driver, and each act under that
driver_ids.py             the transactional ids of a prefix's driver, one after the other
decision_log.py           the topic with these records: read, and whose word counts
log_topic.py              the topic itself: made, and refused if it would forget
log_writer.py             records written in a transaction of their own
leftovers.py              abort what tasks have left open, and fence their ids
clients.py                clients that are leased from batch to batch
operations.py             what a person may do from outside: look, finish, abort, give up
time_left.py              how much of the transactions' timeout must be left when a batch is decided
timeout_marks.py          what the timeout of an id says of it: claimed, fenced
late_attempts.py          attempts of tasks that end when their batch is over, or whose id is in use
refusals.py               the errors before the commit: what happened, what is in Kafka now, what to do
commit_errors.py          the errors of a commit: is it decided, which rows are visible, what to do

Nothing here knows Spark, so that the command line needs none. docs/exactly-once.md has the whole.
"""

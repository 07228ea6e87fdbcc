"""Writes that readers see exactly once: transactions that many tasks fill, and one driver commits.

names.py                the names of transactions: one prefix for each query, and ids that are used again
entries.py              what is decided, as a record of the decision log
batch_start.py          what the driver knows when a batch begins, for its tasks and for the commit
driver.py               what the driver of a query does, step by step
prefix.py               the transactions under one prefix, and what is decided of them
decision_log.py         the compacted topic with these records: made and read
compaction.py           and refused, if it would forget them
decision_writer.py      written, each record in a transaction of the driver
transactions_client.py  questions to the coordinators of transactions: describe, list, commit, abort
coordinator_questions.py  asked of many ids at once, until each has an answer
log_writer.py           records written in a transaction of their own, over the connections of these questions
operations.py           what a person may do from outside: look, finish, abort, give up
late_attempts.py        attempts of tasks that end when their batch is over
refusals.py             the errors: what happened, what is in Kafka now, what to do
steps.py                where a test may stop the process

Nothing here knows Spark, so that the command line needs none. docs/exactly-once.md has the whole.
"""

"""Writes that readers see exactly once: transactions that many tasks fill, and one driver commits.

names.py                the names of transactions: one prefix for each query, and ids that are used again
entries.py              what is decided, as a record of the decision log
decision_log.py         the compacted topic that has these records: made, read, written
transactions_client.py  questions to the coordinators of transactions: describe, list, commit, abort
driver.py               what the driver of a query does, step by step
operations.py           what a person may do from outside: list, finish, abort, give up
steps.py                where a test may stop the process

Nothing here knows Spark, so that the command line needs none. docs/exactly-once.md has the whole.
"""

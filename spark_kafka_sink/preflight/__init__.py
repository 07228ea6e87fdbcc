"""Checks before a write: can this program, from this machine and with these options, write to these topics?

They do what a producer does first: look up the bootstrap servers, connect to them with the job's own security, ask for
the topics, connect to every broker that leads a partition, at the address that the broker advertises, and try the
rights that the write needs. All connections are made at once, so a healthy cluster takes about a second at most.

checks.py     what is looked at, and what was found
probe.py      the connections, and requests over them
reached.py    what the probe found, as checks
request_check.py   a check that sends one request
cluster_checks.py  the checks of a cluster that was reached: rights, clock, limits
creation.py   the topic that is to be created if it is missing
topic_suggestions.py  existing topics for the names of topics that do not exist
certificates.py  what brokers show of themselves by TLS
run.py        all of it, in order

The driver makes these checks before a write, and `pykafka doctor` makes the same ones and a few more (`thorough`).
"""

from spark_kafka_sink.preflight.checks import INTERACTIVE_TIMEOUTS, Check, Outcome, PreflightTimeouts, Target, failure
from spark_kafka_sink.preflight.run import preflight

__all__ = ["INTERACTIVE_TIMEOUTS", "Check", "Outcome", "PreflightTimeouts", "Target", "failure", "preflight"]

"""Preflight checks that this machine can access the topics with the given options, before a write or a read.

The checks take the same first steps as a producer. They resolve the bootstrap servers, connect to them with the job's
security options, fetch the topics' metadata, and connect to each leader at the address that it advertises. Then they
check the permissions that the write or read needs. All connections are made concurrently, so checking a healthy cluster
takes about a second at most.

checks.py               defines targets, time limits and results
probe.py                opens the connections and sends requests over them
connectivity_checks.py  turns the results of a probe into checks
request_check.py        defines a check that sends one request
cluster_checks.py       checks permissions, clocks and limits of a connected cluster
creation_check.py       checks whether a missing topic can be created
topic_suggestions.py    suggests existing topics for missing ones
certificate_checks.py   checks the certificates that brokers present
run.py                  runs all checks in order

Spark's driver runs these checks before a write, and the commands of `pykafka` before they write or read. `pykafka
doctor` also runs additional ones (`thorough`).
"""

from spark_kafka_sink.preflight.checks import (
    INTERACTIVE_TIMEOUTS,
    CheckResult,
    Outcome,
    PreflightTimeouts,
    Target,
    build_preflight_error,
)
from spark_kafka_sink.preflight.run import preflight

__all__ = [
    "INTERACTIVE_TIMEOUTS",
    "CheckResult",
    "Outcome",
    "PreflightTimeouts",
    "Target",
    "build_preflight_error",
    "preflight",
]

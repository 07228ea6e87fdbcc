"""Checks before a write that this machine can write to the topics with the given options.

The checks take the first steps of a producer: they resolve the bootstrap servers, connect to them with the security
options of the job, fetch the metadata of the topics, connect to each leader at the address that the broker advertises,
and check the permissions that the write needs. All connections are made concurrently, so the checks of a healthy
cluster take about a second at most.

checks.py               targets, time limits and results of checks
probe.py                the connections, and requests over them
connectivity_checks.py  the results of a probe as checks
request_check.py        a check that sends one request
cluster_checks.py       checks of a connected cluster: permissions, clocks, limits
creation_check.py       the check of a topic that will be created if it is missing
topic_suggestions.py    suggestions of existing topics for missing ones
certificate_checks.py   the certificates that brokers present
run.py                  all checks in their order

The driver runs these checks before a write. `pykafka doctor` runs the same checks and additional ones (`thorough`).
"""

from spark_kafka_sink.preflight.checks import (
    INTERACTIVE_TIMEOUTS,
    Check,
    Outcome,
    PreflightTimeouts,
    Target,
    build_preflight_error,
)
from spark_kafka_sink.preflight.run import preflight

__all__ = [
    "INTERACTIVE_TIMEOUTS",
    "Check",
    "Outcome",
    "PreflightTimeouts",
    "Target",
    "build_preflight_error",
    "preflight",
]

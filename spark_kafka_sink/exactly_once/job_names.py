"""Generated names of jobs for which the user has set neither a prefix nor an idempotency key.

All of a job's transactional ids begin with its name, so the name is called the prefix. A generated one looks like this:

    pykafka-job-<host>-<process>-<random>

`process` is the process id of Spark's driver. The random part makes the prefix unique, so that no other run uses it.
Only `pykafka transactions` parses these prefixes, to show where a job with open transactions ran.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import uuid
from pathlib import Path

from spark_kafka_sink.exactly_once.transaction_names import GENERATED_PREFIX

JOB_PREFIX = f"{GENERATED_PREFIX}job-"
"""The beginning of every generated name of a job. The option transactionalIdPrefix rejects it."""
_MAX_HOST_CHARACTERS = 60
_NAME_PATTERN = re.compile(rf"{JOB_PREFIX}(?P<host>[A-Za-z0-9._-]+)-(?P<process>\d+)-[0-9a-f]{{12}}")


def generate_job_prefix(driver_process_id: int | None = None) -> str:
    """Return a new prefix for a job without a name.

    `driver_process_id`: the process id of Spark's driver. One of the driver's Python workers may pass None, because it
    can find the driver's process id itself.
    """
    process_id = find_driver_process_id() if driver_process_id is None else driver_process_id
    host = re.sub(r"[^A-Za-z0-9._-]", "_", platform.node())[:_MAX_HOST_CHARACTERS] or "host"
    return f"{JOB_PREFIX}{host}-{process_id}-{uuid.uuid4().hex[:12]}"


def find_driver_process_id() -> int:
    """Return the process id of Spark's driver. Call this only in one of the driver's Python workers."""
    # A worker's parent process is either the driver or pyspark's daemon, which is itself a child of the driver. The
    # daemon's process id does not identify the driver, because Spark replaces a daemon that has died.
    parent_process_id = os.getppid()
    with contextlib.suppress(OSError):
        if b"pyspark.daemon" in Path(f"/proc/{parent_process_id}/cmdline").read_bytes().split(b"\0"):
            # Field 4 is the parent's process id. Field 2, the command, ends with ")" and may contain spaces.
            return int(Path(f"/proc/{parent_process_id}/stat").read_text().rpartition(")")[2].split()[1])
    return parent_process_id


def is_generated_job_prefix(prefix: str) -> bool:
    """Return whether `generate_job_prefix` has generated this prefix. If so, only one job uses it."""
    return prefix.startswith(JOB_PREFIX)


def describe_job(prefix: str) -> str:
    """Say where the job with this prefix ran. Return an empty string if `generate_job_prefix` has not generated it."""
    match = _NAME_PATTERN.fullmatch(prefix)
    return "" if match is None else f"a job without a name, driver process {match['process']} on {match['host']}"

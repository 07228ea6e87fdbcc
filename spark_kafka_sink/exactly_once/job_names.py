"""Unique prefixes for jobs that have neither a prefix nor a key.

    pykafka-job-<host>-<process>-<random>

`process` is the process id of Spark's driver. Because of the random part, a later run does not find the prefix of an
earlier one. Only `pykafka transactions` parses these prefixes, to show where a job with open transactions ran.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import uuid
from pathlib import Path

from spark_kafka_sink.exactly_once.transaction_names import GENERATED_PREFIX

_JOB_PREFIX = f"{GENERATED_PREFIX}job-"
_MAX_HOST_CHARACTERS = 60
_NAME_PATTERN = re.compile(rf"{_JOB_PREFIX}(?P<host>[A-Za-z0-9._-]+)-(?P<process>\d+)-[0-9a-f]{{12}}")


def generate_job_prefix(driver_process_id: int | None = None) -> str:
    """Generate a prefix. Without `driver_process_id`, this process must be a Python worker of the driver."""
    process_id = find_driver_process_id() if driver_process_id is None else driver_process_id
    host = re.sub(r"[^A-Za-z0-9._-]", "_", platform.node())[:_MAX_HOST_CHARACTERS] or "host"
    return f"{_JOB_PREFIX}{host}-{process_id}-{uuid.uuid4().hex[:12]}"


def find_driver_process_id() -> int:
    """Return the process id of Spark's driver. Call this only in one of its Python workers.

    The parent of a worker is the driver, or pyspark's daemon, whose parent is the driver. Spark replaces a daemon that
    has died, so the daemon's own process id does not identify the driver.
    """
    parent = os.getppid()
    with contextlib.suppress(OSError):
        if b"pyspark.daemon" in Path(f"/proc/{parent}/cmdline").read_bytes().split(b"\0"):
            # Field 4 is the parent's id. The command in field 2 ends with ")" and may contain spaces.
            return int(Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1])
    return parent


def is_job_prefix(prefix: str) -> bool:
    return prefix.startswith(_JOB_PREFIX)


def describe_job(prefix: str) -> str:
    """Describe the job that a generated job prefix belongs to. Return an empty string for any other prefix."""
    match = _NAME_PATTERN.fullmatch(prefix)
    return "" if match is None else f"a job without a name, driver process {match['process']} on {match['host']}"

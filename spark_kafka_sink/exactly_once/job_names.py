"""The prefixes of jobs without a name: each has its own, and says whose it is.

    pykafka-job-<host>-<machine>-<process>-<start>-<random>

`process` is the process of Spark's driver (the one above its Python workers), `start` when it began, and `machine`
stands for the host's name, its boot and its process namespace. So a later job on the same machine sees which earlier
jobs have lost their driver, and frees what they left open; and `pykafka transactions` shows people where a job ran.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import uuid
from collections.abc import Callable
from pathlib import Path

from spark_kafka_sink.exactly_once.names import OWN_PREFIX

_JOB = f"{OWN_PREFIX}job-"
_HOST_CHARACTERS_MAX = 60
_NO_TIME = "0"
_NAME = re.compile(
    rf"{_JOB}(?P<host>[A-Za-z0-9._-]+)-(?P<machine>[0-9a-f]{{10}})-(?P<process>\d+)-(?P<start>\d+)-[0-9a-f]{{12}}"
)


def new_job_prefix(process: int | None = None) -> str:
    process = driver_process() if process is None else process
    host = re.sub(r"[^A-Za-z0-9._-]", "_", platform.node())[:_HOST_CHARACTERS_MAX] or "host"
    return f"{_JOB}{host}-{_machine()}-{process}-{_start_of(process) or _NO_TIME}-{uuid.uuid4().hex[:12]}"


def driver_process() -> int:
    """Of Spark's driver, called in one of its Python workers. Between them is pyspark's daemon, which may die alone."""
    parent = os.getppid()
    with contextlib.suppress(OSError):
        if b"pyspark.daemon" in Path(f"/proc/{parent}/cmdline").read_bytes().split(b"\0"):
            return int(_stat(parent)[1])
    return parent


def is_job_prefix(prefix: str) -> bool:
    return prefix.startswith(_JOB)


def whose(prefix: str) -> str:
    """In words for people; empty for a prefix that is not of a job without a name."""
    match = _NAME.fullmatch(prefix)
    return "" if match is None else f"a job without a name, driver process {match['process']} on {match['host']}"


def is_abandoned(prefix: str, start_of: Callable[[int], str | None] | None = None) -> bool:
    """Is this a job of this machine whose driver's process has ended? False where that cannot be known."""
    match = _NAME.fullmatch(prefix)
    if match is None or match["machine"] != _machine() or match["start"] == _NO_TIME:
        return False
    return (start_of or _start_of)(int(match["process"])) != match["start"]


def _machine() -> str:
    """On Linux two containers differ, even if they have one name; elsewhere the name of the host has to do."""
    known = [platform.node()]
    with contextlib.suppress(OSError):
        known.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        known.append(str(Path("/proc/self/ns/pid").stat().st_ino))
    return hashlib.sha256("\n".join(known).encode()).hexdigest()[:10]


def _start_of(process: int) -> str | None:
    """When a process began, in ticks since the machine's boot. None if there is no such process, or no /proc."""
    try:
        return _stat(process)[19]
    except OSError:
        return None


def _stat(process: int) -> list[str]:
    """What /proc says of a process, without its number and its name: its state, its parent, and so on."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()

"""Generated prefixes of jobs without a prefix or a key: they name the process of Spark's driver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_kafka_sink.exactly_once.job_names import describe_job, generate_job_prefix, is_job_prefix
from spark_kafka_sink.exactly_once.transaction_names import find_prefix_error

on_linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked at in /proc")


def test_each_job_gets_a_unique_valid_prefix() -> None:
    first, second = generate_job_prefix(), generate_job_prefix()
    assert first != second
    assert find_prefix_error(first) is None
    assert is_job_prefix(first)


def test_prefix_names_parent_process_as_driver() -> None:
    assert f"driver process {os.getppid()} on " in describe_job(generate_job_prefix())


def test_user_prefix_is_not_a_job_prefix() -> None:
    assert not is_job_prefix("orders")
    assert describe_job("orders") == ""


@pytest.mark.parametrize("host", ["", "bücher.example", "h" * 300])
def test_prefix_is_valid_with_any_host_name(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.node", lambda: host)
    prefix = generate_job_prefix()
    assert find_prefix_error(prefix) is None
    assert describe_job(prefix)


FORKS = """
import os
from spark_kafka_sink.exactly_once.job_names import describe_job, generate_job_prefix
worker = os.fork()
if worker == 0:
    print(describe_job(generate_job_prefix()), flush=True)
else:
    os.waitpid(worker, 0)
"""


@on_linux
def test_prefix_names_parent_process_of_pyspark_daemon() -> None:
    """Spark replaces a daemon that has died, and its jobs continue."""
    command = [sys.executable, "-c", FORKS, "pyspark.daemon"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"driver process {os.getpid()} on " in output

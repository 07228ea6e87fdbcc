"""Generated prefixes of jobs without a prefix or a key: they name the process of Spark's driver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from spark_kafka_sink.exactly_once.job_names import (
    describe_job,
    find_driver_process_id,
    generate_job_prefix,
    is_generated_job_prefix,
)
from spark_kafka_sink.exactly_once.transaction_names import find_prefix_error

on_linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


def test_each_job_gets_a_unique_valid_prefix() -> None:
    first, second = generate_job_prefix(), generate_job_prefix()
    assert first != second
    assert find_prefix_error(first) is None
    assert is_generated_job_prefix(first)


def test_prefix_names_parent_process_as_driver() -> None:
    assert f"driver process {os.getppid()} on " in describe_job(generate_job_prefix())


def test_user_prefix_is_not_a_job_prefix() -> None:
    assert not is_generated_job_prefix("orders")
    assert describe_job("orders") == ""


@pytest.mark.parametrize("host", ["", "bücher.example", "h" * 300])
def test_prefix_is_valid_with_any_host_name(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.node", lambda: host)
    prefix = generate_job_prefix()
    assert find_prefix_error(prefix) is None
    assert describe_job(prefix)


@on_linux
def test_driver_is_the_parent_process_of_pyspark_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark replaces a daemon that has died, and its jobs continue."""
    command = [sys.executable, "-c", "print(flush=True); input()", "pyspark.daemon"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout is not None
        daemon.stdout.readline()  # its command line is not visible before
        monkeypatch.setattr(os, "getppid", lambda: daemon.pid)
        driver_process_id = find_driver_process_id()
        daemon.communicate("\n")
    assert driver_process_id == os.getpid()


def test_driver_is_the_parent_process_if_the_system_has_no_process_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_bytes", Mock(side_effect=FileNotFoundError))
    assert find_driver_process_id() == os.getppid()

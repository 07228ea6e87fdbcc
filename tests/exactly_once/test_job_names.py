"""A job without a name has a prefix that says whose it is, and whether its driver's process has ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_kafka_sink.exactly_once.job_names import is_abandoned, is_job_prefix, new_job_prefix, whose
from spark_kafka_sink.exactly_once.names import prefix_fault

on_linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked at in /proc")


def test_each_job_has_a_prefix_of_its_own_that_names_its_process() -> None:
    first, second = new_job_prefix(os.getpid()), new_job_prefix(os.getpid())
    assert first != second
    assert prefix_fault(first) is None
    assert is_job_prefix(first)
    assert f"driver process {os.getpid()} on " in whose(first)


def test_a_prefix_of_a_user_is_no_jobs() -> None:
    assert not is_job_prefix("orders")
    assert whose("orders") == ""
    assert not is_abandoned("orders")


@on_linux
def test_a_job_is_abandoned_when_its_process_has_ended_and_not_before() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        prefix = new_job_prefix(process.pid)
        assert not is_abandoned(prefix)
        process.kill()
    assert is_abandoned(prefix)


@on_linux
def test_another_process_with_the_same_number_is_not_the_jobs() -> None:
    prefix = new_job_prefix(os.getpid())
    assert not is_abandoned(prefix)
    assert is_abandoned(prefix, lambda process: "12345")


def test_a_job_that_names_no_process_is_of_the_parent_which_is_the_driver_of_a_worker() -> None:
    assert f"driver process {os.getppid()} on " in whose(new_job_prefix())


FORKS = """
import os
from spark_kafka_sink.exactly_once.job_names import new_job_prefix, whose
worker = os.fork()
if worker == 0:
    print(whose(new_job_prefix()), flush=True)
else:
    os.waitpid(worker, 0)
"""


@on_linux
def test_a_worker_that_pysparks_daemon_has_forked_is_of_the_process_above_the_daemon() -> None:
    """Spark starts another daemon where one has died, and its jobs go on."""
    command = [sys.executable, "-c", FORKS, "pyspark.daemon"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"driver process {os.getpid()} on " in said


@on_linux
@pytest.mark.parametrize("other", ["boot", "container"])
def test_before_another_boot_and_in_another_container_it_was_another_machine(
    other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a host has the same name: there the numbers of processes say nothing."""
    prefix = new_job_prefix(os.getpid())
    assert is_abandoned(prefix, lambda process: None)
    if other == "boot":
        monkeypatch.setattr(Path, "read_text", lambda path: "another boot")
    else:
        monkeypatch.setattr(Path, "stat", lambda path: os.stat_result(range(10)))
    assert not is_abandoned(prefix, lambda process: None)


def test_of_another_machine_nothing_is_known() -> None:
    prefix = new_job_prefix(os.getpid())
    machine = prefix.split("-")[-4]
    elsewhere = prefix.replace(machine, "0123456789")
    assert elsewhere != prefix
    assert not is_abandoned(elsewhere, lambda process: None)

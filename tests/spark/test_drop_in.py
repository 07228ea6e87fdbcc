"""What register() says without a session."""

from __future__ import annotations

import sys

import pytest

from spark_kafka_sink.spark.drop_in import _warn_of_another_python


def test_a_local_spark_whose_workers_run_another_python_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    _warn_of_another_python("local[2]", "/no/such/python3")
    assert "/no/such/python3" in caplog.text
    assert "PYSPARK_PYTHON" in caplog.text


@pytest.mark.parametrize(("master", "python"), [("local[2]", sys.executable), ("spark://host:7077", "python3")])
def test_the_same_python_and_that_of_a_cluster_are_nothing_to_warn_of(
    master: str, python: str, caplog: pytest.LogCaptureFixture
) -> None:
    _warn_of_another_python(master, python)
    assert caplog.text == ""

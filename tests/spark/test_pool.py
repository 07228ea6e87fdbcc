"""The pool of producers: errors of new producers, and the time for which an idle producer is kept."""

from __future__ import annotations

import pickle
import traceback
from pathlib import Path

import pytest

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.spark.pool import ProducerPool, lease_producer, parse_idle_timeout
from tests.spark.task_cases import pool as pool


@pytest.mark.parametrize(("text", "seconds"), [("10m", 600), ("30s", 30), ("1h", 3600), ("2 min", 120), ("500", 0.5)])
def test_parses_producer_cache_timeout_as_spark_does(text: str, seconds: float) -> None:
    assert parse_idle_timeout(text) == seconds


def test_rejects_invalid_duration() -> None:
    with pytest.raises(
        ConfigurationError, match=r"spark\.kafka\.producer\.cache\.timeout must be a duration .*, not 'soon'"
    ):
        parse_idle_timeout("soon")


@pytest.mark.parametrize("text", [None, ""])
def test_keeps_idle_producers_for_ten_minutes_by_default(text: str | None) -> None:
    assert parse_idle_timeout(text) == 600


def test_error_of_new_producer_names_options_as_spark_job_does(pool: ProducerPool, tmp_path: Path) -> None:
    truststore = tmp_path / "ca.pem"
    truststore.write_text("no certificate")
    options = {
        "bootstrap.servers": "127.0.0.1:1",
        "security.protocol": "SSL",
        "ssl.truststore.location": str(truststore),
        "ssl.truststore.type": "PEM",
    }
    with pytest.raises(ConfigurationError) as error, lease_producer(pool, options, idle_seconds=60):
        pass
    assert str(error.value) == "kafka.ssl.truststore.location has no certificate of an authority."


def test_traceback_of_new_producer_hides_key_that_is_set_as_a_path(pool: ProducerPool) -> None:
    key = "-----BEGIN PRIVATE KEY-----\nhush-hush\n-----END PRIVATE KEY-----"
    options = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SSL", "ssl.keystore.location": key}
    with pytest.raises(ConfigurationError) as error, lease_producer(pool, options, idle_seconds=60):
        pass
    text = "".join(traceback.format_exception(error.value))
    assert "kafka.ssl.keystore.location must be the path of a file" in text
    assert "hush-hush" not in text


@pytest.mark.parametrize(
    ("path", "reason"),
    [("/missing/ca.pem", "No such file or directory"), ("/dev", "it is a directory, not a regular file")],
)
def test_error_of_unreadable_file_asks_for_it_on_every_machine(pool: ProducerPool, path: str, reason: str) -> None:
    options = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SSL", "ssl.truststore.location": path}
    with pytest.raises(ConfigurationError) as error, lease_producer(pool, options, idle_seconds=60):
        pass
    assert str(pickle.loads(pickle.dumps(error.value))) == (
        f"kafka.ssl.truststore.location is {path}, which cannot be read on this machine: {reason}. The file must be "
        "readable at that path on every machine that connects to Kafka."
    )


def test_error_of_key_in_place_of_path_does_not_ask_for_a_file_on_every_machine(pool: ProducerPool) -> None:
    """Opening a key of fewer than 256 characters fails as for a missing file, because the key can be a file name."""
    key = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIA==\n-----END PRIVATE KEY-----\n"
    options = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SSL", "ssl.keystore.location": key}
    with (
        pytest.raises(ConfigurationError, match=r"Save the content to a file") as error,
        lease_producer(pool, options, 60),
    ):
        pass
    assert "on every machine" not in str(error.value)
    assert "MC4C" not in str(error.value)


def test_error_of_damaged_certificate_does_not_ask_for_a_file(pool: ProducerPool) -> None:
    certificate = "-----BEGIN CERTIFICATE-----\nQUJD\n-----END CERTIFICATE-----\n"
    options = {
        "bootstrap.servers": "127.0.0.1:1",
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": certificate,
    }
    with pytest.raises(ConfigurationError) as error, lease_producer(pool, options, idle_seconds=60):
        pass
    assert str(error.value) == "kafka.ssl.truststore.certificates has a certificate that is damaged."

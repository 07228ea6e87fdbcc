"""Validation of host names."""

from __future__ import annotations

import pytest

from spark_kafka_sink.network.system import find_host_error


@pytest.mark.parametrize("host", ["broker-1.example", "127.0.0.1", "::1", "fe80::1%eth0", "straße.example", "x" * 255])
def test_accepts_valid_host_names(host: str) -> None:
    assert find_host_error(host) is None


@pytest.mark.parametrize("host", ["", "a\0b", "a\nb", "a b", "\x1b[2J", "a\u202e", "x" * 256])
def test_rejects_invalid_host_names(host: str) -> None:
    assert find_host_error(host) is not None

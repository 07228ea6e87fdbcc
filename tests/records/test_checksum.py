"""Checksums with and without the package crc32c, and writes without it and lz4."""

from __future__ import annotations

import subprocess
import sys

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.records import checksum

WITHOUT_PACKAGES = "import sys\nsys.modules |= dict.fromkeys(['crc32c', 'lz4', 'lz4.frame'])\n"


def run_without_packages(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", WITHOUT_PACKAGES + code], capture_output=True, text=True)


@given(st.binary(max_size=5000), st.integers(0, 2**32 - 1))
def test_checksum_equals_crc32c_package(data: bytes, before: int) -> None:
    assert checksum.crc32c(data) == crc32c.crc32c(data)
    assert checksum.crc32c(memoryview(data), before) == crc32c.crc32c(data, before)


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 1023, 1024, 1025, 65_536, 65_537, 300_000])
def test_checksum_of_any_block_size_equals_crc32c_package(size: int) -> None:
    data = bytes(number * 37 % 251 for number in range(size))
    assert checksum.crc32c(bytearray(data), 7, 0) == crc32c.crc32c(data, 7, 0)


def test_checksum_has_check_value_of_the_standard() -> None:
    assert checksum.crc32c(b"123456789") == 0xE3069283


def test_writes_without_optional_packages_and_warns_once() -> None:
    done = run_without_packages(
        "from spark_kafka_sink import KafkaProducer, ProducerRecord\n"
        "from spark_kafka_sink.testing import embedded_broker, read_topic\n"
        "with embedded_broker(topics={'t': 1}) as broker:\n"
        "    for codec in ('none', 'gzip', 'snappy', 'zstd'):\n"
        "        options = {'bootstrap.servers': broker.bootstrap_servers, 'compression.type': codec}\n"
        "        with KafkaProducer(options) as producer:\n"
        "            producer.send(ProducerRecord('t', b'x' * 5000)).result()\n"
        "    print(read_topic(broker.bootstrap_servers, 't').num_rows)\n"
    )
    assert done.stdout == "4\n", done.stderr
    assert done.stderr.count("pip install crc32c") == 1


def test_rejects_lz4_without_its_package_with_remedy() -> None:
    done = run_without_packages(
        "from spark_kafka_sink import KafkaProducer, KafkaSinkError\n"
        "try:\n"
        "    KafkaProducer({'bootstrap.servers': '127.0.0.1:1', 'compression.type': 'lz4'})\n"
        "except KafkaSinkError as error:\n"
        "    print(error)\n"
    )
    assert done.stdout.startswith("compression.type is lz4, which requires the package lz4"), done.stderr
    assert "`pip install lz4`" in done.stdout


def test_rejects_lz4_of_unpickled_configuration_without_package() -> None:
    done = run_without_packages(
        "from spark_kafka_sink.errors import MissingDependencyError\n"
        "from spark_kafka_sink.records.compression import Codec, decompress, require_codec\n"
        "for use in (lambda: require_codec(Codec.LZ4), lambda: decompress(Codec.LZ4, b'', 9)):\n"
        "    try:\n"
        "        use()\n"
        "    except MissingDependencyError as error:\n"
        "        print(error)\n"
    )
    assert done.stdout.count("pip install lz4") == 2, done.stderr


def test_broker_without_lz4_rejects_its_batches() -> None:
    done = run_without_packages(
        "from spark_kafka_sink.broker.batch_validation import RecordValidator\n"
        "from spark_kafka_sink.broker.api_error import ApiError\n"
        "from spark_kafka_sink.records.header import HEADER_BYTES, BatchHeader\n"
        "header = BatchHeader(0, 60, 0, 2, 0, 3, 0, 0, 0, -1, -1, -1, 1)\n"
        "try:\n"
        "    RecordValidator().validate(header, memoryview(bytes(HEADER_BYTES + 11)))\n"
        "except ApiError as error:\n"
        "    print(error)\n"
    )
    assert "lz4" in done.stdout, done.stderr

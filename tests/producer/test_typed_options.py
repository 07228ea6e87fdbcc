"""Type checkers find misspelled options and values: the types agree with the option tables."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from spark_kafka_sink.network.security_options import SECURITY_OPTIONS
from spark_kafka_sink.options import Option
from spark_kafka_sink.producer.config import merge_keywords
from spark_kafka_sink.producer.options import PRODUCER_OPTIONS
from spark_kafka_sink.producer.table_plan import TABLE_ARGUMENTS
from spark_kafka_sink.producer.typed_options import ProducerOptions
from tools.typed_options_source import CONFIG, MODULE, build_config, build_source, find_type, find_words

ROOT = Path(__file__).resolve().parents[2]
BEGINNING = """\
from spark_kafka_sink import KafkaProducer, ProducerRecord
from spark_kafka_sink.producer.typed_options import ProducerOptions, TableOptions

producer: KafkaProducer
rows: object
"""
CORRECT_CALLS = (
    'KafkaProducer({"bootstrap.servers": "a:9092", "linger.ms": "5"}, acks="all")',
    'KafkaProducer(bootstrap_servers=["a:9092", "b:9092"], linger_ms=5, acks=1, enable_idempotence=False)',
    'KafkaProducer(bootstrap_servers="a:9092", linger_ms="5", client_id=None, enable_idempotence="true")',
    'KafkaProducer(sasl_mechanism="OAUTHBEARER", sasl_oauthbearer_token_callback=lambda: "token", flush_at_exit=1)',
    'options: ProducerOptions = {"linger_ms": 5}; KafkaProducer(**options)',
    'producer.send("orders", {"any": "object"}, key=1, headers={"trace": "8f3a"}, timestamp_ms=0)',
    'producer.send(ProducerRecord("orders", b""), lambda metadata, error, number=1: print(number))',
    'producer.send("orders", callback=lambda metadata, error: print(metadata.offset))',
    'producer.send_table("orders", rows, key="id", value_format="json", schema_registry_url=None)',
    'formats: TableOptions = {"value_format": "avro"}; producer.send_table("orders", rows, **formats)',
)
WRONG_CALLS = (
    ("KafkaProducer(linger_msec=5)", '"linger_msec"'),
    ("KafkaProducer(linger_ms=0.5)", '"linger_ms"'),
    ('KafkaProducer(acks="maybe")', '"acks"'),
    ("KafkaProducer(acks=2)", '"acks"'),
    ('KafkaProducer(enable_idempotence="yes")', '"enable_idempotence"'),
    ('KafkaProducer(compression_type="zst")', '"compression_type"'),
    ('KafkaProducer(security_protocol="TLS")', '"security_protocol"'),
    ('KafkaProducer(sasl_mechanism="SCRAM")', '"sasl_mechanism"'),
    ('KafkaProducer(key_serializer="org.apache.kafka.StringSerializer")', '"key_serializer"'),
    ("KafkaProducer(interceptor_classes=[])", '"interceptor_classes"'),
    ("KafkaProducer(system=None)", '"system"'),
    ("KafkaProducer(loop=None)", '"loop"'),
    ("KafkaProducer(random=None)", '"random"'),
    ('options: ProducerOptions = {"linger.ms": 5}', '"linger.ms"'),
    ('producer.send("orders", b"", timestamp=1)', '"timestamp"'),
    ('producer.send("orders", b"", on_delivery=print)', '"on_delivery"'),
    ('producer.produce("orders", b"")', '"produce"'),
    ('producer.send("orders", b"").get(timeout=10)', '"get"'),
    ('producer.send("orders", b"", partition="1")', '"partition"'),
    ('producer.send("orders", b"", headers={"trace": 1})', '"headers"'),
    ('producer.send_table("orders", rows, value_format="jsn")', '"value_format"'),
    ('producer.send_table("orders", rows, valueFormat="json")', '"valueFormat"'),
    ('producer.send_table("orders", rows, schema_source="newest")', '"schema_source"'),
    ('producer.send_table_async("orders", rows, value_format="jsn")', '"value_format"'),
)
OPTIONS = (
    *(option for option in PRODUCER_OPTIONS.values() if not option.unsupported_reason),
    *TABLE_ARGUMENTS.values(),
)
VALUES: dict[str, Sequence[object]] = {
    "Boolean": [True, False, "true", "false"],
    "Number": [9_999, "9999"],
    "Text": ["a:1"],
    "Texts": ["a:1", "a:1,b:1", ["a:1", "b:1"], ("a:1",)],
}
SMALL = {"compression.gzip.level": [-1, "9"], "compression.lz4.level": [1, "17"], "compression.zstd.level": [22, "-7"]}
"""Valid values of number options with a narrow range."""


MYPY_CONFIG = """\
[mypy]
[mypy-numpy.*,pyspark.*]
follow_imports = skip
follow_imports_for_stubs = True
"""
"""These packages are skipped because analyzing them takes most of the time, and no option uses their types."""


@pytest.fixture(scope="module")
def mypy_errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return mypy's message for each call that it rejects. The cache keeps mypy's analysis of the package."""
    folder = tmp_path_factory.mktemp("calls")
    calls = {"correct.py": CORRECT_CALLS, "wrong.py": [call for call, _ in WRONG_CALLS]}
    for file, lines in calls.items():
        (folder / file).write_text(BEGINNING + "\n".join(lines) + "\n")
    config = folder / "mypy.ini"
    config.write_text(MYPY_CONFIG)
    cache = ROOT / ".mypy_cache" / "typed_calls"
    command = [sys.executable, "-m", "mypy", f"--config-file={config}", f"--cache-dir={cache}"]
    done = subprocess.run(
        [*command, "--hide-error-context", *calls], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    errors = [line.split(":", 2) for line in done.stdout.splitlines() if ": error: " in line]
    assert {file for file, _, _ in errors} <= calls.keys(), done.stdout
    beginning = BEGINNING.count("\n")
    return {calls[file][int(line) - beginning - 1]: message for file, line, message in errors}


def test_typed_options_module_equals_generated_source() -> None:
    assert MODULE.read_text() == build_source(), "run `python -m tools.typed_options_source`"


def test_fields_of_configuration_equal_generated_source() -> None:
    source = CONFIG.read_text()
    assert source == build_config(source), "run `python -m tools.typed_options_source`"


def test_mypy_accepts_correct_calls(mypy_errors: dict[str, str]) -> None:
    assert {call: mypy_errors[call] for call in CORRECT_CALLS if call in mypy_errors} == {}


def test_mypy_reports_wrong_names_and_values(mypy_errors: dict[str, str]) -> None:
    assert [call for call, name in WRONG_CALLS if name not in mypy_errors.get(call, "")] == []


def test_each_keyword_is_the_name_of_an_option() -> None:
    options = merge_keywords(None, dict.fromkeys(ProducerOptions.__annotations__))
    assert [name for name in options if name not in PRODUCER_OPTIONS and name not in SECURITY_OPTIONS] == []


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_parser_accepts_values_of_type(option: Option) -> None:
    type_words = find_words(option)
    values = type_words or SMALL.get(option.name) or VALUES[find_type(option)]
    if option.name == "partitioner.class":
        values = ["RoundRobinPartitioner"]
    for value in values:
        option.parse(value)


@pytest.mark.parametrize(
    "option", [option for option in PRODUCER_OPTIONS.values() if find_words(option)], ids=lambda option: option.name
)
def test_parser_rejects_values_outside_of_choice(option: Option) -> None:
    with pytest.raises(ValueError, match="must be one of"):
        option.parse("maybe")

"""Parsing of Spark's option strings: accepted values, errors about rejected ones, and secrets that stay hidden."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import pytest

from spark_kafka_sink.diagnostics.deferred_log import clear_logged_warnings
from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.network.security_options import SECURITY_OPTIONS
from spark_kafka_sink.producer.options import PRODUCER_OPTIONS
from spark_kafka_sink.spark.options.ignored_options import CONSUMER_OPTIONS, REGISTRY_PREFIXES, SOURCE_OPTIONS
from spark_kafka_sink.spark.options.names import (
    ASYNC_PROGRESS_OPTIONS,
    JAVA_CLASS_OPTION_REMEDIES,
    TABLE_AND_FILE_OPTIONS,
    add_kafka_prefix,
)
from spark_kafka_sink.spark.options.parse import BULK_DEFAULTS, parse_options
from spark_kafka_sink.spark.options.sink_options import SinkOptions

NEEDED = {"kafka.bootstrap.servers": "broker:9092"}
REGISTRY_FORMAT = NEEDED | {
    "topic": "orders",
    "valueFormat": "avro-confluent",
    "schema.registry.url": "http://registry",
}
REGISTRY_NAMES = [
    "kafka.schema.registry.url",
    "schema.registry.basic.auth.credentials.source",
    "kafka.schema.registry.basic.auth.user.info",
    "basic.auth.user.info",
    "kafka.bearer.auth.token",
    "apicurio.registry.url",
]
"""Registry options that the sink does not have."""


def parse(**more: str) -> SinkOptions:
    return parse_options(NEEDED | {name.replace("__", "."): value for name, value in more.items()})


def problems(options: dict[str, str]) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as raised:
        parse_options(options)
    return raised.value.problems


def test_removes_kafka_prefix_in_any_case() -> None:
    options = parse_options({"KAFKA.bootstrap.servers": "b:1", "Kafka.Linger.MS": "7"})
    assert options.producer_options["linger.ms"] == "7"
    assert options.producer_config().linger_ms == 7


def test_trims_topic() -> None:
    assert parse(topic="  orders ").topic == "orders"
    assert parse().topic is None


@pytest.mark.parametrize("topic", ["", "a b", "x" * 250, "..", "umläut"])
def test_rejects_invalid_topic_name(topic: str) -> None:
    (problem,) = problems(NEEDED | {"topic": topic})
    assert problem.startswith("Option 'topic' must be a topic name of ")


def test_defaults_equal_java_client_except_bulk_defaults() -> None:
    config = parse().producer_config()
    assert config.linger_ms == int(BULK_DEFAULTS["linger.ms"])
    assert config.acks == -1
    assert config.enable_idempotence
    assert config.batch_size == int(BULK_DEFAULTS["batch.size"])
    assert config.client_config().send_buffer_bytes == int(BULK_DEFAULTS["send.buffer.bytes"])
    assert parse(kafka__batch__size="16384").producer_config().batch_size == 16384


def test_reports_missing_bootstrap_servers_in_sparks_wording_with_all_other_faults() -> None:
    found = problems({"kafka.acks": "2", "kafka.key.serializer": "x", "deadLetterTopic": "d", "tpoic": "t"})
    assert len(found) == 5
    assert "Kafka option bootstrap.servers is not set. Please make sure it is set and retry." in found
    assert any("acks" in problem for problem in found)


def test_rejects_serializers_in_sparks_wording_with_remedy() -> None:
    assert problems(NEEDED | {"kafka.key.serializer": "x", "kafka.value.serializer": "y"}) == (
        "Kafka option 'key.serializer' is not supported as keys are serialized with ByteArraySerializer. "
        "Remove the option, and cast the column 'key' to STRING or BINARY, or set keyFormat.",
        "Kafka option 'value.serializer' is not supported as value are serialized with ByteArraySerializer. "
        "Remove the option, and cast the column 'value' to STRING or BINARY, or set valueFormat.",
    )


@pytest.mark.parametrize("name", ["onRecordError", "topic", "checkConnection", "createTopic.config.cleanup.policy"])
def test_rejects_prefix_of_sink_option(name: str) -> None:
    (problem,) = problems(NEEDED | {f"kafka.{name}": "x"})
    assert problem == f"kafka.{name} is not an option of the Kafka producer. Use '{name}', without the prefix."


@pytest.mark.parametrize("name", ["on_record_error", "on-record-error", "on.record.error"])
def test_rejects_prefix_of_sink_option_with_separated_words(name: str) -> None:
    (problem,) = problems(NEEDED | {f"kafka.{name}": "x"})
    assert problem == f"kafka.{name} is not an option of the Kafka producer. Use 'onRecordError', without the prefix."


@pytest.mark.parametrize("name", ["normalize.schemas", "basic.auth.user.info", "ssl.truststore.location"])
def test_rejects_prefix_of_registry_option_if_a_format_uses_a_registry(name: str) -> None:
    """Otherwise, the option is ignored, as in Spark's own sink."""
    (problem,) = problems(REGISTRY_FORMAT | {f"kafka.schema.registry.{name}": "x"})
    assert problem.endswith(f"Use 'schema.registry.{name}', without the prefix.")


@pytest.mark.parametrize(
    "option", [{"basic.auth.user.info": "me:hush\udcff"}, {"ssl.cipher.suites": "a\0"}, {"ssl.keystore.key": "hush\0"}]
)
def test_rejects_registry_option_that_is_not_text_with_one_fault(option: dict[str, str]) -> None:
    registry_options = {
        "url": "https://localhost",
        "ssl.keystore.certificate.chain": "chain",
        "ssl.keystore.key": "key",
    }
    options = {f"schema.registry.{name}": value for name, value in (registry_options | option).items()}
    (name,) = option
    assert problems(NEEDED | {"topic": "t", "valueFormat": "avro-confluent"} | options) == (
        f"Option 'schema.registry.{name}' must be text in UTF-8 without NUL characters.",
    )


@pytest.mark.parametrize("prefix", ["", "kafka."])
@pytest.mark.parametrize(
    ("name", "sink_option"),
    [
        ("basic.auth.user.info", "'schema.registry.basic.auth.user.info', which contains the credentials."),
        ("bearer.auth.token", "'schema.registry.bearer.auth.token', which contains the token."),
        ("bearer.auth.client.secret", "'schema.registry.bearer.auth.token', which contains the token."),
    ],
)
def test_rejects_credentials_of_serializers_if_a_format_uses_a_registry(
    prefix: str, name: str, sink_option: str
) -> None:
    """If they were ignored, requests to the registry would have no credentials."""
    (problem,) = problems(REGISTRY_FORMAT | {prefix + name: "hush-hush"})
    assert f"{prefix}{name}" in problem
    assert problem.endswith(f". That is the name in Confluent's serializers. Instead, use {sink_option}")
    assert "hush-hush" not in problem


@pytest.mark.parametrize("prefix", ["", "kafka.", "schema.registry."])
@pytest.mark.parametrize("name", ["basic.auth.credentials.source", "bearer.auth.credentials.source"])
def test_ignores_source_of_credentials_if_a_format_uses_a_registry(prefix: str, name: str) -> None:
    """Jobs set it together with the credentials themselves."""
    parse_options(REGISTRY_FORMAT | {prefix + name: "USER_INFO"})


@pytest.mark.parametrize(
    "names",
    [
        SOURCE_OPTIONS,
        CONSUMER_OPTIONS,
        [f"kafka.{name}" for name in CONSUMER_OPTIONS],
        [*REGISTRY_NAMES, "schema.registry.url"],
    ],
    ids=["source", "consumer", "kafka.consumer", "registry"],
)
def test_ignores_options_of_sparks_source_with_one_warning(
    names: Sequence[str], caplog: pytest.LogCaptureFixture
) -> None:
    clear_logged_warnings()
    for _ in range(3):
        assert parse_options(NEEDED | dict.fromkeys(names, "hush-hush")) == parse()
    (warning,) = caplog.messages
    assert all(name in warning.split(": ")[1].split(", ") for name in names)
    assert "hush-hush" not in warning


def test_ignored_options_are_named_as_documented(caplog: pytest.LogCaptureFixture) -> None:
    """Without `register`, Spark passes only lowercase names."""
    clear_logged_warnings()
    parse_options(NEEDED | {name.lower(): "x" for name in ("startingOffsets", "kafka.consumer.pollTimeoutMs")})
    (warning,) = caplog.messages
    assert warning.endswith(": kafka.consumer.pollTimeoutMs, startingOffsets")


@pytest.mark.parametrize("format_name", ["json", "avro"])
def test_ignores_registry_options_if_no_format_uses_a_registry(
    format_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    clear_logged_warnings()
    formats = {"valueFormat": format_name, "keyFormat": "json", "keyColumns": "id"}
    assert parse_options(NEEDED | formats | dict.fromkeys(REGISTRY_NAMES, "x")) == parse_options(NEEDED | formats)
    (warning,) = caplog.messages
    assert all(name in warning for name in REGISTRY_NAMES)


def test_ignores_options_of_other_registries_if_a_format_uses_a_registry() -> None:
    assert parse_options(REGISTRY_FORMAT | {"apicurio.registry.url": "x"}) == parse_options(REGISTRY_FORMAT)


def test_ignored_options_exclude_producer_options() -> None:
    assert not set(CONSUMER_OPTIONS) & {*PRODUCER_OPTIONS, *SECURITY_OPTIONS}
    assert not [name for name in (*PRODUCER_OPTIONS, *SECURITY_OPTIONS) if name.startswith(REGISTRY_PREFIXES)]


@pytest.mark.parametrize("prefix", ["", "schema.registry.", "kafka.", "kafka.schema.registry."])
@pytest.mark.parametrize(("name", "source"), [("auto.register.schemas", "lookup"), ("use.latest.version", "latest")])
def test_suggests_schema_source_for_option_of_confluents_serializers(prefix: str, name: str, source: str) -> None:
    (problem,) = problems(REGISTRY_FORMAT | {prefix + name: "true"})
    assert f"{prefix}{name}" in problem
    assert ". That is the name in Confluent's serializers" in problem
    assert f"Instead, use 'schemaSource', where '{source}' corresponds to " in problem


@pytest.mark.parametrize("prefix", ["", "kafka."])
@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("key.schema.id.serializer", "'schemaIdLocation', where 'header' corresponds to HeaderSchemaIdSerializer."),
        ("value.schema.id.serializer", "'schemaIdLocation', where 'header' corresponds to HeaderSchemaIdSerializer."),
        (
            "key.subject.name.strategy",
            "'subjectNameStrategy', where 'topic', 'record' and 'topicRecord' correspond to ",
        ),
        ("value.subject.name.strategy", "'subjectNameStrategy', where 'topic', 'record' and 'topicRecord' correspond"),
        ("normalize.schemas", "'schema.registry.normalize.schemas'."),
    ],
)
def test_suggests_option_for_name_in_confluents_serializers(prefix: str, name: str, suggestion: str) -> None:
    (problem,) = problems(REGISTRY_FORMAT | {prefix + name: "x"})
    assert f". That is the name in Confluent's serializers. Instead, use {suggestion}" in problem
    assert "Did you mean" not in problem


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("kafka.acks", "yes", "kafka.acks must be one of all, -1, 0, 1. It is 'yes'."),
        ("kafka.enable.idempotence", "1", "kafka.enable.idempotence must be true or false. It is '1'."),
        ("kafka.linger.ms", "5ms", "It is '5ms'."),
        ("kafka.compression.type", "lzma", "kafka.compression.type must be one of none, gzip, snappy, lz4, zstd. "),
        ("kafka.bootstrap.servers", "localhost", "kafka.bootstrap.servers has 'localhost', which is not HOST:PORT."),
        ("kafka.compresion.type", "x", "Did you mean kafka.compression.type?"),
        ("kafka.security.protocol", "TLS", "kafka.security.protocol"),
    ],
)
def test_reports_invalid_value_with_name_as_the_job_wrote_it(name: str, value: str, words: str) -> None:
    (problem,) = problems(NEEDED | {name: value})
    assert words in problem
    assert problem.count(value) <= 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kafka.interceptor.classes": "a.B"}, ["DataFrame functions before the write", "reportCallback"]),
        ({"kafka.partitioner.class": "a.B"}, ["kafka.partitioner.class must be DefaultPartitioner, UniformSticky"]),
        ({"kafka.partitioner.class": "a.B"}, ["into the column 'partition'"]),
        ({"kafka.metric.reporters": "a.B"}, ["reportPath report what was written"]),
        ({"kafka.ssl.engine.factory.class": "a.B"}, ["set kafka.ssl.keystore.* and kafka.ssl.truststore.*"]),
        ({"kafka.security.providers": "a.B"}, ["TLS is provided by Python's ssl module"]),
        (
            {"kafka.sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler"},
            ["set kafka.sasl.oauthbearer.token.callback to a function"],
        ),
        (
            {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "AWS_MSK_IAM"},
            ["set kafka.sasl.mechanism to OAUTHBEARER and kafka.sasl.oauthbearer.token.callback to a function"],
        ),
    ],
)
def test_rejects_java_class_option_with_alternative_for_spark_jobs(options: dict[str, str], words: list[str]) -> None:
    (problem,) = problems(NEEDED | {"kafka.security.protocol": "SSL"} | options)
    assert all(part in problem for part in words)
    assert "KafkaProducer" not in problem


@pytest.mark.parametrize(
    "name",
    [
        *JAVA_CLASS_OPTION_REMEDIES,
        *(name for name, option in SECURITY_OPTIONS.items() if option.unsupported_reason),
    ],
)
def test_error_of_java_class_option_advises_to_remove_it(name: str) -> None:
    (problem,) = problems(NEEDED | {f"kafka.{name}": "a.B"})
    assert "Remove the option" in problem


@pytest.mark.parametrize("name", TABLE_AND_FILE_OPTIONS)
def test_suggests_nothing_for_option_of_another_sink(name: str) -> None:
    for spelling in (name, name.lower(), name.upper()):
        (problem,) = problems(NEEDED | {spelling: "x"})
        assert problem == f"Option '{name}' is for tables or files and has no meaning for Kafka. Remove it."


@pytest.mark.parametrize("name", ["kafkaBootstrapServers", "Linger.ms", "fooBar"])
def test_names_unknown_option_as_the_caller_wrote_it(name: str) -> None:
    (problem,) = problems(NEEDED | {name: "x"})
    assert problem.startswith(f"Unknown option '{name}'. ")


@pytest.mark.parametrize("name", ["kafka.Foo.Bar", "kafka.lingerMs", "KAFKA.Foo", "kafka.Basic.Auth.User.Info"])
def test_names_unknown_kafka_option_as_the_caller_wrote_it(name: str) -> None:
    (problem,) = problems(REGISTRY_FORMAT | {name: "x"})
    assert problem.startswith(f"{name} is not an option of the Kafka producer.")


@pytest.mark.parametrize("name", ["kafka.Linger.Ms", "kafka.LINGER.MS"])
def test_names_known_kafka_option_as_documented(name: str) -> None:
    (problem,) = problems(NEEDED | {name: "x"})
    assert problem.startswith("kafka.linger.ms must be ")


@pytest.mark.parametrize("name", ASYNC_PROGRESS_OPTIONS)
def test_rejects_async_progress_tracking_by_name(name: str) -> None:
    (problem,) = problems(NEEDED | {name.lower(): "true"})
    assert problem == (
        f"Option '{name}' is not supported: Spark tracks progress asynchronously only for its own Kafka sink. "
        "Remove it."
    )


@pytest.mark.parametrize(
    "options",
    [
        {"kafka.enable.idempotence": "true", "kafka.acks": "1"},
        {"kafka.delivery.timeout.ms": "1", "kafka.linger.ms": "100"},
        {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN"},
        {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "OAUTHBEARER"},
        {"kafka.security.protocol": "SSL", "kafka.ssl.keystore.key": "x"},
        {"kafka.max.in.flight.requests.per.connection": "9"},
    ],
)
def test_faults_name_options_as_the_job_writes_them(options: dict[str, str]) -> None:
    for problem in problems(NEEDED | options):
        assert add_kafka_prefix(problem) == problem
        assert "kafka." in problem


def test_accepts_sparks_own_stream_options() -> None:
    assert parse(checkpointlocation="/c", queryname="q") == parse()


@pytest.mark.parametrize("text", ["true", "FALSE"])
def test_accepts_include_headers(text: str) -> None:
    assert parse(includeHeaders=text) == parse()


def test_accepts_only_true_and_false_as_boolean() -> None:
    (problem,) = problems(NEEDED | {"checkConnection": "maybe"})
    assert problem == "Option 'checkConnection' must be true or false. It is 'maybe'."


def test_dead_letters_require_both_options() -> None:
    assert parse(onRecordError="deadletter", deadLetterTopic="dead").dead_letter_topic == "dead"
    assert parse(onRecordError="FAIL").dead_letter_topic is None
    assert "'deadLetterTopic' must be set" in problems(NEEDED | {"onRecordError": "deadLetter"})[0]
    assert "has no effect" in problems(NEEDED | {"deadLetterTopic": "dead"})[0]
    assert "must be one of fail, deadLetter. It is 'ignore'." in problems(NEEDED | {"onRecordError": "ignore"})[0]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("topic", "deadLetterTopic"),
        ("topic", "reportTopic"),
        ("topic", "decisionLogTopic"),
        ("deadLetterTopic", "reportTopic"),
        ("reportTopic", "decisionLogTopic"),
    ],
)
def test_rejects_one_topic_for_two_options(first: str, second: str) -> None:
    """Rows and reports must stay out of the decision log, because no query of the cluster could read past them."""
    log = {"deliveryGuarantee": "exactly-once"} if second == "decisionLogTopic" else {}
    letters = {"onRecordError": "deadLetter"} if "deadLetterTopic" in (first, second) else {}
    (problem,) = problems(NEEDED | log | letters | {first: "t", second: " t "})
    assert problem == f"Option '{first}' is 't', and so is '{second}'. Set a different topic for each."


SECRETS = {
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.jaas.config": (
        'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="hush-1";'
    ),
    "kafka.ssl.truststore.password": "hush-2",
    "kafka.ssl.truststore.location": "/nowhere/hush.pem",
}


def test_repr_of_options_contains_no_secret() -> None:
    options = parse_options(NEEDED | SECRETS)
    assert "hush-" not in repr(options)
    assert "hush-" not in str(options)


def test_errors_about_options_contain_no_secret() -> None:
    wrong = {"kafka.sasl.jaas.config": "nonsense hush-3", "kafka.ssl.keystore.key": "hush-4", "kafka.acks": "5"}
    text = "\n".join(problems(NEEDED | SECRETS | wrong | {"kafka.sasl.jaas.confg": "hush-5"}))
    assert "acks" in text
    assert "sasl.jaas.confg" in text
    assert "hush-" not in text


def test_options_can_be_pickled_to_the_tasks() -> None:
    options = parse_options(NEEDED | SECRETS)
    assert pickle.loads(pickle.dumps(options)) == options


def test_parses_producer_config_once_and_does_not_pickle_it() -> None:
    options = parse()
    bare = pickle.dumps(options)
    assert options.producer_config() is options.producer_config()
    assert pickle.dumps(options) == bare
    assert pickle.loads(bare) == options

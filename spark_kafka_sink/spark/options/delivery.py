"""The options of `deliveryGuarantee`, and what stands against it among the others."""

from __future__ import annotations

from spark_kafka_sink.client.new_topic import BROKER_DEFAULT
from spark_kafka_sink.client.option_parsing import ParsedOptions, choice_parser, parse_optional_text, parse_text
from spark_kafka_sink.exactly_once.delivery import DeliveryOptions
from spark_kafka_sink.exactly_once.transaction_names import DECISION_LOG_TOPIC, find_prefix_error
from spark_kafka_sink.options import HiddenValueError, Option
from spark_kafka_sink.producer.config import conflicts_with_idempotence
from spark_kafka_sink.spark.options.names import KAFKA_PREFIX
from spark_kafka_sink.spark.options.values import replication, text_without_error, topic_name

AT_LEAST_ONCE, EXACTLY_ONCE = "at-least-once", "exactly-once"
MISMATCH_FAILS, MISMATCH_WARNS = "fail", "warn"
TRANSACTION_TIMEOUT_OPTION = "transaction.timeout.ms"
_KEY_CHARACTERS_MAX = 200


def _key(value: object) -> str:
    key = parse_text(value)
    if not 1 <= len(key) <= _KEY_CHARACTERS_MAX:
        raise HiddenValueError(f"must have 1 to {_KEY_CHARACTERS_MAX} characters; it has {len(key)}")
    return key


DELIVERY_OPTIONS = (
    Option(
        "deliveryGuarantee",
        AT_LEAST_ONCE,
        choice_parser(AT_LEAST_ONCE, EXACTLY_ONCE),
        "`exactly-once`: readers with `isolation.level=read_committed` see each row exactly once, and no row of a job "
        "that failed",
    ),
    Option(
        "transactionalIdPrefix",
        None,
        text_without_error(find_prefix_error),
        "the beginning of all transactional ids of this query or job; without it a stream's is made from "
        "`checkpointLocation`, and a job's from `topic` and `idempotencyKey`, or new each time",
    ),
    Option("idempotencyKey", None, _key, "of a batch job: a job whose key is committed already writes nothing"),
    Option(
        "onReplayMismatch",
        MISMATCH_FAILS,
        choice_parser(MISMATCH_FAILS, MISMATCH_WARNS),
        "what to do if a committed batch comes again with another number of rows, or if it is not known who has "
        "committed it: `fail`, or `warn` and keep what was committed",
    ),
    Option(
        "decisionLogTopic",
        DECISION_LOG_TOPIC,
        topic_name,
        "the compacted topic for what is decided; created if it is missing",
    ),
    Option(
        "decisionLogReplication",
        BROKER_DEFAULT,
        replication,
        "its replicas, if it is created; -1 leaves them to the brokers",
    ),
)
CHECKPOINT_LOCATION_OPTION = Option("checkpointLocation", None, parse_optional_text, "of a stream; Spark's own")


def parse_delivery(parsed_options: ParsedOptions, producer: ParsedOptions) -> DeliveryOptions | None:
    """What exactly once needs to know, None for at least once.

    `parsed_options` is of the sink's own options, `producer` of those of the producer.
    """
    values = parsed_options.values
    if values["deliveryGuarantee"] != EXACTLY_ONCE:
        if "deliveryGuarantee" not in parsed_options.invalid_fields:
            parsed_options.reject_unused(DELIVERY_OPTIONS[1:], f"{{deliveryGuarantee}} is '{EXACTLY_ONCE}'")
        return None
    has_timeout = (
        TRANSACTION_TIMEOUT_OPTION in producer.raw_values and "transaction_timeout_ms" not in producer.invalid_fields
    )
    _check_conflicts(parsed_options, producer)
    return DeliveryOptions(
        prefix=values["transactionalIdPrefix"],
        key=values["idempotencyKey"],
        topic=values["decisionLogTopic"],
        replication=values["decisionLogReplication"],
        timeout_ms=producer.values["transaction_timeout_ms"] if has_timeout else None,
        checkpoint=values["checkpointLocation"],
        tolerate_mismatch=values["onReplayMismatch"] == MISMATCH_WARNS,
    )


def _check_conflicts(parsed_options: ParsedOptions, producer: ParsedOptions) -> None:
    asked = f"is '{EXACTLY_ONCE}', so"
    if parsed_options.values["onRecordError"] == "deadLetter":
        parsed_options.faults.add(
            "deliveryGuarantee",
            f"{asked} {{onRecordError}} must be 'fail': a record that is refused makes its transaction one that can "
            "only be aborted, so that no other row of the task could be committed.",
        )
    if not producer.values["enable_idempotence"]:
        parsed_options.faults.add("deliveryGuarantee", f"{asked} {KAFKA_PREFIX}enable.idempotence must not be false.")
    for option, requirement in conflicts_with_idempotence(producer).items():
        parsed_options.faults.add("deliveryGuarantee", f"{asked} {KAFKA_PREFIX}{option} {requirement}.")

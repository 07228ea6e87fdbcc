"""The option `deliveryGuarantee`, the options that depend on it, and their conflicts with other options."""

from __future__ import annotations

from spark_kafka_sink.client.new_topic import BROKER_DEFAULT
from spark_kafka_sink.client.option_parsing import ParsedOptions, build_choice_parser, parse_optional_text, parse_text
from spark_kafka_sink.exactly_once.job_names import JOB_PREFIX, is_generated_job_prefix
from spark_kafka_sink.exactly_once.settings import ExactlyOnceOptions
from spark_kafka_sink.exactly_once.transaction_names import DECISION_LOG_TOPIC, find_prefix_error
from spark_kafka_sink.options import HiddenValueError, Option
from spark_kafka_sink.producer.config import find_idempotence_conflicts
from spark_kafka_sink.spark.options.names import KAFKA_PREFIX
from spark_kafka_sink.spark.options.values import build_checked_text_parser, parse_replication_factor, parse_topic_name

AT_LEAST_ONCE, EXACTLY_ONCE = "at-least-once", "exactly-once"
"""Values of the option deliveryGuarantee."""
FAIL_ON_MISMATCH, WARN_ON_MISMATCH = "fail", "warn"
"""Values of the option onReplayMismatch."""
TRANSACTION_TIMEOUT_OPTION = "transaction.timeout.ms"
_MAX_IDEMPOTENCY_KEY_CHARACTERS = 200


def parse_idempotency_key(value: object) -> str:
    """Return the key. Raise HiddenValueError, which does not show the key, if it is empty or too long."""
    key = parse_text(value)
    if not 1 <= len(key) <= _MAX_IDEMPOTENCY_KEY_CHARACTERS:
        raise HiddenValueError(f"must have 1 to {_MAX_IDEMPOTENCY_KEY_CHARACTERS} characters; it has {len(key)}")
    return key


def _find_user_prefix_error(prefix: str) -> str | None:
    """Return the reason why a user's prefix is invalid, or None if it is valid."""
    if is_generated_job_prefix(prefix):
        return (
            f"it must not begin with '{JOB_PREFIX}'. The sink generates such prefixes for jobs without a name, and "
            "deletes their entries from the decision log. Choose another prefix"
        )
    return find_prefix_error(prefix)


DELIVERY_OPTIONS = (
    Option(
        "deliveryGuarantee",
        AT_LEAST_ONCE,
        build_choice_parser(AT_LEAST_ONCE, EXACTLY_ONCE),
        "`exactly-once`: readers with `isolation.level=read_committed` see each row exactly once, and no row of a job "
        "that failed",
    ),
    Option(
        "transactionalIdPrefix",
        None,
        build_checked_text_parser(_find_user_prefix_error),
        "prefix of all transactional ids of this query or job; by default derived from `checkpointLocation` for a "
        "stream, from `topic` and `idempotencyKey` for a job, and generated for each run of a job without a key",
    ),
    Option(
        "idempotencyKey",
        None,
        parse_idempotency_key,
        "for batch jobs: a job writes nothing if a job with the same key has already committed rows",
    ),
    Option(
        "onReplayMismatch",
        FAIL_ON_MISMATCH,
        build_choice_parser(FAIL_ON_MISMATCH, WARN_ON_MISMATCH),
        "what happens if a committed batch is written again with a different number of rows, or if it is unknown who "
        "committed it: `fail`, or `warn` and keep what was committed",
    ),
    Option(
        "decisionLogTopic",
        DECISION_LOG_TOPIC,
        parse_topic_name,
        "topic of the decision log, which must be compacted; created if it is missing",
    ),
    Option(
        "decisionLogReplication",
        BROKER_DEFAULT,
        parse_replication_factor,
        "replication factor with which the sink creates the decision log; -1 for the brokers' default",
    ),
)
_DEPENDENT_OPTIONS = DELIVERY_OPTIONS[1:]
"""The options that have no effect unless deliveryGuarantee is `exactly-once`."""
CHECKPOINT_LOCATION_OPTION = Option("checkpointLocation", None, parse_optional_text, "Spark's own option for streams")


def parse_delivery(parsed_options: ParsedOptions, parsed_producer_options: ParsedOptions) -> ExactlyOnceOptions | None:
    """Return the options of exactly-once delivery, or None for at-least-once delivery.

    Add a problem to `parsed_options` for each option that conflicts with the guarantee or has no effect without it.

    `parsed_options`: the sink's own options.
    `parsed_producer_options`: the producer's options.
    """
    option_values = parsed_options.values
    if option_values["deliveryGuarantee"] != EXACTLY_ONCE:
        # After an invalid value, it is unknown whether the other options have an effect.
        if "deliveryGuarantee" not in parsed_options.invalid_fields:
            parsed_options.reject_unused(_DEPENDENT_OPTIONS, f"{{deliveryGuarantee}} is '{EXACTLY_ONCE}'")
        return None
    # Without a valid timeout from the user, the driver chooses one (exactly_once/settings.py).
    has_user_timeout = (
        TRANSACTION_TIMEOUT_OPTION in parsed_producer_options.raw_values
        and "transaction_timeout_ms" not in parsed_producer_options.invalid_fields
    )
    _check_conflicts(parsed_options, parsed_producer_options)
    return ExactlyOnceOptions(
        prefix=option_values["transactionalIdPrefix"],
        idempotency_key=option_values["idempotencyKey"],
        log_topic=option_values["decisionLogTopic"],
        log_replication_factor=option_values["decisionLogReplication"],
        transaction_timeout_ms=parsed_producer_options.values["transaction_timeout_ms"] if has_user_timeout else None,
        checkpoint_location=option_values["checkpointLocation"],
        tolerate_replay_mismatch=option_values["onReplayMismatch"] == WARN_ON_MISMATCH,
    )


def _check_conflicts(parsed_options: ParsedOptions, parsed_producer_options: ParsedOptions) -> None:
    """Add a problem to `parsed_options` for each option value that exactly-once delivery does not allow."""
    # Each problem is a sentence that begins with the name of the option deliveryGuarantee.
    premise = f"is '{EXACTLY_ONCE}', so"
    if parsed_options.values["onRecordError"] == "deadLetter":
        parsed_options.problems.add(
            "deliveryGuarantee",
            f"{premise} {{onRecordError}} must be 'fail': after a rejected record, its transaction can only be "
            "aborted, so no other row of the task could be committed.",
        )
    if not parsed_producer_options.values["enable_idempotence"]:
        parsed_options.problems.add(
            "deliveryGuarantee", f"{premise} {KAFKA_PREFIX}enable.idempotence must not be false."
        )
    for option, requirement in find_idempotence_conflicts(parsed_producer_options).items():
        parsed_options.problems.add("deliveryGuarantee", f"{premise} {KAFKA_PREFIX}{option} {requirement}.")

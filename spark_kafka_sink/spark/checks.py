"""Checks of the options, the schema and the connection to Kafka before any row is read.

Spark asks a Python data source for its writer only after all stages before the write have run. The methods that
`register` installs therefore run the checks earlier, before Spark plans the write. In classic Spark, the process that
calls these methods is the driver, so it runs the checks itself. With Spark Connect, that process is a client, for which
the driver runs the checks (connect_checks.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pyspark.sql.types import StructType

from spark_kafka_sink.diagnostics.deferred_log import defer_log
from spark_kafka_sink.errors import ConfigurationError, OptionProblems, PreflightError, SchemaError
from spark_kafka_sink.exactly_once.transaction_names import GENERATED_PREFIX, build_driver_id, derive_prefix
from spark_kafka_sink.formats.encoder import ColumnsEncoder
from spark_kafka_sink.formats.encoder_builders import build_encoders
from spark_kafka_sink.formats.options import find_encoded_parts
from spark_kafka_sink.preflight import CheckResult, Outcome, Target, build_preflight_error, preflight
from spark_kafka_sink.producer.column_plan import ColumnPlan
from spark_kafka_sink.spark.columns import plan_columns
from spark_kafka_sink.spark.constants import DISTRIBUTED_BY_OPTION
from spark_kafka_sink.spark.distribution import find_distribution_problems, split_off_target_partition
from spark_kafka_sink.spark.options.names import SINK_OPTION_SPELLING, add_kafka_prefix
from spark_kafka_sink.spark.options.parse import parse_options
from spark_kafka_sink.spark.options.sink_options import SinkOptions
from spark_kafka_sink.spark.report_publishing import check_report_options
from spark_kafka_sink.spark.topic_creation import create_topic_if_missing, log_preflight_warnings
from spark_kafka_sink.spark.value_formats import SparkColumns, add_schema_ids

_UNREACHABLE_REMEDY = 'If only the executors can reach Kafka, set .option("checkConnection", "false").'

_MAX_CHECKED_CONNECTIONS = 1_000
_checked_connections: set[tuple[object, ...]] = set()
"""Targets and producer options that passed the connection check.

Each connection is checked only once in a process, so that a broker that restarts between micro-batches does not fail a
stream. Limitation: without `register`, the checks run in a Python worker for each micro-batch. Spark stops a worker
that has been idle for a minute, and the next worker checks the connection again.
"""


def clear_cache() -> None:
    """Forget which connections were checked (tests only)."""
    _checked_connections.clear()


def check_and_plan_write(
    options: Mapping[str, str], schema: StructType, stream_start_id: str | None = None, *, check_servers: bool = True
) -> tuple[SinkOptions, ColumnPlan]:
    """Check a write before any row is read, and return its parsed options and its column plan.

    Raise a KafkaSinkError if a check fails. Log messages are held back until the checks end, and dropped if a check
    fails, so that the user sees only the error.

    `stream_start_id`: an id for this run of the stream, or "" if `register` was not called. None for batch writes,
    unless `register` runs them as micro-batches of a stream, and for the checks before a stream starts.
    `check_servers`: whether to check the connection to Kafka and the report's destinations as well, and to add the
    registry's schema ids to the plan.
    """
    # Messages about waiting for the schema registry are exempt, because they must appear while the checks wait.
    with defer_log(exempt="spark_kafka_sink.formats"):
        sink_options, plan = check_options_and_schema(options, schema)
        if check_servers:
            plan = check_servers_and_add_schema_ids(sink_options, plan, stream_start_id)
        return sink_options, plan


def check_options_and_schema(options: Mapping[str, str], schema: StructType) -> tuple[SinkOptions, ColumnPlan]:
    """Check the options and the schema without any connection. Return the parsed options and the column plan.

    Raise ConfigurationError with all problems in the options and the schema, or SchemaError if only the schema has
    problems.
    """
    # If the options are invalid, the schema is still checked, so that one error reports all problems. This check uses
    # the topic and the encoded parts from the unparsed options, and None in place of encoders that cannot be built.
    fixed_topic = next((value for name, value in options.items() if name.lower() == "topic"), None)
    encoders: dict[str, ColumnsEncoder | None] = dict.fromkeys(find_encoded_parts(options))
    # If `register` has distributed the rows, the last column is not the user's.
    schema, target_partition_position = split_off_target_partition(schema, options.get(DISTRIBUTED_BY_OPTION))
    format_problems = OptionProblems()
    try:
        sink_options = parse_options(options)
        fixed_topic = sink_options.topic
        encoders = build_encoders(sink_options.formats, SparkColumns(schema), format_problems)
        problems = format_problems.render(SINK_OPTION_SPELLING)
    except ConfigurationError as error:
        problems = [*format_problems.render(SINK_OPTION_SPELLING), *error.problems]
    try:
        plan = plan_columns(schema, fixed_topic, encoders)
    except SchemaError as error:
        if not problems:
            raise
        # plan_columns writes one line per problem.
        problems += str(error).splitlines()
    # The distribution can be checked only with valid options and a valid schema. Without problems, `sink_options` and
    # `plan` are set.
    if not problems:
        problems += find_distribution_problems(sink_options, plan, schema)
    if problems:
        raise ConfigurationError(problems)
    if target_partition_position is not None:
        plan = replace(plan, partition=target_partition_position)
    return sink_options, plan


def check_servers_and_add_schema_ids(
    options: SinkOptions, plan: ColumnPlan, stream_start_id: str | None = None
) -> ColumnPlan:
    """Check the connection to Kafka and the report's destinations. Return the plan with the registry's schema ids.

    With createTopic, a missing topic is created. Raise a KafkaSinkError if a check fails.

    `stream_start_id`: as in `check_and_plan_write`. The latest schemas are cached by this id.
    """
    check_connection_and_create_topic(options, is_stream=stream_start_id is not None)
    check_report_options(options)
    return add_schema_ids(plan, options, stream_start_id)


def check_connection_and_create_topic(options: SinkOptions, *, is_stream: bool = False) -> None:
    """Check that this process can write to Kafka and, with createTopic, create a missing topic.

    A connection that has passed the check is not checked again in this process, with one exception: with createTopic,
    every batch write repeats the check, because the topic may have been deleted in the meantime. The micro-batches of a
    stream do not repeat it, because a broker may restart between two of them, and this must not fail the stream.

    Raise PreflightError if the check fails or if the topic cannot be created.
    """
    target = build_write_target(options)
    connection_key = (target, options.check_connection, *sorted(options.producer_options.items()))
    must_check_topic = target.new_topic is not None and not is_stream
    can_skip_check = connection_key in _checked_connections and not must_check_topic
    has_nothing_to_check = not options.check_connection and target.new_topic is None
    if can_skip_check or has_nothing_to_check:
        return
    checks = _run_preflight(options, target)
    log_preflight_warnings(checks)
    if target.new_topic is not None and create_topic_if_missing(options, target.new_topic):
        # The first run could not check the topic, because it did not exist yet.
        _run_preflight(options, replace(target, new_topic=None))
    if len(_checked_connections) >= _MAX_CHECKED_CONNECTIONS:
        # The set must not grow without limit in a long-lived driver with many jobs.
        _checked_connections.clear()
    _checked_connections.add(connection_key)


def _run_preflight(options: SinkOptions, target: Target) -> list[CheckResult]:
    """Run the preflight checks and return their results, or an empty list if checkConnection is false.

    If a check fails, raise PreflightError, and drop the client's log messages about its connections.
    """
    if not options.check_connection:
        return []
    with defer_log():
        checks = preflight(options.producer_config().client_config(), target)
        error = build_preflight_error(checks)
        if error is not None:
            # Suggest turning the check off only if that may help: the driver cannot reach Kafka, but the executors may.
            # If Kafka has responded to the driver with an error, the executors would get the same response. With
            # exactly-once delivery, the driver itself needs Kafka in order to commit.
            only_connectivity_failed = all(
                check.is_connectivity_failure for check in checks if check.outcome is Outcome.FAILED
            )
            should_suggest_disabling = only_connectivity_failed and options.exactly_once_options is None
            remedy = f"\n{_UNREACHABLE_REMEDY}" if should_suggest_disabling else ""
            raise PreflightError(add_kafka_prefix(f"{error}{remedy}"))
    return checks


def build_write_target(options: SinkOptions) -> Target:
    """Build the target for the preflight checks of a write. Used by the driver and by `pykafka doctor`."""
    optional_topics = (options.topic, options.dead_letter_topic, options.report_topic)
    configured_topics = tuple(topic for topic in optional_topics if topic is not None)
    topic_option_pairs = ((options.dead_letter_topic, "deadLetterTopic"), (options.report_topic, "reportTopic"))
    transactional_id = None
    prefix = ""
    if options.exactly_once_options is not None:
        # If the user sets no prefix, each query or job gets its own. Users can then grant permissions only for all ids
        # that begin with GENERATED_PREFIX, so check the permissions with an example of such an id.
        transactional_id = build_driver_id(options.exactly_once_options.prefix or derive_prefix("check", ""))
        prefix = options.exactly_once_options.prefix or GENERATED_PREFIX
    return Target(
        configured_topics,
        topic_option_names=tuple(
            (topic, option) for topic, option in topic_option_pairs if topic is not None and topic != options.topic
        ),
        connect_all_brokers=options.topic is None,
        new_topic=options.new_topic,
        idempotent=options.producer_config().enable_idempotence,
        transactional_id=transactional_id,
        transactional_id_prefix=prefix,
        exactly_once=options.exactly_once_options is not None,
    )

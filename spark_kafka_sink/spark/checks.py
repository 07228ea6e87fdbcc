"""What can be found wrong with a write before any row is read: its options, its schema, and whether Kafka takes it.

Spark asks a data source in Python for its writer only when all stages before the write have run, so `register` looks
sooner: before Spark plans. In classic Spark the driver is this program. With Spark Connect it is another one, which
makes the checks for its client (`connect_checks.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pyspark.sql.types import StructType

from spark_kafka_sink.diagnostics.deferred_log import defer_log
from spark_kafka_sink.errors import ConfigurationError, OptionFaults, PreflightError, SchemaError
from spark_kafka_sink.exactly_once.transaction_names import GENERATED_PREFIX, derive_prefix, driver_id
from spark_kafka_sink.formats.encoder import ColumnsEncoder
from spark_kafka_sink.formats.encoder_builders import build_encoders
from spark_kafka_sink.formats.options import find_encoded_sides
from spark_kafka_sink.preflight import Check, Outcome, Target, build_preflight_error, preflight
from spark_kafka_sink.producer.column_plan import ColumnPlan
from spark_kafka_sink.spark.columns import plan_columns
from spark_kafka_sink.spark.constants import DISTRIBUTED_BY_OPTION
from spark_kafka_sink.spark.distribution import find_distribution_faults, split_off_target_partition
from spark_kafka_sink.spark.options.names import SINK_SPELLING, add_kafka_prefix
from spark_kafka_sink.spark.options.parse import parse_options
from spark_kafka_sink.spark.options.sink_options import SinkOptions
from spark_kafka_sink.spark.report_publishing import check_report_options
from spark_kafka_sink.spark.topic_creation import create_if_missing, log_warnings
from spark_kafka_sink.spark.value_formats import SparkColumns, add_schema_ids

_WHERE_TO_LOOK = 'If only the executors can reach Kafka, say .option("checkConnection", "false").'

_REACHABLE_MAX = 1_000
_reachable: set[tuple[object, ...]] = set()
"""Options whose connection was checked: a stream must not fail because a broker restarts when a micro-batch begins.

With `register` the start of a stream checks, and no micro-batch. Without it each micro-batch does, in a Python worker.
Spark ends a worker that was idle for a minute: then the next micro-batch looks again.
"""


def forget() -> None:
    """For tests: as in a new process."""
    _reachable.clear()


def check_all(
    options: Mapping[str, str], schema: StructType, start: str | None = None, *, ask: bool = True
) -> tuple[SinkOptions, ColumnPlan]:
    """Options, schema and, if `ask`, the servers. If that raises, only the error is shown, and no warning."""
    with defer_log(exempt="spark_kafka_sink.formats"):  # the schema registry may ask to wait
        parsed, plan = check_options_and_schema(options, schema)
        return parsed, run_server_checks(parsed, plan, start) if ask else plan


def check_options_and_schema(options: Mapping[str, str], schema: StructType) -> tuple[SinkOptions, ColumnPlan]:
    """The faults of the options and those of the schema in one error; none of them needs a broker."""
    # Where the options are faulty, the schema is looked at with those of them that concern it.
    fixed_topic = next((value for name, value in options.items() if name.lower() == "topic"), None)
    encoders: dict[str, ColumnsEncoder | None] = {**find_encoded_sides(options)}
    schema, target = split_off_target_partition(schema, options.get(DISTRIBUTED_BY_OPTION))
    try:
        parsed = parse_options(options)
        fixed_topic = parsed.topic
        of_formats = OptionFaults()
        encoders = build_encoders(parsed.formats, SparkColumns(schema), of_formats)
        faults = of_formats.render(SINK_SPELLING)
    except ConfigurationError as error:
        faults = [*error.faults]
    try:
        plan = plan_columns(schema, fixed_topic, encoders)
    except SchemaError as error:
        if not faults:
            raise
        faults += str(error).splitlines()
    if not faults:
        faults += find_distribution_faults(parsed, plan, schema)
    if faults:
        raise ConfigurationError(faults)
    return parsed, plan if target is None else replace(plan, partition=target)


def run_server_checks(options: SinkOptions, plan: ColumnPlan, start: str | None = None) -> ColumnPlan:
    """Check the connection to Kafka, and ask the schema registry: the plan with the ids of its schemas. `start`: of a
    stream, for which each schema is asked for once.
    """
    check_connection(options, start)
    check_report_options(options)
    return add_schema_ids(plan, options, start)


def check_connection(options: SinkOptions, start: str | None = None) -> None:
    """PreflightError if Kafka cannot be written to from here. What has passed once is not looked at again.

    A topic that is missing is created if that was asked for. It may have been deleted since, so each write looks, but
    not each micro-batch of a stream, which has a `start`.

    The client's lines about its connections appear if it passes.
    """
    target = build_write_target(options)
    looked_at = (target, options.check_connection, *sorted(options.producer.items()))
    may_create = target.new_topic is not None and start is None
    if (looked_at in _reachable and not may_create) or not (options.check_connection or target.new_topic):
        return
    checks = _checked(options, target)
    log_warnings(checks)
    if target.new_topic is not None and create_if_missing(options, target.new_topic):
        _checked(options, replace(target, new_topic=None))
    if len(_reachable) >= _REACHABLE_MAX:
        _reachable.clear()
    _reachable.add(looked_at)


def _checked(options: SinkOptions, target: Target) -> list[Check]:
    """None where no checks are wanted."""
    if not options.check_connection:
        return []
    with defer_log():
        checks = preflight(options.producer_config().client_config(), target)
        error = build_preflight_error(checks)
        if error is not None:
            # With exactly once the driver itself commits: it must reach Kafka. Where Kafka has answered, executors
            # get the same answer.
            is_unreachable = all(check.concerns_address for check in checks if check.outcome is Outcome.FAILED)
            elsewhere = f"\n{_WHERE_TO_LOOK}" if is_unreachable and options.exactly_once is None else ""
            raise PreflightError(add_kafka_prefix(f"{error}{elsewhere}"))
    return checks


def build_write_target(options: SinkOptions) -> Target:
    """What a write needs of Kafka, for the driver and for `pykafka doctor`."""
    named = (options.topic, options.dead_letter_topic, options.report_topic)
    topics = tuple(topic for topic in named if topic is not None)
    others = ((options.dead_letter_topic, "deadLetterTopic"), (options.report_topic, "reportTopic"))
    transactional_id, prefix = None, ""
    if options.exactly_once is not None:
        # Where the user gives no prefix, the check uses one that begins like the sink's own: rights are granted for the
        # beginnings of names.
        transactional_id = driver_id(options.exactly_once.prefix or derive_prefix("check", ""))
        prefix = options.exactly_once.prefix or GENERATED_PREFIX
    return Target(
        topics,
        topic_option_names=tuple(
            (topic, name) for topic, name in others if topic is not None and topic != options.topic
        ),
        connect_all_brokers=options.topic is None,
        new_topic=options.new_topic,
        idempotent=options.producer_config().enable_idempotence,
        transactional_id=transactional_id,
        transactional_id_prefix=prefix,
        exactly_once=options.exactly_once is not None,
    )

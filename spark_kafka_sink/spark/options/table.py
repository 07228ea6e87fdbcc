"""The table of the sink's options. docs/options.md is generated from it, in the same order.

Options for distribution, new topics, formats, schema registries, racks, the write method and delivery are defined in
modules of their own.
"""

from __future__ import annotations

from spark_kafka_sink.client.option_parsing import (
    build_choice_parser,
    build_integer_parser,
    parse_boolean,
    parse_optional_text,
)
from spark_kafka_sink.formats.options import FORMAT_OPTIONS
from spark_kafka_sink.formats.registry_options import REGISTRY_OPTIONS
from spark_kafka_sink.options import Option, build_option_table
from spark_kafka_sink.reports.store import find_path_error
from spark_kafka_sink.spark.options.client_rack import CLIENT_RACK_ENV_OPTION
from spark_kafka_sink.spark.options.create_topic import CREATE_TOPIC_OPTIONS
from spark_kafka_sink.spark.options.delivery import CHECKPOINT_LOCATION_OPTION, DELIVERY_OPTIONS
from spark_kafka_sink.spark.options.distribution import DISTRIBUTION_OPTIONS, MAX_TASK_COUNT
from spark_kafka_sink.spark.options.sink_options import SinkOptions
from spark_kafka_sink.spark.options.values import build_checked_text_parser, parse_topic_name
from spark_kafka_sink.spark.options.write_method import WRITE_METHOD_OPTION

MAX_BYTES_PER_SECOND = 1 << 50
"""Largest value of the option maxBytesPerSecond. No cluster reaches this rate."""

_OPTIONS = (
    Option("topic", SinkOptions.topic, parse_topic_name, "the topic to write to; overrides the `topic` column"),
    Option(
        "includeHeaders",
        False,
        parse_boolean,
        "no effect, as in Spark's own sink: headers are written if there is a `headers` column",
    ),
    *CREATE_TOPIC_OPTIONS,
    *DISTRIBUTION_OPTIONS,
    *FORMAT_OPTIONS,
    *REGISTRY_OPTIONS,
    Option(
        "onRecordError",
        "fail",
        build_choice_parser("fail", "deadLetter"),
        "`fail` fails the task; `deadLetter` writes rejected records to `deadLetterTopic`",
    ),
    Option(
        "deadLetterTopic",
        SinkOptions.dead_letter_topic,
        parse_topic_name,
        "topic for rejected records; required with `onRecordError` = `deadLetter`",
    ),
    Option(
        "checkConnection",
        SinkOptions.check_connection,
        parse_boolean,
        "let the driver check that it can write to Kafka before any task starts",
    ),
    Option(
        "reportPath",
        SinkOptions.report_path,
        build_checked_text_parser(find_path_error),
        "file, or directory on any file system, to which the driver "
        "[writes](security.md#decide-who-may-set-options) a JSON report of each write, committed or failed",
    ),
    Option(
        "reportTopic",
        SinkOptions.report_topic,
        parse_topic_name,
        "topic to which the driver writes a JSON report of each write, committed or failed",
    ),
    Option(
        "reportCallback",
        SinkOptions.report_callback,
        parse_optional_text,
        "Python function, as `module:function`, that the driver "
        "[imports and calls](security.md#decide-who-may-set-options) with a report of each write, committed or failed",
    ),
    Option(
        "receipt",
        SinkOptions.include_digests,
        parse_boolean,
        "add a digest of the rows of each partition to the report of each write, so that `pykafka verify` can later "
        "[check the topic](receipts.md)",
    ),
    Option(
        "maxTasks",
        None,
        build_integer_parser(1, MAX_TASK_COUNT),
        "maximum number of tasks: the rows are [coalesced](tuning.md#limit-tasks-and-rate) before the write",
    ),
    Option(
        "maxBytesPerSecond",
        SinkOptions.bytes_per_second,
        build_integer_parser(1, MAX_BYTES_PER_SECOND),
        "maximum number of bytes per second that all tasks together write, before compression; each task has "
        "[an equal share](tuning.md#limit-tasks-and-rate)",
    ),
    CLIENT_RACK_ENV_OPTION,
    WRITE_METHOD_OPTION,
    *DELIVERY_OPTIONS,
    CHECKPOINT_LOCATION_OPTION,
    Option("queryName", None, parse_optional_text, "Spark's own option for streams; the sink ignores it"),
)
SINK_OPTIONS = build_option_table(_OPTIONS)
OPTION_NAMES_BY_LOWERCASE = {name.lower(): name for name in SINK_OPTIONS if not name.endswith("*")}
"""Option names by lowercase name, because Spark passes option names in lowercase.

The entry `createTopic.config.*` stands for all topic settings, so it is not the name of an option.
"""

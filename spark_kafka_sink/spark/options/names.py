"""Option names as Spark jobs spell them, and options that get a specific error message.

A Spark job sets `kafka.linger.ms`. The producer, the client and preflight do not depend on Spark, so they write
`linger.ms`. Errors about invalid options are rendered with PREFIXED_OPTION_SPELLING. Errors raised during a write are
already text, so `add_kafka_prefix` inserts the prefix afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

from spark_kafka_sink.errors import KafkaSinkError, OptionProblem, OptionSpelling
from spark_kafka_sink.network.security_options import SECURITY_OPTIONS
from spark_kafka_sink.producer.options import PRODUCER_OPTIONS, UNSUPPORTED_PARTITIONER_MESSAGE

KAFKA_PREFIX = "kafka."
PRODUCER_OPTION_NAMES = (*PRODUCER_OPTIONS, *SECURITY_OPTIONS)
SINK_OPTION_SPELLING = OptionSpelling("'{}'".format, "Option ")
"""Renders the names of the sink's own options, for example as Option 'topic'."""
PREFIXED_OPTION_SPELLING = OptionSpelling(f"{KAFKA_PREFIX}{{}}".format)
"""Renders the names of the producer's options, for example as kafka.linger.ms."""

NAMES_LEFT_ALONE = tuple(
    name
    for name in PRODUCER_OPTION_NAMES
    if "." not in name or name.startswith("compression.") or name == "transactional.id"
)
"""Options that get no prefix in text.

Names without a dot may be ordinary words, topics have settings named `compression.*`, and the sink itself sets the
transactional ids.
"""
_PREFIXED_NAMES_LONGEST_FIRST = sorted({*PRODUCER_OPTION_NAMES} - {*NAMES_LEFT_ALONE}, key=len, reverse=True)
"""The other options, longest first, because a regular expression takes the first alternative that matches."""
_OPTION_FAMILIES = ("ssl.keystore.*", "ssl.truststore.*", "sasl.oauthbearer.*")
"""Groups of options that errors name as a whole."""

JAVA_CLASS_OPTION_REMEDIES = {
    "key.serializer": "Remove the option, and cast the column 'key' to STRING or BINARY, or set keyFormat",
    "value.serializer": "Remove the option, and cast the column 'value' to STRING or BINARY, or set valueFormat",
    "interceptor.classes": (
        "Remove the option, and use DataFrame functions before the write to change rows, or the options "
        "reportCallback, reportTopic or reportPath to learn what was written"
    ),
    "metric.reporters": (
        "Remove the option. The options reportCallback, reportTopic and reportPath report what was written"
    ),
    "config.providers": (
        "Remove the option, read the secret in the program that starts the job, and set the option that needs the "
        "secret to its value"
    ),
}
"""The replacement for an option that names a Java class."""

REJECTED_OPTION_MESSAGES = {
    # The first two messages begin with the text of Spark's own sink, which users may search for. Without the prefix,
    # Spark's sink ignores both options. Here they are rejected, because the author of the job may expect the format of
    # the serializer in the topic. Ignoring them would also make few jobs work unchanged: options that a job shares with
    # a plain producer include others without the prefix, such as bootstrap.servers.
    "key.serializer": (
        "Kafka option 'key.serializer' is not supported as keys are serialized with ByteArraySerializer. "
        f"{JAVA_CLASS_OPTION_REMEDIES['key.serializer']}."
    ),
    "value.serializer": (
        "Kafka option 'value.serializer' is not supported as value are serialized with ByteArraySerializer. "
        f"{JAVA_CLASS_OPTION_REMEDIES['value.serializer']}."
    ),
    "transactional.id": (
        "Kafka option 'transactional.id' cannot be set: each task needs its own transactional id. Remove the option. "
        "For transactions, set deliveryGuarantee to 'exactly-once'."
    ),
}
"""Producer options that Spark jobs cannot set, each with its error message."""
_PARTITIONER_REMEDY = (
    "Compute the partition into the column 'partition'. Without this column, rows with a key go to the partition that "
    "the Java client chooses"
)

_TABLE_WRITE_OPTIONS = (
    "dataChange maxRecordsPerFile mergeSchema optimizeWrite overwriteSchema partitionOverwriteMode replaceWhere "
    "txnAppId txnVersion userMetadata"
)
_TEXT_FILE_OPTIONS = (
    "dateFormat delimiter encoding escape header ignoreLeadingWhiteSpace inferSchema lineSep multiLine nullValue "
    "pathGlobFilter quote recursiveFileLookup sep timestampFormat"
)
_JDBC_OPTIONS = "createTableOptions dbtable driver isolationLevel numPartitions password query truncate url user"
TABLE_AND_FILE_OPTIONS = tuple(f"{_TABLE_WRITE_OPTIONS} {_TEXT_FILE_OPTIONS} {_JDBC_OPTIONS}".split())
"""Options of Delta tables, files and JDBC that jobs tend to carry over. None of them applies to Kafka."""

ASYNC_PROGRESS_OPTIONS = (
    "asyncProgressTrackingEnabled",
    "asyncProgressTrackingCheckpointIntervalMs",
    "_asyncProgressTrackingOverrideSinkSupportCheck",
)
"""Options of async progress tracking, which Spark supports for its own Kafka sink but not for Python sinks."""


def add_kafka_prefix(text: str) -> str:
    """Add the prefix `kafka.` to each producer option in the text that does not have it, except NAMES_LEFT_ALONE.

    A name in quotes or in a path is left alone, because it is a topic, a file or a value. Messages do not quote the
    options of the producer.
    """
    return _compile_unprefixed_option_pattern().sub(lambda match: KAFKA_PREFIX + match[0], text)


def render_kafka_problem(problem: str | OptionProblem) -> str:
    """Render a problem in a producer option. If the option takes a Java class, name the alternatives for Spark jobs."""
    if isinstance(problem, str):
        return problem
    if problem.option in JAVA_CLASS_OPTION_REMEDIES:
        remedy = JAVA_CLASS_OPTION_REMEDIES[problem.option]
        return f"{KAFKA_PREFIX}{problem.option} cannot be set: it names a Java class. {remedy}."
    if problem.option == "partitioner.class":
        message = f"{UNSUPPORTED_PARTITIONER_MESSAGE}. {_PARTITIONER_REMEDY}"
        problem = replace(problem, values={**problem.values, "problem": message})
    return problem.render(PREFIXED_OPTION_SPELLING)


@contextmanager
def kafka_prefix_in_errors() -> Iterator[None]:
    """Add the prefix `kafka.` to the producer options in any KafkaSinkError that the block raises."""
    try:
        yield
    except KafkaSinkError as error:
        error.rewrite(add_kafka_prefix)
        raise


@cache
def _compile_unprefixed_option_pattern() -> re.Pattern[str]:
    """Compile the pattern on first use, because a worker imports this module but rarely renders an error."""
    names = "|".join(re.escape(name) for name in (*_OPTION_FAMILIES, *_PREFIXED_NAMES_LONGEST_FIRST))
    # The pattern must not match inside kafka.linger.ms, schema.registry.ssl.protocol or transaction.max.timeout.ms.
    return re.compile(rf"""(?<![\w.'"/-])(?:{names})(?![\w-]|\.\w)""")

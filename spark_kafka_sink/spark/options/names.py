"""Option names as Spark jobs spell them, and options that get a specific error message.

A Spark job sets `kafka.linger.ms`. The producer, the client and preflight do not depend on Spark, so they write
`linger.ms`. Errors about invalid options are rendered with KAFKA_SPELLING. The errors of a running write are plain
text. `add_kafka_prefix` adds the prefix to the option names in that text.
"""

from __future__ import annotations

import re
from functools import cache

from spark_kafka_sink.errors import OptionSpelling
from spark_kafka_sink.network.security_options import SECURITY_OPTIONS
from spark_kafka_sink.producer.options import PRODUCER_OPTIONS

KAFKA_PREFIX = "kafka."
PRODUCER_NAMES = (*PRODUCER_OPTIONS, *SECURITY_OPTIONS)
SINK_SPELLING = OptionSpelling("'{}'".format, "Option ")
"""Renders the names of the sink's own options, for example as Option 'topic'."""
KAFKA_SPELLING = OptionSpelling(f"{KAFKA_PREFIX}{{}}".format)
"""Renders the names of the producer's options, for example as kafka.linger.ms."""

_DOTTED_NAMES = sorted((name for name in PRODUCER_NAMES if "." in name), key=len, reverse=True)
_OPTION_FAMILIES = ("ssl.keystore.*", "ssl.truststore.*", "sasl.oauthbearer.*")

JAVA_CLASS_OPTION_REMEDIES = {
    "interceptor.classes": (
        "Use DataFrame functions before the write to change rows, or the options reportCallback, reportTopic or "
        "reportPath to learn what was written"
    ),
    "metric.reporters": "The options reportCallback, reportTopic and reportPath report what was written",
    "config.providers": "Read the secret in the program that starts the job, and set the option to its value",
}

TABLE_AND_FILE_OPTIONS = {
    # Delta tables and files
    *("mergeschema", "overwriteschema", "replacewhere", "txnappid", "txnversion", "partitionoverwritemode"),
    *("maxrecordsperfile", "optimizewrite", "datachange", "usermetadata"),
    # CSV, JSON and text files
    *("header", "inferschema", "sep", "delimiter", "quote", "escape", "multiline", "nullvalue", "linesep", "encoding"),
    *("dateformat", "timestampformat", "ignoreleadingwhitespace", "pathglobfilter", "recursivefilelookup"),
    # JDBC
    *("url", "dbtable", "query", "driver", "user", "password", "truncate", "createtableoptions", "isolationlevel"),
    "numpartitions",
}
"""Options of Delta tables, files and JDBC that jobs tend to carry over, in lowercase. None has a meaning for Kafka."""

ASYNC_PROGRESS_OPTIONS = (
    "asyncProgressTrackingEnabled",
    "asyncProgressTrackingCheckpointIntervalMs",
    "_asyncProgressTrackingOverrideSinkSupportCheck",
)
"""Options of async progress tracking, which Spark supports for its own Kafka sink but not for Python sinks."""


def add_kafka_prefix(text: str) -> str:
    """Add the prefix `kafka.` to each producer option in the text that does not have it.

    Option names without a dot, such as `acks`, are left alone because they may be ordinary words.
    """
    return _compile_unprefixed_option_pattern().sub(lambda match: KAFKA_PREFIX + match[0], text)


@cache
def _compile_unprefixed_option_pattern() -> re.Pattern[str]:
    """Compile the pattern on first use, because a worker imports this module but rarely renders an error."""
    names = "|".join(re.escape(name) for name in (*_OPTION_FAMILIES, *_DOTTED_NAMES))
    # The pattern must not match inside kafka.linger.ms, schema.registry.ssl.protocol or transaction.max.timeout.ms.
    return re.compile(rf"(?<![\w.-])(?:{names})(?![\w-]|\.\w)")

"""Names of options as a Spark job writes them, and what other data sources call options of theirs.

The producer, the client and the checks speak of `linger.ms`, for they know nothing of Spark. What is wrong with options
is rendered with KAFKA_SPELLING. Errors of a running write come as text, and get the prefix through `as_in_spark`.
"""

from __future__ import annotations

import re

from spark_kafka_sink.errors import OptionSpelling
from spark_kafka_sink.network.security_options import SECURITY_OPTIONS
from spark_kafka_sink.producer.options import PRODUCER_OPTIONS

KAFKA_PREFIX = "kafka."
PRODUCER_NAMES = (*PRODUCER_OPTIONS, *SECURITY_OPTIONS)
SINK_SPELLING = OptionSpelling("'{}'".format, "Option ")
"""The names of the sink's own options."""
KAFKA_SPELLING = OptionSpelling(f"{KAFKA_PREFIX}{{}}".format)
"""The names of the producer's options."""

_DOTTED = sorted((name for name in PRODUCER_NAMES if "." in name), key=len, reverse=True)
_FAMILIES = ("ssl.keystore.*", "ssl.truststore.*", "sasl.oauthbearer.*")
_NAMED = re.compile(
    # No part of a longer name, as in kafka.linger.ms, schema.registry.ssl.protocol and transaction.max.timeout.ms.
    rf"(?<![\w.-])(?:{'|'.join(re.escape(name) for name in (*_FAMILIES, *_DOTTED))})(?![\w-]|\.\w)"
)

JAVA_CLASS_OPTION_REMEDIES = {
    "interceptor.classes": (
        "To change rows, use functions of DataFrames before the write; to learn what was written, the options "
        "reportCallback, reportTopic or reportPath"
    ),
    "metric.reporters": "The options reportCallback, reportTopic and reportPath report what was written",
    "config.providers": "Read the secret in the program that starts the job, and put its value into the option",
}

TABLE_AND_FILE_OPTIONS = {
    *("mergeschema", "overwriteschema", "replacewhere", "txnappid", "txnversion", "partitionoverwritemode"),
    *("maxrecordsperfile", "optimizewrite", "datachange", "usermetadata"),
    *("header", "inferschema", "sep", "delimiter", "quote", "escape", "multiline", "nullvalue", "linesep", "encoding"),
    *("dateformat", "timestampformat", "ignoreleadingwhitespace", "pathglobfilter", "recursivefilelookup"),
    *("url", "dbtable", "query", "driver", "user", "password", "truncate", "createtableoptions", "isolationlevel"),
    "numpartitions",
}
"""Options of Delta, of files and of JDBC that jobs take along, in lower case; none has a meaning for Kafka."""

ASYNC_PROGRESS_OPTIONS = (
    "asyncProgressTrackingEnabled",
    "asyncProgressTrackingCheckpointIntervalMs",
    "_asyncProgressTrackingOverrideSinkSupportCheck",
)
"""Options of Spark's async progress tracking, which Spark allows for its own Kafka sink but not for sinks in Python."""


def add_kafka_prefix(words: str) -> str:
    """With the prefix before each option of the producer that has none. Names without a dot stay as they are."""
    return _NAMED.sub(lambda found: KAFKA_PREFIX + found[0], words)

"""The name of the data source, and refusals that more than one file has to say. Tasks import this, so it is small."""

from __future__ import annotations

NAME = "pykafka"
MODE_NOT_ALLOWED = "Save mode {} not allowed for Kafka. Allowed save modes are Append and ErrorIfExists (default)."
CONTINUOUS = (
    "trigger(continuous=...) is not available for 'pykafka': continuous processing does not run sinks in Python. "
    'Use micro-batches: .trigger(processingTime="0 seconds").'
)

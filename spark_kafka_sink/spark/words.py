"""The name of the data source, and a refusal that more than one file has to say."""

from __future__ import annotations

NAME = "pykafka"
MODE_NOT_ALLOWED = "Save mode {} not allowed for Kafka. Allowed save modes are Append and ErrorIfExists (default)."

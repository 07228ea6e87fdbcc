"""The name of the data source, and what more than one file has to say."""

from __future__ import annotations

NAME = "pykafka"
MODE_NOT_ALLOWED = "Save mode {} not allowed for Kafka. Allowed save modes are Append and ErrorIfExists (default)."
NO_NAME = (
    "Option 'deliveryGuarantee' is 'exactly-once', which needs a name for this query that stays the same after a "
    "restart. Set the option checkpointLocation, from which it is made, or transactionalIdPrefix."
)
MICRO_BATCH = "pykafka.microbatch"
"""An option of jobs that are in truth micro-batches of a stream in output mode update; no user's."""

"""One file per API, named by its key. A handler takes (context, request) and returns a response, NoAnswer or NotYet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from spark_kafka_sink.broker.context import Handled, RequestContext
from spark_kafka_sink.broker.handlers import (
    api_00_produce,
    api_01_fetch,
    api_02_list_offsets,
    api_03_metadata,
    api_08_offset_commit,
    api_09_offset_fetch,
    api_10_find_coordinator,
    api_17_sasl_handshake,
    api_18_api_versions,
    api_19_create_topics,
    api_22_init_producer_id,
    api_24_add_partitions_to_txn,
    api_25_add_offsets_to_txn,
    api_26_end_txn,
    api_28_txn_offset_commit,
    api_32_describe_configs,
    api_36_sasl_authenticate,
    api_55_describe_quorum,
    api_60_describe_cluster,
    api_65_describe_transactions,
    api_66_list_transactions,
)
from spark_kafka_sink.protocol.message import ApiKey

HANDLERS: Mapping[ApiKey, Callable[[RequestContext, Any], Handled]] = {
    ApiKey.PRODUCE: api_00_produce.handle,
    ApiKey.FETCH: api_01_fetch.handle,
    ApiKey.LIST_OFFSETS: api_02_list_offsets.handle,
    ApiKey.METADATA: api_03_metadata.handle,
    ApiKey.OFFSET_COMMIT: api_08_offset_commit.handle,
    ApiKey.OFFSET_FETCH: api_09_offset_fetch.handle,
    ApiKey.FIND_COORDINATOR: api_10_find_coordinator.handle,
    ApiKey.SASL_HANDSHAKE: api_17_sasl_handshake.handle,
    ApiKey.API_VERSIONS: api_18_api_versions.handle,
    ApiKey.CREATE_TOPICS: api_19_create_topics.handle,
    ApiKey.INIT_PRODUCER_ID: api_22_init_producer_id.handle,
    ApiKey.ADD_PARTITIONS_TO_TXN: api_24_add_partitions_to_txn.handle,
    ApiKey.ADD_OFFSETS_TO_TXN: api_25_add_offsets_to_txn.handle,
    ApiKey.END_TXN: api_26_end_txn.handle,
    ApiKey.TXN_OFFSET_COMMIT: api_28_txn_offset_commit.handle,
    ApiKey.DESCRIBE_CONFIGS: api_32_describe_configs.handle,
    ApiKey.SASL_AUTHENTICATE: api_36_sasl_authenticate.handle,
    ApiKey.DESCRIBE_QUORUM: api_55_describe_quorum.handle,
    ApiKey.DESCRIBE_CLUSTER: api_60_describe_cluster.handle,
    ApiKey.DESCRIBE_TRANSACTIONS: api_65_describe_transactions.handle,
    ApiKey.LIST_TRANSACTIONS: api_66_list_transactions.handle,
}

"""Types of the options, for type checkers and editors. Nothing imports this module at run time.

Generated from the option tables by `python -m tools.typed_options_source`: do not edit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypedDict

Boolean = bool | Literal["true", "false"] | None
Number = int | str | None
Ratio = float | str | None
Text = str | None
Texts = str | list[str] | tuple[str, ...] | None


class ProducerOptions(TypedDict, total=False):
    """Keyword arguments of KafkaProducer: the producer's options."""

    bootstrap_servers: Texts
    client_id: Text
    client_dns_lookup: Literal["use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"] | None
    bootstrap_resolve_timeout_ms: Number
    send_buffer_bytes: Number
    receive_buffer_bytes: Number
    reconnect_backoff_ms: Number
    reconnect_backoff_max_ms: Number
    socket_connection_setup_timeout_ms: Number
    socket_connection_setup_timeout_max_ms: Number
    connections_max_idle_ms: Number
    metadata_max_age_ms: Number
    metadata_max_idle_ms: Number
    metadata_recovery_strategy: Literal["rebootstrap", "none"] | None
    metadata_recovery_rebootstrap_trigger_ms: Number
    metadata_cluster_check_enable: Boolean
    acks: Literal["all", "-1", "0", "1", -1, 0, 1] | None
    retries: Number
    retry_backoff_ms: Number
    retry_backoff_max_ms: Number
    request_timeout_ms: Number
    delivery_timeout_ms: Number
    max_block_ms: Number
    max_in_flight_requests_per_connection: Number
    enable_idempotence: Boolean
    transaction_timeout_ms: Number
    transactional_id: Text
    batch_size: Number
    linger_ms: Number
    buffer_memory: Number
    buffer_memory_allocation_strategy: object
    max_request_size: Number
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"] | None
    compression_gzip_level: Number
    compression_lz4_level: Number
    compression_zstd_level: Number
    partitioner_class: Text
    partitioner_ignore_keys: Boolean
    partitioner_adaptive_partitioning_enable: Boolean
    partitioner_availability_timeout_ms: Number
    partitioner_rack_aware: Boolean
    client_rack: Text
    metrics_sample_window_ms: Number
    metrics_num_samples: Number
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] | None
    ssl_truststore_location: Text
    ssl_truststore_password: Text
    ssl_truststore_type: Text
    ssl_truststore_certificates: Text
    ssl_keystore_location: Text
    ssl_keystore_password: Text
    ssl_keystore_type: Text
    ssl_keystore_certificate_chain: Text
    ssl_keystore_key: Text
    ssl_key_password: Text
    ssl_endpoint_identification_algorithm: Literal["https", ""] | None
    ssl_cipher_suites: Texts
    ssl_enabled_protocols: Texts
    ssl_protocol: Text
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"] | None
    sasl_jaas_config: Text
    sasl_kerberos_service_name: Text
    sasl_oauthbearer_token: Text
    sasl_oauthbearer_token_callback: Callable[[], object] | Text
    sasl_oauthbearer_token_endpoint_url: Text
    sasl_oauthbearer_client_credentials_client_id: Text
    sasl_oauthbearer_client_credentials_client_secret: Text
    sasl_oauthbearer_jwt_retriever_class: Text
    sasl_oauthbearer_assertion_file: Text
    sasl_oauthbearer_assertion_private_key_file: Text
    sasl_oauthbearer_assertion_private_key_passphrase: Text
    sasl_oauthbearer_assertion_algorithm: Literal["RS256", "ES256"] | None
    sasl_oauthbearer_assertion_template_file: Text
    sasl_oauthbearer_assertion_claim_aud: Text
    sasl_oauthbearer_assertion_claim_iss: Text
    sasl_oauthbearer_assertion_claim_sub: Text
    sasl_oauthbearer_assertion_claim_exp_seconds: Number
    sasl_oauthbearer_assertion_claim_nbf_seconds: Number
    sasl_oauthbearer_assertion_claim_jti_include: Boolean
    sasl_oauthbearer_scope: Text
    sasl_oauthbearer_header_urlencode: Boolean
    sasl_login_connect_timeout_ms: Number
    sasl_login_read_timeout_ms: Number
    sasl_login_refresh_window_factor: Ratio
    sasl_kerberos_kinit_cmd: object
    sasl_kerberos_min_time_before_relogin: object
    sasl_kerberos_ticket_renew_jitter: object
    sasl_kerberos_ticket_renew_window_factor: object
    sasl_login_refresh_buffer_seconds: object
    sasl_login_refresh_min_period_seconds: object
    sasl_login_refresh_window_jitter: object
    sasl_login_retry_backoff_max_ms: object
    sasl_login_retry_backoff_ms: object
    sasl_oauthbearer_allow_unverified_audience: object
    sasl_oauthbearer_allow_unverified_issuer: object
    sasl_oauthbearer_clock_skew_seconds: object
    sasl_oauthbearer_expected_audience: object
    sasl_oauthbearer_expected_issuer: object
    sasl_oauthbearer_jwks_endpoint_refresh_ms: object
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: object
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: object
    sasl_oauthbearer_jwks_endpoint_url: object
    sasl_oauthbearer_scope_claim_name: object
    sasl_oauthbearer_sub_claim_name: object
    ssl_keymanager_algorithm: object
    ssl_provider: object
    ssl_secure_random_implementation: object
    ssl_trustmanager_algorithm: object


class TableOptions(TypedDict, total=False):
    """Keyword arguments of send_table() that configure the formats and the schema registry."""

    value_format: Literal["json", "avro", "avro-confluent", "protobuf-confluent", "json-schema-confluent"] | None
    value_schema: Text
    value_schema_file: Text
    value_schema_name: Text
    value_subject: Text
    key_format: Literal["json", "avro", "avro-confluent", "protobuf-confluent", "json-schema-confluent"] | None
    key_schema: Text
    key_schema_file: Text
    key_schema_name: Text
    key_subject: Text
    schema_registry_url: Text
    schema_registry_basic_auth_user_info: Text
    schema_registry_bearer_auth_token: Text
    schema_registry_request_timeout_ms: Number
    schema_registry_normalize_schemas: Boolean
    schema_source: Literal["register", "lookup", "latest"] | None
    subject_name_strategy: Literal["topic", "record", "topicRecord"] | None
    schema_id_location: Literal["prefix", "header"] | None
    partitioner_ignore_schema_id: Boolean
    schema_registry_ssl_truststore_location: Text
    schema_registry_ssl_truststore_password: Text
    schema_registry_ssl_truststore_type: Text
    schema_registry_ssl_truststore_certificates: Text
    schema_registry_ssl_keystore_location: Text
    schema_registry_ssl_keystore_password: Text
    schema_registry_ssl_keystore_type: Text
    schema_registry_ssl_keystore_certificate_chain: Text
    schema_registry_ssl_keystore_key: Text
    schema_registry_ssl_key_password: Text
    schema_registry_ssl_endpoint_identification_algorithm: Literal["https", ""] | None
    schema_registry_ssl_cipher_suites: Text
    schema_registry_ssl_enabled_protocols: Text
    schema_registry_ssl_protocol: Text

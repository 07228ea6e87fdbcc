"""Suggestions for unknown option names, including names from librdkafka and kafka-python.

For a name from a different client, the Java option with the most similar spelling is often the wrong suggestion. For
example, the Java producer option most similar to librdkafka's `ssl.ca.location` is `ssl.protocol`. So names of other
clients are recognized first:

1. If replacing the underscores in a name with dots gives an option, that option is suggested.
2. Otherwise, the name is looked up in the tables below. Their texts become part of an OptionProblem, which replaces an
   option's name in braces with the name as the user writes it.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import NamedTuple

from spark_kafka_sink.errors import OptionProblem, option_placeholder

_MIN_NAME_SIMILARITY = 0.66
"""Minimum similarity of a suggested name.

Unrelated names may be more similar, such as ssl.crl.location and ssl.keystore.location. The tables below therefore
contain each name of another client that would otherwise lead to an unrelated option.
"""
_PEM_TRUSTSTORE = "{ssl.truststore.location}, with {ssl.truststore.type} PEM"
_PEM_KEYSTORE = "{ssl.keystore.location}, with {ssl.keystore.type} PEM: one file with the key and the certificates"
_JAAS_CONFIG = (
    "{sasl.jaas.config}, for PLAIN: org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="<user>" password="<password>"; and for SCRAM: '
    'org.apache.kafka.common.security.scram.ScramLoginModule required username="<user>" password="<password>";'
)
_OAUTHBEARER_LOGIN_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
_UNSECURED_TOKEN = (
    f"{{sasl.jaas.config}}, for unsecured tokens: {_OAUTHBEARER_LOGIN_MODULE} "
    'unsecuredLoginStringClaim_sub="<principal>";'
)
_TOKEN_CALLBACK = "{sasl.oauthbearer.token.callback}"
_KERBEROS = "a ticket in the cache of the process (kinit), with {sasl.kerberos.service.name}"
_NO_REVOCATION_LISTS = "not available: certificate revocation lists are not read"
_RECEIVE_LIMIT = "not needed: responses of more than 100 MB are rejected"
_CONSUMER_ONLY = "not needed: only consumers use it"
_LIBRDKAFKA, _KAFKA_PYTHON = "librdkafka", "kafka-python"
_LOGGING = "Python's logging, logger spark_kafka_sink"

LIBRDKAFKA_OPTIONS: dict[str, str] = {
    "metadata.broker.list": "{bootstrap.servers}",
    "request.required.acks": "{acks}",
    "queue.buffering.max.ms": "{linger.ms}",
    "queue.buffering.max.kbytes": "{buffer.memory}, in bytes",
    "queue.buffering.max.messages": "{buffer.memory}, in bytes",
    "batch.num.messages": "{batch.size}, in bytes",
    "message.max.bytes": "{max.request.size}",
    "message.send.max.retries": "{retries}",
    "message.timeout.ms": "{delivery.timeout.ms}",
    "max.in.flight": "{max.in.flight.requests.per.connection}",
    "compression.codec": "{compression.type}",
    "compression.level": "{compression.gzip.level}, {compression.lz4.level} or {compression.zstd.level}",
    "partitioner": "{partitioner.class}; the default partitioner does the same as murmur2_random",
    "socket.timeout.ms": "{request.timeout.ms}",
    "socket.send.buffer.bytes": "{send.buffer.bytes}",
    "socket.receive.buffer.bytes": "{receive.buffer.bytes}",
    "topic.metadata.refresh.interval.ms": "{metadata.max.age.ms}",
    "ssl.ca.location": _PEM_TRUSTSTORE,
    "ssl.ca.pem": "{ssl.truststore.certificates}",
    "ssl_ca": "{ssl.truststore.certificates}",
    "ssl.certificate.location": _PEM_KEYSTORE,
    "ssl.certificate.pem": "{ssl.keystore.certificate.chain}",
    "ssl.key.location": _PEM_KEYSTORE,
    "ssl.key.pem": "{ssl.keystore.key}",
    "ssl_certificate": "{ssl.keystore.certificate.chain}",
    "ssl_key": "{ssl.keystore.key}",
    "sasl.mechanisms": "{sasl.mechanism}",
    "sasl.username": _JAAS_CONFIG,
    "sasl.password": _JAAS_CONFIG,
    "sasl.kerberos.keytab": _KERBEROS,
    "sasl.kerberos.principal": _KERBEROS,
    "sasl.oauthbearer.client.id": "{sasl.oauthbearer.client.credentials.client.id}",
    "sasl.oauthbearer.client.secret": "{sasl.oauthbearer.client.credentials.client.secret}",
    "sasl.oauthbearer.assertion.jwt.template.file": "{sasl.oauthbearer.assertion.template.file}",
    "sasl.oauthbearer.assertion.private.key.pem": "{sasl.oauthbearer.assertion.private.key.file}, the path of a file "
    "with the key",
    "sasl.oauthbearer.grant.type": "{sasl.oauthbearer.jwt.retriever.class}, for the grant jwt-bearer "
    "org.apache.kafka.common.security.oauthbearer.JwtBearerJwtRetriever",
    "sasl.oauthbearer.extensions": f'{{sasl.jaas.config}}: {_OAUTHBEARER_LOGIN_MODULE} extension_<name>="<value>";',
    "sasl.oauthbearer.config": _UNSECURED_TOKEN,
    "enable.sasl.oauthbearer.unsecure.jwt": _UNSECURED_TOKEN,
    "sasl.oauthbearer.metadata.authentication.type": f"{_TOKEN_CALLBACK}, a function that requests the token",
    "oauthbearer_token_refresh_cb": _TOKEN_CALLBACK,
    "oauth_cb": _TOKEN_CALLBACK,
    "debug": _LOGGING,
    "log_level": _LOGGING,
    "statistics.interval.ms": "KafkaProducer.metrics()",
}
"""The option, or something else, to use instead of an option of librdkafka."""

KAFKA_PYTHON_OPTIONS: dict[str, str] = {
    "ssl_cafile": _PEM_TRUSTSTORE,
    "ssl_certfile": _PEM_KEYSTORE,
    "ssl_keyfile": _PEM_KEYSTORE,
    "ssl_password": "{ssl.key.password}",
    "ssl_ciphers": "{ssl.cipher.suites}",
    "ssl_check_hostname": "{ssl.endpoint.identification.algorithm}",
    "sasl_plain_username": _JAAS_CONFIG,
    "sasl_plain_password": _JAAS_CONFIG,
    "sasl_kerberos_name": "{sasl.kerberos.service.name}, without the name of a host",
    "sasl_oauth_token_provider": _TOKEN_CALLBACK,
    "bootstrap_timeout_ms": "{max.block.ms}",
}
"""The option to use instead of an option of kafka-python."""

OPTIONS_WITHOUT_REPLACEMENT: dict[str, tuple[str, str]] = {
    "default.topic.config": (_LIBRDKAFKA, "not needed: set the options in it like all others"),
    "receive.message.max.bytes": (_LIBRDKAFKA, _RECEIVE_LIMIT),
    "partitioner_cb": (
        _LIBRDKAFKA,
        "not available: pass partitioner= to KafkaProducer, or set the partition of each record",
    ),
    "interceptors": (
        _LIBRDKAFKA,
        "not available: pass interceptors= to KafkaProducer, or change the records before the write",
    ),
    "reconnect.backoff.jitter.ms": (
        _LIBRDKAFKA,
        "not needed: {reconnect.backoff.ms} and {reconnect.backoff.max.ms} have jitter",
    ),
    "api.version.request.timeout.ms": (_LIBRDKAFKA, "not needed: {request.timeout.ms} limits all requests"),
    "enable.ssl.certificate.verification": (_LIBRDKAFKA, "not needed: certificates are always verified"),
    "ssl.crl.location": (_LIBRDKAFKA, _NO_REVOCATION_LISTS),
    "ssl.engine.location": (_LIBRDKAFKA, "not available: engines of OpenSSL are not loaded"),
    "ssl.providers": (_LIBRDKAFKA, "not available: only the default providers of OpenSSL are used"),
    "sasl.oauthbearer.method": (_LIBRDKAFKA, "not needed: {sasl.oauthbearer.token.endpoint.url} selects the method"),
    "group.protocol": (_LIBRDKAFKA, _CONSUMER_ONLY),
    "session.timeout.ms": (_LIBRDKAFKA, _CONSUMER_ONLY),
    "fetch.error.backoff.ms": (_LIBRDKAFKA, _CONSUMER_ONLY),
    "fetch.queue.backoff.ms": (_LIBRDKAFKA, _CONSUMER_ONLY),
    "ssl_crlfile": (_KAFKA_PYTHON, _NO_REVOCATION_LISTS),
    "sasl_kerberos_domain_name": (
        _KAFKA_PYTHON,
        "not needed: the service of a broker has the name of the broker's host",
    ),
    "receive_message_max_bytes": (_KAFKA_PYTHON, _RECEIVE_LIMIT),
    "api_version": (_KAFKA_PYTHON, "not needed: the client requests the versions that the brokers support"),
}
"""Options that nothing replaces: for each, its client, and the predicate of a sentence about the option."""


class OptionSuggestion(NamedTuple):
    """A suggestion for an unknown option."""

    text: str
    """Text for an OptionProblem; empty if there is no suggestion."""
    option: str | None = None
    """The option that the unknown one should be renamed to; None if the suggestion is not just another name."""


def build_unknown_option_problem(name: str, known_names: Collection[str], component: str) -> OptionProblem:
    """Build the problem for an unknown option. `component`: the owner of the known options, such as "producer"."""
    suggestion = suggest_option(name, known_names)
    return OptionProblem(name, f"is not an option of the Kafka {component}. {suggestion.text}".rstrip())


def suggest_option(name: str, known_names: Collection[str]) -> OptionSuggestion:
    """Suggest an option for an unknown name, or nothing if no option is similar."""
    suggestion = _suggest_for_other_clients(name, known_names)
    if suggestion is not None:
        return suggestion
    matches = difflib.get_close_matches(name, known_names, n=1, cutoff=_MIN_NAME_SIMILARITY)
    if not matches:
        return OptionSuggestion("")
    return OptionSuggestion(f"Did you mean {option_placeholder(matches[0])}?", matches[0])


def _suggest_for_other_clients(name: str, known_names: Collection[str]) -> OptionSuggestion | None:
    """Return a suggestion if the name is an option of librdkafka or kafka-python, else None."""
    dotted_name = name.replace("_", ".")
    if dotted_name != name and dotted_name in known_names:
        return OptionSuggestion(f"Use the name with dots: {option_placeholder(dotted_name)}.", dotted_name)
    for client, replacements in ((_LIBRDKAFKA, LIBRDKAFKA_OPTIONS), (_KAFKA_PYTHON, KAFKA_PYTHON_OPTIONS)):
        if name in replacements:
            replacement = replacements[name]
            text = f"That is {client}'s name. Instead, use {replacement}" + ("" if replacement.endswith(";") else ".")
            new_name = next((option for option in known_names if option_placeholder(option) == replacement), None)
            return OptionSuggestion(text, new_name)
    if name in OPTIONS_WITHOUT_REPLACEMENT:
        client, predicate = OPTIONS_WITHOUT_REPLACEMENT[name]
        return OptionSuggestion(f"That is {client}'s name. The option is {predicate}.")
    return None

"""A client's side of a SASL conversation, by mechanism; for OAUTHBEARER with the token that it needs."""

from __future__ import annotations

import os
from collections.abc import Callable

from spark_kafka_sink.errors import AuthenticationError, NetworkError
from spark_kafka_sink.network.security.assertions import token_of_file
from spark_kafka_sink.network.security.login import Login
from spark_kafka_sink.network.security.oidc import TokenSource
from spark_kafka_sink.network.system import OperatingSystem
from spark_kafka_sink.options.functions import import_function
from spark_kafka_sink.sasl.gssapi import GssapiClient
from spark_kafka_sink.sasl.mechanism import ClientMechanism
from spark_kafka_sink.sasl.oauthbearer import OauthBearerClient, build_unsecured_token
from spark_kafka_sink.sasl.plain import PlainClient
from spark_kafka_sink.sasl.scram import ScramClient


def conversation_of(login: Login, host: str) -> ClientMechanism:
    """A new one with a broker. A token may have to be obtained first, which takes its time."""
    if login.mechanism == "PLAIN":
        return PlainClient(login.username, login.password)
    if login.mechanism == "OAUTHBEARER":
        return OauthBearerClient(_bearer_token(login), dict(login.extensions))
    if login.mechanism == "GSSAPI":
        return GssapiClient(login.kerberos_service, host)
    return ScramClient(login.mechanism, login.username, login.password, token_auth=login.token_auth)


def _bearer_token(login: Login) -> str:
    if login.token:
        return login.token
    if login.token_callback is not None:
        return _called(login.token_callback)
    if login.token_file:
        return token_of_file(
            login.token_file, "sasl.oauthbearer.token.endpoint.url", OperatingSystem().wall_ms() / 1000
        )
    if login.oidc is not None:
        return _token_source(login).token()
    issued_s = OperatingSystem().wall_ms() / 1000
    claims = dict(login.unsecured_claims) | {"iat": issued_s, "exp": issued_s + login.unsecured_lifetime_s}
    return build_unsecured_token(claims)


def _called(callback: Callable[[], object] | str) -> str:
    function = _imported(callback) if isinstance(callback, str) else callback
    try:
        token = function()
    except (AuthenticationError, NetworkError):
        raise
    except Exception as error:
        raise AuthenticationError(
            f"OAUTHBEARER: the function of sasl.oauthbearer.token.callback raised {type(error).__name__}. Call it by "
            "itself on this machine to see why; its words are not shown, since they may hold a secret."
        ) from None
    if not isinstance(token, str):
        raise AuthenticationError("OAUTHBEARER: sasl.oauthbearer.token.callback must return the token as str")
    return token


def _imported(name: str) -> Callable[[], object]:
    """The function of "package.module:function", which Spark's workers must be able to import as well."""
    try:
        return import_function(name)
    except TypeError:
        raise AuthenticationError(f"OAUTHBEARER: sasl.oauthbearer.token.callback {name} is not callable") from None
    except (ImportError, AttributeError) as error:
        raise AuthenticationError(
            f"OAUTHBEARER: sasl.oauthbearer.token.callback {name} cannot be imported here: {error}. In Spark, give its "
            "module to the executors (--py-files)."
        ) from error


_token_sources: dict[object, TokenSource] = {}
os.register_at_fork(after_in_child=_token_sources.clear)  # another thread may have held the lock of one
_TOKEN_SOURCES_MAX = 64


def forget() -> None:
    """For tests: as in a new process."""
    _token_sources.clear()


def _token_source(login: Login) -> TokenSource:
    """One for each endpoint and client of this process: connections share their token."""
    assert login.oidc is not None
    source = _token_sources.get(login.oidc)
    if source is None:
        if len(_token_sources) >= _TOKEN_SOURCES_MAX:
            _token_sources.clear()
        source = _token_sources.setdefault(login.oidc, TokenSource(login.oidc))
    return source

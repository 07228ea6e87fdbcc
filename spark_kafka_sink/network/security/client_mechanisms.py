"""Factory for the client side of SASL exchanges, and the bearer tokens for OAUTHBEARER."""

from __future__ import annotations

import os
from collections.abc import Callable

from spark_kafka_sink.errors import AuthenticationError, NetworkError
from spark_kafka_sink.network.security.assertions import read_token_file
from spark_kafka_sink.network.security.login import Login
from spark_kafka_sink.network.security.oidc import ENDPOINT_URL_OPTION, TokenSource
from spark_kafka_sink.network.system import OperatingSystem
from spark_kafka_sink.options.functions import import_function
from spark_kafka_sink.sasl.gssapi import GssapiClient
from spark_kafka_sink.sasl.mechanism import ClientMechanism
from spark_kafka_sink.sasl.oauthbearer import OauthBearerClient, build_unsecured_token
from spark_kafka_sink.sasl.plain import PlainClient
from spark_kafka_sink.sasl.scram import ScramClient

_CALLBACK_REMEDY = (
    "Check the function set in sasl.oauthbearer.token.callback, and that this machine can reach its servers."
)


def create_client_mechanism(login: Login, host: str) -> ClientMechanism:
    """Create the client side of a SASL exchange with the broker at `host`.

    The call blocks while a token is requested, if one is needed. Raise AuthenticationError if no token can be obtained.
    """
    if login.mechanism == "PLAIN":
        return PlainClient(login.username, login.password)
    if login.mechanism == "OAUTHBEARER":
        return OauthBearerClient(_get_bearer_token(login), dict(login.extensions))
    if login.mechanism == "GSSAPI":
        return GssapiClient(login.kerberos_service, host)
    # Of SASL_MECHANISMS, only SCRAM-SHA-256 and SCRAM-SHA-512 remain.
    return ScramClient(login.mechanism, login.username, login.password, token_auth=login.token_auth)


def _get_bearer_token(login: Login) -> str:
    """Return a token from the login's source: a fixed token, a callback, a file or an OIDC endpoint.

    A login without any of these gets an unsecured token, which is built here from its claims.
    """
    if login.token:
        return login.token
    if login.token_callback is not None:
        return _call_token_callback(login.token_callback)
    now_s = OperatingSystem().wall_ms() / 1000
    if login.token_file:
        return read_token_file(login.token_file, ENDPOINT_URL_OPTION, now_s)
    if login.oidc is not None:
        return _get_token_source(login).get_token()
    claims = dict(login.unsecured_claims) | {"iat": now_s, "exp": now_s + login.unsecured_lifetime_s}
    return build_unsecured_token(claims)


def _call_token_callback(callback: Callable[[], object] | str) -> str:
    """Call the user's function, which must return the token as text.

    An AuthenticationError or NetworkError raised by the function is passed on. A NetworkError without a remedy gets
    one, because the client would otherwise advise to check the broker. Any other exception may contain a secret, so it
    is replaced by an AuthenticationError that shows only the exception's type.
    """
    function = _import_token_callback(callback) if isinstance(callback, str) else callback
    try:
        token = function()
    except AuthenticationError:
        raise
    except NetworkError as error:
        error.remedy = error.remedy or _CALLBACK_REMEDY
        raise
    except Exception as error:
        raise AuthenticationError(
            f"OAUTHBEARER: the function set in sasl.oauthbearer.token.callback raised {type(error).__name__}. The "
            "message is not shown because it may contain a secret; to see it, call the function directly on this "
            "machine."
        ) from None
    if not isinstance(token, str):
        raise AuthenticationError("OAUTHBEARER: sasl.oauthbearer.token.callback must return the token as str")
    return token


def _import_token_callback(name: str) -> Callable[[], object]:
    """Import the function with this name, which has the form `package.module:function`.

    Spark's workers must be able to import it as well.
    """
    try:
        return import_function(name)
    except TypeError:
        raise AuthenticationError(f"OAUTHBEARER: sasl.oauthbearer.token.callback {name} is not callable") from None
    except (ImportError, AttributeError) as error:
        raise AuthenticationError(
            f"OAUTHBEARER: sasl.oauthbearer.token.callback {name} cannot be imported on this machine: {error}. In "
            "Spark, distribute its module to the executors (--py-files)."
        ) from error


_token_sources: dict[object, TokenSource] = {}
# In a forked child, the lock of a token source may be held by a thread that does not exist there.
os.register_at_fork(after_in_child=_token_sources.clear)
_MAX_TOKEN_SOURCES = 64
"""The maximum number of token sources. When it is reached, all of them are dropped before the next one is added."""


def clear_token_sources() -> None:
    """Forget all tokens (tests only)."""
    _token_sources.clear()


def _get_token_source(login: Login) -> TokenSource:
    """Return the token source that all connections with the same OIDC configuration share in this process."""
    assert login.oidc is not None
    source = _token_sources.get(login.oidc)
    if source is None:
        if len(_token_sources) >= _MAX_TOKEN_SOURCES:
            _token_sources.clear()
        # Another thread may have added a token source in the meantime.
        source = _token_sources.setdefault(login.oidc, TokenSource(login.oidc))
    return source

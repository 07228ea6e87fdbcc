"""TokenSource: requests and caches tokens for OAUTHBEARER.

It supports the grants client_credentials (RFC 6749, section 4.4) and jwt-bearer (RFC 7523). The client authenticates
with its secret, or with an assertion (assertions.py) that is created for each request.

A token is requested when a connection authenticates and no valid token is cached. The thread that authenticates also
sends records, so it should rarely wait: once most of a token's lifetime has passed, a separate thread requests the next
token while the current one remains in use. If the endpoint does not respond, this thread waits for at most half of the
time, because a failed request is repeated only after as much time as it has taken.

The endpoint must use https, except on the loopback interface. Its certificate is verified against the system's
authorities and those in the client's truststore. Redirects are not followed, the size of the response is limited, and
an error shows nothing of the response but its status and its standard error code.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import logging
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import NamedTuple

from spark_kafka_sink.errors import (
    AuthenticationError,
    ConfigurationError,
    DisconnectedError,
    OptionProblem,
    copy_error,
)
from spark_kafka_sink.network.http_client import (
    HttpResponseTooLong,
    describe_http_error,
    find_url_error,
    is_https,
    is_loopback,
    is_redirect,
    open_connection,
    parse_json_object,
    send_request,
)
from spark_kafka_sink.network.security.assertions import AssertionConfig, create_assertion, describe_assertion
from spark_kafka_sink.network.security.tls_context import StoreConfig, TlsConfig, build_client_ssl_context
from spark_kafka_sink.network.security.tls_errors import describe_certificate_error
from spark_kafka_sink.network.security_options import get_default
from spark_kafka_sink.sasl.oauthbearer import decode_token_claims, parse_token_expiry_s

MAX_RESPONSE_BYTES = 1024 * 1024
ENDPOINT_URL_OPTION = "sasl.oauthbearer.token.endpoint.url"
_MIN_REPORTED_CLOCK_SKEW_S = 30
"""Smallest clock skew that error messages mention. Some providers tolerate no skew, others at most a few minutes."""
_MAX_LIFETIME_S = 10 * 365 * 86400
"""Maximum lifetime of a token (ten years). A longer lifetime in a response is reduced to it."""
_JWT_BEARER_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_JWT_ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_CREDENTIALS_STATUSES = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
"""Statuses of a token endpoint that rejects the client or its request (RFC 6749, section 5.2)."""
_FINAL_ERROR_STATUSES = frozenset(range(400, 416)) - {HTTPStatus.REQUEST_TIMEOUT} | {
    HTTPStatus.NOT_IMPLEMENTED,
    HTTPStatus.HTTP_VERSION_NOT_SUPPORTED,
}
"""Statuses after which a retry does not help, as in the Java client (HttpJwtRetriever.UNRETRYABLE_HTTP_CODES)."""
_PATH_REMEDY = f"Check the path of {ENDPOINT_URL_OPTION}."
_REDIRECT_REMEDY = f"Redirects are not followed. Set {ENDPOINT_URL_OPTION} to the URL that the endpoint redirects to."
_UNREACHABLE_REMEDY = f"Check {ENDPOINT_URL_OPTION}, and that this machine can reach the endpoint."
_UNAVAILABLE_REMEDY = "Check the state of the identity provider, and try again later."
_SECRET_REMEDY = (
    "Check the client id, the client secret and the scope in sasl.oauthbearer.* or sasl.jaas.config, and that the "
    "identity provider issues tokens to this client."
)
_ASSERTION_REMEDY = (
    "Check the assertion and the scope in sasl.oauthbearer.*, and that the identity provider has the public key of "
    "this client."
)
_CERTIFICATE_REMEDY = (
    "Check the endpoint's certificate, which is verified against the system's authorities and those in "
    "ssl.truststore.*."
)
_TRUSTSTORE_REMEDY = (
    "Correct the truststore, which is also used for the token endpoint. If it is a file, the file must be readable at "
    "that path on every machine that connects to Kafka."
)
_ERROR_CODE_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz_")
_MAX_ERROR_CODE_LENGTH = 63

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OidcConfig:
    """A token endpoint, with the credentials and timeouts for requests to it."""

    endpoint_url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None = None
    urlencode_credentials: bool = False
    """Whether to URL-encode the client id and secret in the Authorization header, as RFC 6749 requires."""
    connect_timeout_ms: int = int(get_default("sasl.login.connect.timeout.ms"))
    read_timeout_ms: int = int(get_default("sasl.login.read.timeout.ms"))
    refresh_window_factor: float = float(get_default("sasl.login.refresh.window.factor"))
    assertion: AssertionConfig | None = None
    """The assertion that the client sends instead of its secret, or None if it sends the secret."""
    use_jwt_bearer_grant: bool = False
    """Whether the assertion itself is exchanged for a token (grant jwt-bearer) instead of authenticating the client."""
    truststore: StoreConfig | None = None
    """Authorities that are trusted in addition to the system's; None if there are no others."""

    @property
    def uses_tls(self) -> bool:
        return is_https(self.endpoint_url)

    @property
    def endpoint_host(self) -> str:
        """The host of the endpoint, with its port if the URL has one."""
        return urllib.parse.urlsplit(self.endpoint_url).netloc.rpartition("@")[2]


def check_endpoint_url(url: str) -> None:
    """Raise ConfigurationError if the URL is not allowed.

    The error does not contain the URL, which may have a password.
    """
    error = find_url_error(url)
    if error is not None:
        raise ConfigurationError(OptionProblem(ENDPOINT_URL_OPTION, "{error}.", {"error": error}))
    if not is_https(url) and not is_loopback(url):
        raise ConfigurationError(
            OptionProblem(ENDPOINT_URL_OPTION, "must be https, because it receives the client's credentials.")
        )


@dataclass(frozen=True)
class _TokenResponse:
    """The parts of a successful token response that the client uses."""

    token: str = field(repr=False)
    expires_in: object
    """The unvalidated member `expires_in` of the response: the lifetime in seconds, or None."""


class _ClockTimes(NamedTuple):
    """The times that the two clocks show at one moment."""

    monotonic_s: float
    unix_s: float


def _start_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="pykafka-token", daemon=True).start()


class TokenSource:
    """The token that all connections with one configuration share.

    Thread-safe. While one thread requests a token because none is valid, the other callers wait for it.
    """

    def __init__(
        self,
        config: OidcConfig,
        *,
        now_s: Callable[[], float] = time.monotonic,
        unix_time_s: Callable[[], float] = time.time,
        run_in_background: Callable[[Callable[[], None]], None] = _start_thread,
    ) -> None:
        """Create a source that has no token yet. Tests replace all arguments except `config`.

        `now_s`: a clock that is never set back, but may stop while the machine is suspended.
        `unix_time_s`: the clock for times in tokens and assertions, which may be set back.
        """
        self._config = config
        self._now_s = now_s
        self._unix_time_s = unix_time_s
        self._run_in_background = run_in_background
        self._lock = threading.Lock()
        self._token = ""
        self._request_times = self._read_clocks()
        self._lifetime_s = 0.0
        self._renewal_age_s = 0.0
        self._is_renewing = False
        self._request_error: AuthenticationError | DisconnectedError | None = None
        self._retry_time_s = 0.0

    def get_token(self) -> str:
        """Return the cached token, or request one if no valid token is cached.

        If the cached token is about to expire, start renewing it in the background. Raise DisconnectedError if the
        endpoint is unavailable, and AuthenticationError if it rejects the request or sends an unusable response. The
        same error is raised, without a request, until as much time has passed as the failed request has taken.
        """
        with self._lock:
            times = self._read_clocks()
            age_s = self._compute_age_s(times)
            if age_s >= self._lifetime_s:
                if self._request_error is not None and times.monotonic_s < self._retry_time_s:
                    raise copy_error(self._request_error)
                self._store(self._request_missing_token(times), times)
            elif age_s >= self._renewal_age_s and not self._is_renewing:
                with contextlib.suppress(RuntimeError):  # threads cannot be started during interpreter shutdown
                    self._run_in_background(self._renew)
                    self._is_renewing = True  # `_renew` cannot have reset this yet, because it needs the lock
            return self._token

    def _request_missing_token(self, times: _ClockTimes) -> _TokenResponse:
        """Request a token while no valid one is cached. Keep the error of a failed request for other callers.

        `times`: the current times.
        """
        try:
            return self._request_token()
        except (AuthenticationError, DisconnectedError) as error:
            self._request_error = copy_error(error)
            failure_time_s = self._now_s()
            self._retry_time_s = failure_time_s + (failure_time_s - times.monotonic_s)
            raise

    def _read_clocks(self) -> _ClockTimes:
        return _ClockTimes(self._now_s(), self._unix_time_s())

    def _compute_age_s(self, times: _ClockTimes) -> float:
        """Return the time since the token was requested: the longer of the times that the two clocks have measured.

        Either clock alone may measure too little, and the source would keep an expired token.
        """
        return max(times.monotonic_s - self._request_times.monotonic_s, times.unix_s - self._request_times.unix_s)

    def _renew(self) -> None:
        """Replace the token before it expires. After a failure, try again after half of the remaining lifetime."""
        times = self._read_clocks()
        response: _TokenResponse | None = None
        try:
            response = self._request_token()
        except (AuthenticationError, DisconnectedError) as error:
            with self._lock:
                remaining_s = self._lifetime_s - self._compute_age_s(times)
            _log.warning("Could not renew the token, which expires in at most %.0f s: %s", remaining_s, error)
        finally:  # even after an unexpected error, so that the token can be renewed again
            with self._lock:
                self._is_renewing = False
                if response is not None:
                    self._store(response, times)
                else:
                    self._renewal_age_s = (self._compute_age_s(times) + self._lifetime_s) / 2

    def _store(self, response: _TokenResponse, request_times: _ClockTimes) -> None:
        """Cache the token. The lifetime counts from the request, so that the token never seems valid for too long."""
        self._lifetime_s = self._compute_lifetime_s(response)
        self._token, self._request_times = response.token, request_times
        self._request_error = None
        self._renewal_age_s = self._lifetime_s * self._config.refresh_window_factor

    def _request_token(self) -> _TokenResponse:
        """Send a token request and return the token in the response.

        Raise DisconnectedError if the endpoint cannot be reached or is unavailable. The connection to the broker then
        fails with this error, and the client calls `get_token` again when it reconnects. Raise AuthenticationError if
        the endpoint rejects the request, its response has no token, or its certificate cannot be verified.
        """
        config = self._config
        try:
            response = _send_token_request(config, self._unix_time_s())
        # Raise from None, because the traceback would otherwise show the message of an HTTPException, which may quote
        # the server's response.
        except HttpResponseTooLong as error:
            raise _build_endpoint_error(config, f"cannot be used: {error}", _PATH_REMEDY) from None
        except ssl.SSLCertVerificationError as error:
            problem = f"cannot be used: {_describe_certificate_error(config, error)}"
            raise _build_endpoint_error(config, problem, _CERTIFICATE_REMEDY) from None
        except ConfigurationError as error:
            raise AuthenticationError(f"OAUTHBEARER: {error}", remedy=_TRUSTSTORE_REMEDY) from None
        except (OSError, http.client.HTTPException) as error:
            problem = f"cannot be used: {describe_http_error(error)}"
            raise DisconnectedError(_describe_problem(config, problem), remedy=_UNREACHABLE_REMEDY) from None
        token = response.get("access_token")
        if not isinstance(token, str) or not token:
            raise _build_endpoint_error(config, "responded without an access_token", _PATH_REMEDY)
        return _TokenResponse(token, response.get("expires_in"))

    def _compute_lifetime_s(self, response: _TokenResponse) -> float:
        """Return the lifetime in seconds that the response or the token itself states; 0 if neither states one."""
        expires_in = response.expires_in
        # JSON's `true` is not a number, but it becomes a bool, which is a subclass of int.
        if isinstance(expires_in, int | float) and not isinstance(expires_in, bool) and expires_in > 0:
            return float(min(expires_in, _MAX_LIFETIME_S))
        try:
            expires_at_s = parse_token_expiry_s(decode_token_claims(response.token))
        except AuthenticationError:
            return 0.0  # an opaque token, which is allowed
        return max(0.0, expires_at_s - self._unix_time_s()) if expires_at_s is not None else 0.0


def _build_endpoint_error(config: OidcConfig, problem: str, remedy: str) -> AuthenticationError:
    """Build the error of a token request that would fail again. `problem`: see `_describe_problem`."""
    return AuthenticationError(_describe_problem(config, problem), remedy=remedy)


def _describe_problem(config: OidcConfig, problem: str) -> str:
    """Return an error message. `problem`: a predicate whose subject is the token endpoint."""
    return f"OAUTHBEARER: the token endpoint {config.endpoint_host} {problem}".removesuffix(".")


def _describe_certificate_error(config: OidcConfig, error: ssl.SSLCertVerificationError) -> str:
    """Describe why the endpoint's certificate was not accepted, and what to do about it."""
    return describe_certificate_error(
        error,
        urllib.parse.urlsplit(config.endpoint_url).hostname or "",
        server="endpoint",
        truststore="ssl.truststore.location or ssl.truststore.certificates",
        hostname_remedy=f"correct the host in {ENDPOINT_URL_OPTION}",
    )


def _build_ssl_context(truststore: StoreConfig | None) -> ssl.SSLContext | None:
    """Build a context that trusts the system's authorities and those in the truststore.

    Return None, which stands for Python's defaults, if there is no truststore. Raise ConfigurationError if the
    truststore cannot be read.
    """
    if truststore is None:
        return None
    context = build_client_ssl_context(TlsConfig(truststore=truststore))
    # The truststore is for the brokers, so the endpoint of a public identity provider need not be in it.
    context.load_default_certs()
    return context


def _send_token_request(config: OidcConfig, unix_time_s: float) -> dict[str, object]:
    """Send one token request and return the JSON object in the response.

    Raise AuthenticationError if the endpoint rejects the request, DisconnectedError if the endpoint is unavailable,
    OSError or HTTPException if there is no usable response, and ConfigurationError if the truststore cannot be read.
    """
    form = _build_form(config, unix_time_s)
    context = _build_ssl_context(config.truststore)
    connection = open_connection(config.endpoint_url, context, config.connect_timeout_ms / 1000)
    response = send_request(
        connection,
        "POST",
        config.endpoint_url,
        _build_headers(config),
        form,
        timeout_s=config.read_timeout_ms / 1000,
        max_bytes=MAX_RESPONSE_BYTES,
    )
    content = parse_json_object(response.body)
    if response.status in (HTTPStatus.OK, HTTPStatus.CREATED):
        return content
    # Unlike the Java client, this client does not follow redirects, so a redirect is final, too.
    if response.status not in _FINAL_ERROR_STATUSES and not is_redirect(response.status):
        message = _describe_problem(config, f"responded with status {response.status}")
        raise DisconnectedError(message, remedy=_UNAVAILABLE_REMEDY)
    problem = (
        f"rejected the request with status {response.status}"
        f"{_build_error_code_suffix(content)}{_build_assertion_suffix(config, response.date_s, unix_time_s)}"
    )
    remedy = _REDIRECT_REMEDY if is_redirect(response.status) else _PATH_REMEDY
    if response.status in _CREDENTIALS_STATUSES:
        remedy = _SECRET_REMEDY if config.assertion is None else _ASSERTION_REMEDY
    raise _build_endpoint_error(config, problem, remedy)


def _build_form(config: OidcConfig, unix_time_s: float) -> bytes:
    """Build the body of a token request, with a new assertion if the client uses assertions."""
    fields = {"grant_type": "client_credentials"}
    if config.assertion is not None and config.use_jwt_bearer_grant:
        fields = {"grant_type": _JWT_BEARER_GRANT, "assertion": create_assertion(config.assertion, unix_time_s)}
    elif config.assertion is not None:
        fields["client_assertion_type"] = _JWT_ASSERTION_TYPE
        fields["client_assertion"] = create_assertion(config.assertion, unix_time_s)
        if config.client_id:
            fields["client_id"] = config.client_id
    if config.scope:
        fields["scope"] = config.scope
    return urllib.parse.urlencode(fields).encode()


def _build_headers(config: OidcConfig) -> dict[str, str]:
    """Build the headers. The client secret is included only if the client has no assertion."""
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
    if config.assertion is not None:
        return headers
    client_id, secret = config.client_id, config.client_secret
    if config.urlencode_credentials:
        client_id, secret = urllib.parse.quote_plus(client_id), urllib.parse.quote_plus(secret)
    credentials = base64.b64encode(f"{client_id}:{secret}".encode()).decode()
    return {"Authorization": f"Basic {credentials}", **headers}


def _build_assertion_suffix(config: OidcConfig, date_s: float | None, unix_time_s: float) -> str:
    """Describe the rejected assertion, and the clock skew if it may be the cause."""
    if config.assertion is None:
        return ""
    suffix = f". The request contained {describe_assertion(config.assertion)}."
    if date_s is None or abs(date_s - unix_time_s) < _MIN_REPORTED_CLOCK_SKEW_S:
        return suffix
    skew = f"{abs(date_s - unix_time_s):.0f} s {'behind' if date_s > unix_time_s else 'ahead of'}"
    return f"{suffix} The clock of this machine is {skew} the endpoint's clock. Correct the clock."


def _build_error_code_suffix(content: dict[str, object]) -> str:
    """Return the error code of RFC 6749, such as `invalid_client`. Anything else in the response is not shown."""
    code = content.get("error")
    if not isinstance(code, str) or len(code) > _MAX_ERROR_CODE_LENGTH or not set(code) <= _ERROR_CODE_CHARACTERS:
        return ""
    return f": {code}"

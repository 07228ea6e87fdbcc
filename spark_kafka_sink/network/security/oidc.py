"""Tokens for OAUTHBEARER by the grants client_credentials (RFC 6749, section 4.4) and jwt-bearer (RFC 7523), and how
long they are kept. The client shows its secret, or an assertion (assertions.py), which is made anew for each request.

A token is fetched when a connection authenticates and none is at hand. One that has lived for most of its life is used
on, and a thread of its own fetches the next one: the thread that authenticates also sends records. Only
https is spoken, plain http to the loopback interface alone; redirects are not followed; the answer is bounded; what an
endpoint says in an error is never repeated beyond its standard error code.
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

from spark_kafka_sink.errors import AuthenticationError, ConfigurationError, OptionFault
from spark_kafka_sink.network.http_exchange import (
    HttpResponseTooLong,
    asked,
    connected,
    failure_words,
    is_encrypted,
    is_loopback,
    json_object,
    url_fault,
)
from spark_kafka_sink.network.security.assertions import AssertionConfig, assertion_of, shown
from spark_kafka_sink.network.security_options import default_of
from spark_kafka_sink.sasl.oauthbearer import decode_token_part, parse_token_expiry_s

ANSWER_BYTES_MAX = 1024 * 1024
ATTEMPTS_MAX = 3
ENDPOINT_URL_OPTION = "sasl.oauthbearer.token.endpoint.url"
_CLOCKS_DIFFER_S = 30
"""Providers allow a few minutes at most; some nothing."""
_JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_CLIENT_ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_ERROR_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz_")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OidcConfig:
    endpoint_url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None = None
    header_urlencode: bool = False
    connect_timeout_ms: int = int(default_of("sasl.login.connect.timeout.ms"))
    read_timeout_ms: int = int(default_of("sasl.login.read.timeout.ms"))
    retry_backoff_ms: int = int(default_of("sasl.login.retry.backoff.ms"))
    retry_backoff_max_ms: int = int(default_of("sasl.login.retry.backoff.max.ms"))
    refresh_window_factor: float = float(default_of("sasl.login.refresh.window.factor"))
    assertion: AssertionConfig | None = None
    """In place of the secret."""
    is_jwt_bearer: bool = False
    """The assertion is what is exchanged for a token, and not how the client says who it is."""


def check_endpoint_url(url: str) -> None:
    """ConfigurationError, which does not repeat the address: it may hold a password."""
    fault = url_fault(url)
    if fault is not None:
        raise ConfigurationError(OptionFault(ENDPOINT_URL_OPTION, "{fault}.", {"fault": fault}))
    if not is_encrypted(url) and not is_loopback(url):
        raise ConfigurationError(OptionFault(ENDPOINT_URL_OPTION, "must be https: the client's credentials go there."))


@dataclass(frozen=True)
class _Fetched:
    token: str = field(repr=False)
    expires_in: object


def _start_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="pykafka-token", daemon=True).start()


class TokenSource:
    """One token for all connections of a configuration. The lock guards it; all wait while there is none."""

    def __init__(
        self,
        config: OidcConfig,
        *,
        context: ssl.SSLContext | None = None,
        now_s: Callable[[], float] = time.time,
        wait_s: Callable[[float], None] = time.sleep,
        in_background: Callable[[Callable[[], None]], None] = _start_thread,
    ) -> None:
        self._config = config
        self._context = context
        self._now_s = now_s
        self._wait_s = wait_s
        self._in_background = in_background
        self._lock = threading.Lock()
        self._token = ""
        self._renew_s = self._end_s = 0.0
        self._renewing = False

    def token(self) -> str:
        with self._lock:
            now_s = self._now_s()
            if now_s >= self._end_s:
                self._keep(self._fetch(ATTEMPTS_MAX), now_s)
            elif now_s >= self._renew_s and not self._renewing:
                with contextlib.suppress(RuntimeError):  # no thread can start, as when the process ends
                    self._in_background(self._renew)
                    self._renewing = True
            return self._token

    def _renew(self) -> None:
        asked_s = self._now_s()
        fetched: _Fetched | None = None
        try:
            fetched = self._fetch(attempts_max=1)
        except AuthenticationError as error:
            left_s = self._end_s - asked_s
            _log.warning("The present token is used for another %.0f s at most. %s", left_s, error)
        finally:
            with self._lock:
                self._renewing = False
                if fetched is None:
                    self._renew_s = asked_s + (self._end_s - asked_s) / 2
                else:
                    self._keep(fetched, asked_s)

    def _keep(self, fetched: _Fetched, asked_s: float) -> None:
        life_s = self._life_s(fetched, asked_s)
        self._token, self._end_s = fetched.token, asked_s + life_s
        self._renew_s = asked_s + life_s * self._config.refresh_window_factor

    def _fetch(self, attempts_max: int) -> _Fetched:
        answer = self._ask_until_answered(attempts_max)
        token = answer.get("access_token")
        if not isinstance(token, str) or not token:
            raise AuthenticationError("OAUTHBEARER: the token endpoint's answer has no access_token")
        return _Fetched(token, answer.get("expires_in"))

    def _life_s(self, fetched: _Fetched, asked_s: float) -> float:
        """By the answer, or by the token itself; a token that does not say is fetched each time."""
        life_s = fetched.expires_in
        if isinstance(life_s, int | float) and not isinstance(life_s, bool) and life_s > 0:
            return float(min(life_s, 10 * 365 * 86400))
        try:
            expires_s = parse_token_expiry_s(decode_token_part(fetched.token, 1))
        except AuthenticationError:
            return 0.0  # opaque to us, which is allowed
        return max(0.0, expires_s - asked_s) if expires_s is not None else 0.0

    def _ask_until_answered(self, attempts_max: int) -> dict[str, object]:
        """A missing server or a server's error is tried again; a refusal is final."""
        backoff_ms = self._config.retry_backoff_ms
        for attempt in range(1, attempts_max + 1):
            try:
                return _ask(self._config, self._context, self._now_s())
            except HttpResponseTooLong as error:
                raise AuthenticationError(f"OAUTHBEARER: the token endpoint: {error}") from None
            except (OSError, http.client.HTTPException) as error:
                if attempt == attempts_max or isinstance(error, ssl.SSLCertVerificationError):
                    # Not `from error`: a traceback would repeat what came in place of HTTP.
                    raise AuthenticationError(
                        f"OAUTHBEARER: no token from the endpoint: {failure_words(error)}"
                    ) from None
                fault = failure_words(error)
            wait_s = min(backoff_ms, self._config.retry_backoff_max_ms) / 1000
            _log.warning("OAUTHBEARER: no token from the endpoint: %s. It is asked again in %.1f s.", fault, wait_s)
            self._wait_s(wait_s)
            backoff_ms *= 2
        raise AssertionError("the last attempt returns or raises")


class _ServerBusy(OSError):
    """The endpoint answered with a 5xx or 429: later may be better."""


def _ask(config: OidcConfig, context: ssl.SSLContext | None, now_s: float) -> dict[str, object]:
    form = _form(config, now_s)
    connection = connected(config.endpoint_url, context, config.connect_timeout_ms / 1000)
    answer = asked(
        connection,
        "POST",
        config.endpoint_url,
        _headers(config),
        form,
        timeout_s=config.read_timeout_ms / 1000,
        bytes_max=ANSWER_BYTES_MAX,
    )
    if answer.status >= 500 or answer.status == 429:
        raise _ServerBusy(f"status {answer.status}")
    said = json_object(answer.data)
    if answer.status != 200:
        raise AuthenticationError(
            f"OAUTHBEARER: the token endpoint refused with status {answer.status}{_error_code(said)}"
            + _assertion_words(config, answer.date_s, now_s)
        )
    return said


def _form(config: OidcConfig, now_s: float) -> bytes:
    fields = {"grant_type": "client_credentials"}
    if config.assertion is not None and config.is_jwt_bearer:
        fields = {"grant_type": _JWT_BEARER, "assertion": assertion_of(config.assertion, now_s)}
    elif config.assertion is not None:
        fields["client_assertion_type"] = _CLIENT_ASSERTION
        fields["client_assertion"] = assertion_of(config.assertion, now_s)
        if config.client_id:
            fields["client_id"] = config.client_id
    if config.scope:
        fields["scope"] = config.scope
    return urllib.parse.urlencode(fields).encode()


def _headers(config: OidcConfig) -> dict[str, str]:
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
    if config.assertion is not None:
        return headers
    identity, secret = config.client_id, config.client_secret
    if config.header_urlencode:
        identity, secret = urllib.parse.quote_plus(identity), urllib.parse.quote_plus(secret)
    credentials = base64.b64encode(f"{identity}:{secret}".encode()).decode()
    return {"Authorization": f"Basic {credentials}", **headers}


def _assertion_words(config: OidcConfig, date_s: float | None, now_s: float) -> str:
    """What was refused, and whether the clocks of the two sides explain it."""
    if config.assertion is None:
        return ""
    words = f". It was asked with {shown(config.assertion)}"
    if date_s is None or abs(date_s - now_s) < _CLOCKS_DIFFER_S:
        return words + "."
    side = "behind" if date_s > now_s else "ahead of"
    return f"{words}. The clock of this machine is {abs(date_s - now_s):.0f} s {side} the endpoint's: set it right."


def _error_code(answer: dict[str, object]) -> str:
    """The standard's `error` (invalid_client, ...): a word; anything else is not repeated."""
    code = answer.get("error")
    return f": {code}" if isinstance(code, str) and len(code) < 64 and set(code) <= _ERROR_CHARACTERS else ""

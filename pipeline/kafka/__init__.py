"""Connections to a Kafka cluster: addresses, TLS and SASL, and the errors for one that does not answer or refuses.

Every client (the worker's consumers and producers, changelog readers, all commands) takes its arguments from
``connection``, so that the same security settings apply everywhere.
"""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
import time
from collections.abc import Awaitable, Callable
from email.message import Message
from http.client import HTTPException
from pathlib import Path
from typing import IO, Annotated, Any, Literal, Protocol, TypeAlias
from urllib.parse import urlencode
from urllib.request import BaseHandler, HTTPRedirectHandler, HTTPSHandler, OpenerDirector, Request, build_opener

import msgspec
from aiokafka.abc import AbstractTokenProvider
from aiokafka.conn import create_conn
from aiokafka.errors import (
    BrokerResponseError,
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    IllegalSaslStateError,
    KafkaError,
    KafkaTimeoutError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
    UnsupportedSaslMechanismError,
)
from msgspec import Meta, Struct

from reknit.pipeline.errors import BrokerDownError, BrokerError, InputError, error_name
from reknit.pipeline.kafka import header_names
from reknit.pipeline.urls import host_of, mask_urls

# Settings that hold a secret. Each has a counterpart ``…_file``; none is ever read from an option or shown.
SECRETS = ("sasl_password", "sasl_oauth_client_secret", "ssl_password")

File = Annotated[str, Meta(min_length=1)]
# Time limit of an attempt that only finds out why no broker answers.
_LOOK_SECONDS = 5.0
# Share of a token's lifetime during which it is reused for new connections.
_TOKEN_USED = 0.8


Compression: TypeAlias = Literal["zstd", "lz4", "gzip", "none"]
"""The codecs that outputs can be written with."""


class KafkaSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Connection settings, by Kafka's own names. Secrets come from the environment or from a separate file."""

    client_id: Annotated[str, Meta(description="The client's name in the brokers' logs and quotas.")] = "reknit"
    security_protocol: Annotated[
        Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"], Meta(description="How the brokers are spoken to.")
    ] = "PLAINTEXT"
    sasl_mechanism: Annotated[
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None,
        Meta(description="How a client proves who it is, under SASL_PLAINTEXT and SASL_SSL."),
    ] = None
    sasl_username: Annotated[str | None, Meta(description="The user name for PLAIN and SCRAM.")] = None
    sasl_password: Annotated[str | None, Meta(description="Its password; only from the environment.")] = None
    sasl_password_file: Annotated[File | None, Meta(description="Or a file with the password alone.")] = None
    sasl_oauth_token_file: Annotated[
        File | None, Meta(description="A token that something else keeps fresh, read for each connection.")
    ] = None
    sasl_oauth_token_endpoint: Annotated[
        File | None, Meta(description="Or a URL that gives tokens for client credentials (RFC 6749, 4.4).")
    ] = None
    sasl_oauth_client_id: Annotated[str | None, Meta(description="The id for that URL.")] = None
    sasl_oauth_client_secret: Annotated[
        str | None, Meta(description="The secret for that URL; only from the environment.")
    ] = None
    sasl_oauth_client_secret_file: Annotated[File | None, Meta(description="Or a file with the secret alone.")] = None
    sasl_oauth_scope: Annotated[str | None, Meta(description="The scope to ask for.")] = None
    ssl_cafile: Annotated[
        File | None, Meta(description="PEM: the CA that signed the brokers' certificates; without it the system's.")
    ] = None
    ssl_certfile: Annotated[
        File | None, Meta(description="PEM: the client's certificate, for brokers that want to see one.")
    ] = None
    ssl_keyfile: Annotated[File | None, Meta(description="PEM: its key.")] = None
    ssl_password: Annotated[str | None, Meta(description="The key's password; only from the environment.")] = None
    ssl_password_file: Annotated[File | None, Meta(description="Or a file with the password alone.")] = None
    ssl_check_hostname: Annotated[bool, Meta(description="Whether a broker's name must be in its certificate.")] = True

    def __repr__(self) -> str:
        """Return the usual form of a struct, without the secrets."""
        shown = {name: getattr(self, name) for name in self.__struct_fields__ if name not in SECRETS}
        return f"KafkaSettings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    def secret(self, name: str) -> str | None:
        """Return a secret, from its file if one is named; a line break at the file's end is not part of it.

        Raises:
            InputError: the file cannot be read.
        """
        file = getattr(self, f"{name}_file")
        value: str | None = _read(f"{name}_file", file).rstrip("\r\n") if file else getattr(self, name)
        return value


class Cluster(Protocol):
    """The part of a configuration that identifies the cluster, the connection settings, and the pipeline on it."""

    @property
    def bootstrap_servers(self) -> str:
        """``host:port``, several separated by commas."""

    @property
    def kafka(self) -> KafkaSettings:
        """TLS, SASL and the client id."""

    @property
    def prefix(self) -> str:
        """Prefix of every topic, group and transactional id; may be empty."""


def connection(cluster: Cluster) -> dict[str, Any]:
    """Return the connection arguments of an aiokafka client: addresses, client id, TLS and SASL.

    Also makes this process's consumers accept any header name, which aiokafka's do not (``header_names``).

    Raises:
        InputError: the settings contradict each other, or a file that they name cannot be read.
    """
    header_names.install()
    settings = cluster.kafka
    protocol, mechanism = settings.security_protocol, settings.sasl_mechanism
    found: dict[str, Any] = {
        "bootstrap_servers": cluster.bootstrap_servers,
        "client_id": settings.client_id,
        "security_protocol": protocol,
    }
    if protocol.endswith("SSL"):
        found["ssl_context"] = _ssl_context(settings)
    elif settings.ssl_cafile or settings.ssl_certfile or settings.ssl_keyfile:
        raise _contradiction("security_protocol", f"{protocol} uses no certificates, but ssl_… files are named")
    if not protocol.startswith("SASL"):
        if mechanism:
            raise _contradiction("security_protocol", f"{protocol} uses no SASL, but sasl_mechanism is {mechanism}")
        return found
    if mechanism is None:
        raise _contradiction("sasl_mechanism", f"{protocol} needs one, such as SCRAM-SHA-512")
    found["sasl_mechanism"] = mechanism
    if mechanism == "OAUTHBEARER":
        found["sasl_oauth_token_provider"] = _token_provider(settings)
        return found
    password = settings.secret("sasl_password")
    if not settings.sasl_username or not password:
        raise _contradiction(
            "sasl_username",
            f"{mechanism} needs sasl_username and a password in REKNIT_KAFKA_SASL_PASSWORD or a sasl_password_file",
        )
    return found | {"sasl_plain_username": settings.sasl_username, "sasl_plain_password": password}


def _contradiction(key: str, message: str) -> InputError:
    return InputError("kafka_settings", message, path=f"kafka.{key}")


def _read(key: str, file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("kafka_file", f"cannot read {file}: {_reason(error)}", path=f"kafka.{key}") from error


def _ssl_context(settings: KafkaSettings) -> ssl.SSLContext:
    key = "ssl_cafile"
    try:
        context = ssl.create_default_context(cafile=settings.ssl_cafile)
        context.check_hostname = settings.ssl_check_hostname
        key = "ssl_certfile"
        if settings.ssl_certfile:
            # Without a password, OpenSSL would prompt on the terminal for that of an encrypted key.
            password = settings.secret("ssl_password") or ""
            context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile, password)
    except (OSError, ValueError) as error:
        raise InputError(
            "kafka_file", f"cannot use {getattr(settings, key)}: {_reason(error)}", path=f"kafka.{key}"
        ) from error
    return context


def _token_provider(settings: KafkaSettings) -> AbstractTokenProvider:
    file, endpoint = settings.sasl_oauth_token_file, settings.sasl_oauth_token_endpoint
    if file:
        _read("sasl_oauth_token_file", file)
        return _Provider(lambda: _of_file(file))
    if not endpoint or not settings.sasl_oauth_client_id or not settings.secret("sasl_oauth_client_secret"):
        raise _contradiction(
            "sasl_mechanism",
            "OAUTHBEARER needs sasl_oauth_token_file, or sasl_oauth_token_endpoint with sasl_oauth_client_id and a "
            "secret in REKNIT_KAFKA_SASL_OAUTH_CLIENT_SECRET or a sasl_oauth_client_secret_file",
        )
    return _Provider(_Endpoint(settings).token)


class _Provider(AbstractTokenProvider):  # type: ignore[misc] # aiokafka has no types here
    def __init__(self, token: Callable[[], Awaitable[str]]) -> None:
        self._token = token

    async def token(self) -> str:
        """Return a token that is valid now; called for each connection."""
        return await self._token()


async def _of_file(file: str) -> str:
    return _read("sasl_oauth_token_file", file).strip()


class _Token(Struct, frozen=True):
    access_token: str
    expires_in: float = 0.0


class RedirectError(OSError):
    """A server answered with a redirect to ``host``, which is not followed."""

    def __init__(self, host: str) -> None:
        super().__init__(f"redirect to {host}, which is not followed")
        self.host = host


class _NoRedirects(HTTPRedirectHandler):
    """Refuse redirects. urllib itself copies the request's headers, with credentials, to the new host."""

    def http_error_302(self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Message) -> None:
        """Raise instead of following. Without a target urllib raises its own error."""
        del code, msg
        target = headers.get("location")
        if target:
            fp.close()
            raise RedirectError(host_of(target, req.full_url))

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def opener(*handlers: BaseHandler) -> OpenerDirector:
    """Return a urllib client that raises ``RedirectError`` for a redirect."""
    return build_opener(_NoRedirects, *handlers)


class TokenError(ConnectionError):
    """The token endpoint gave no token. The message holds no secret."""


def _why_no_token(error: Exception) -> str:
    return str(error) if isinstance(error, RedirectError) else error_name(error)


class _Endpoint:
    """Requests tokens from an endpoint, and reuses each for most of its lifetime."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._token = ""
        self._until = 0.0
        self._lock = asyncio.Lock()

    async def token(self) -> str:
        async with self._lock:
            if time.monotonic() >= self._until:
                self._token, seconds = await self._ask()
                self._until = time.monotonic() + seconds * _TOKEN_USED
            return self._token

    async def _ask(self) -> tuple[str, float]:
        settings, endpoint = self._settings, self._settings.sasl_oauth_token_endpoint or ""
        form = {"grant_type": "client_credentials", "scope": settings.sasl_oauth_scope}
        body = urlencode({name: value for name, value in form.items() if value}).encode()
        who = f"{settings.sasl_oauth_client_id}:{settings.secret('sasl_oauth_client_secret')}"
        headers = {"Authorization": f"Basic {base64.b64encode(who.encode()).decode()}", "Accept": "application/json"}
        trusted = ssl.create_default_context()
        if settings.ssl_cafile:
            trusted.load_verify_locations(settings.ssl_cafile)

        def post() -> bytes:
            request = Request(endpoint, body, headers)  # noqa: S310  the operator's own address
            with opener(HTTPSHandler(context=trusted)).open(request, timeout=_LOOK_SECONDS) as answer:
                given: bytes = answer.read()
            return given

        try:
            given = msgspec.json.decode(await asyncio.to_thread(post), type=_Token)
        except (OSError, ValueError, HTTPException, msgspec.MsgspecError) as error:
            # The client reports an OSError as an unreachable broker, and retries.
            raise TokenError(f"{mask_urls(endpoint)} gives no token ({_why_no_token(error)})") from error
        return given.access_token, given.expires_in


# The client's errors for a missing right.
REFUSALS = (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
)


def may_pass(error: KafkaError | OSError | TimeoutError) -> bool:
    """Return True if the same client may succeed later. A general client error means that one of its tasks died."""
    return bool(isinstance(error, OSError | TimeoutError) or error.retriable or isinstance(error, KafkaTimeoutError))


def refusal(error: BaseException, right: str = "a right") -> str:
    """Return a sentence about the missing right; it names the resource if the client's error does."""
    kinds = {GroupAuthorizationFailedError: "group", TransactionalIdAuthorizationFailed: "transactional id"}
    kind = kinds.get(type(error), "cluster" if isinstance(error, ClusterAuthorizationFailedError) else "topic")
    place = error.args[0] if error.args else ""
    named = ", ".join(sorted(place)) if isinstance(place, set | frozenset) else str(place)
    return f"the brokers refuse {right} on {kind} {named}".rstrip() + ". `reknit topics acls` prints what is needed."


async def why_down(cluster: Cluster, seen: Exception | None = None) -> BrokerError:
    """Return the error that explains why no client can connect, after one attempt to reach the first address.

    ``seen`` is the client's error; it is reported if the address answers now.
    """
    given = connection(cluster)
    addresses = given.pop("bootstrap_servers")
    servers = mask_urls(addresses)
    host, _, port = addresses.partition(",")[0].rpartition(":")
    try:
        (await create_conn(host.strip("[]"), int(port), request_timeout_ms=int(_LOOK_SECONDS * 1000), **given)).close()
    except (SaslAuthenticationFailed, UnsupportedSaslMechanismError, IllegalSaslStateError) as error:
        who = given.get("sasl_plain_username")
        return BrokerError(
            "not_authenticated",
            f"the brokers at {servers} do not let {repr(who) if who else 'the client'} in: {words_of(error)}",
        )
    except ssl.SSLCertVerificationError as error:
        return BrokerError(
            "not_trusted",
            f"the certificate of {host}:{port} is not trusted: {error.verify_message}. "
            "Is kafka.ssl_cafile the CA that signed it, and is the host's name in it?",
        )
    except Exception as error:  # noqa: BLE001  any error: no broker answers
        reason = _reason(error)
    else:
        reason = error_name(seen) if seen else "no metadata"
    return BrokerDownError(
        "broker_unreachable",
        f"no Kafka broker answers at {servers} ({reason}). "
        "Is it running, is --bootstrap-servers right, and does it speak "
        f"{given['security_protocol']}?",
    )


async def explained(cluster: Cluster, error: Exception) -> BrokerError:
    """Return the error that a command reports for a client's error: the refused operation, or why no broker answers."""
    if isinstance(error, REFUSALS):
        return BrokerError("not_authorized", refusal(error))
    if isinstance(error, BrokerResponseError) and not error.retriable:
        said = f"{words_of(error)} ({error_name(error)})"
        return BrokerError("broker_refused", f"{mask_urls(cluster.bootstrap_servers)} refuses: {said}")
    return await why_down(cluster, error)


def _reason(error: BaseException) -> str:
    if isinstance(error, TokenError):
        return str(error)
    if isinstance(error, ssl.SSLError):
        return error.reason or "TLS failed"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)  # event loops use other texts for it
    return error_name(error)


def words_of(error: KafkaError) -> str:
    """Return a client's error without the name of its class in front."""
    return str(error).removeprefix(f"{type(error).__name__}: ")

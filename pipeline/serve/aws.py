"""AWS Signature Version 4 on the request path.

A client signs the host and the path that it sends to, which are the gateway's, and the digest of the body. So the
signature holds for the upstream only if host, path and body stay the same. Every other signed request is signed again
with the gateway's own credentials. To use them, a client must have signed with the same credentials, or the
configuration allows all clients that have the gateway's key.

Source: "Create a signed AWS API request" in the IAM user guide. botocore computes signatures and finds credentials.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from importlib import import_module
from time import monotonic
from typing import Any, Final

from aiohttp import hdrs
from msgspec import Struct
from multidict import CIMultiDict, MultiMapping
from yarl import URL

from reknit.pipeline.errors import InputError, error_name
from reknit.pipeline.serve.errors import GatewayError

log = logging.getLogger("reknit.serve")

INSTALL: Final = "signing requests for AWS needs an extra: pip install 'reknit[bedrock]'"
_SCHEME: Final = "AWS4-HMAC-SHA256"
_SIGNATURE: Final = re.compile(
    rf"{_SCHEME}\s+Credential=(?P<access_key>[^\s/,]{{1,128}})/(?P<date>\d{{8}})/(?P<region>[a-z0-9-]{{1,40}})"
    r"/(?P<service>[a-z0-9-]{1,40})/aws4_request"
    r"\s*,\s*SignedHeaders=(?P<headers>[a-z0-9;_.-]{1,4096})\s*,\s*Signature=(?P<value>[0-9a-f]{64})\s*"
)
_REGION: Final = re.compile(r"(?:^|\.)bedrock[a-z-]*\.(?P<region>[a-z]{2,}(?:-[a-z]+)+-\d+)\.")
_DATE: Final = "x-amz-date"
_TOKEN: Final = "x-amz-security-token"  # noqa: S105  the name of a header
_DIGEST: Final = "x-amz-content-sha256"
# Headers that a new signature replaces. The client of the upstream writes the last two.
_REPLACED: Final = frozenset({"authorization", _DATE, "date", _TOKEN, _DIGEST, "host", "content-length"})
_TIME: Final = "%Y%m%dT%H%M%SZ"
# AWS accepts the same difference.
_MOST_DIFFERENCE: Final = timedelta(minutes=15)
# A client with another access key makes the gateway search for new credentials, not more often than this.
_SEARCH_SECONDS: Final = 60.0


class ClientSignature(Struct, frozen=True):
    """A signature of a client: its access key, its scope, the names of the signed headers, and its value."""

    access_key: str
    date: str
    region: str
    service: str
    headers: tuple[str, ...]
    value: str


def access_key_in(authorization: str) -> str | None:
    """Return the access key of a signature, which is the same for all requests of a client; None for other headers."""
    found = _SIGNATURE.fullmatch(authorization)
    return found and found["access_key"]


def signature_in(headers: MultiMapping[str]) -> ClientSignature | None:
    """Return the signature of a request; None if it has none.

    Raises:
        GatewayError: 400: it cannot be read.
    """
    given = headers.get(hdrs.AUTHORIZATION, "")
    if not given.startswith(_SCHEME):
        return None
    found = _SIGNATURE.fullmatch(given)
    if found is None or not {"host", _DATE} <= set(found["headers"].split(";")):
        raise GatewayError(
            400, "the AWS signature of the request cannot be read; sign with an SDK, or use a bearer key"
        )
    access_key, date, region, service, names, value = found.groups()
    return ClientSignature(access_key, date, region, service, tuple(names.split(";")), value)


class SignedRequest(Struct, frozen=True):
    """A request that its client signed, as the gateway received it.

    Attributes:
        signature: of the client.
        method: of the request.
        host: the header ``Host``.
        path: path and query, percent-encoded as received.
        headers: all headers.
    """

    signature: ClientSignature
    method: str
    host: str
    path: str
    headers: MultiMapping[str]

    def is_for(self, url: URL) -> bool:
        """Return True if the client signed the host and the path of a URL."""
        return self.host.lower() == url.host_port_subcomponent and self.path == url.raw_path_qs

    def holds_at(self, url: URL, headers: MultiMapping[str]) -> bool:
        """Return True if the signature is valid for the same body at another URL, with these headers."""
        names = set(self.signature.headers) - {"host", "content-length"}
        return self.is_for(url) and all(self.headers.getall(name, []) == headers.getall(name, []) for name in names)


class Signing(Struct, frozen=True):
    """How a request that a client signed is sent to the upstream.

    Attributes:
        client: the request, as received.
        body: its body, as received.
        credentials: of the gateway; None if it must not or cannot sign, so that the request must stay as it is.
    """

    client: SignedRequest
    body: bytes
    credentials: Any = None

    def __repr__(self) -> str:
        """Return a text without the credentials."""
        return f"Signing(can_change={self.can_change})"

    @property
    def can_change(self) -> bool:
        """True if the body may be changed."""
        return self.credentials is not None

    def headers_for(self, url: str, headers: CIMultiDict[str], body: bytes) -> CIMultiDict[str]:
        """Return the headers of a request to the upstream, with a new signature unless that of the client holds.

        Args:
            url: of the upstream, percent-encoded.
            headers: for the upstream.
            body: for the upstream.
        """
        is_same = body == self.body and self.client.holds_at(URL(url, encoded=True), headers)
        return headers if is_same or not self.can_change else _signed(self.credentials, self.client, url, headers, body)


class AwsSigner:
    """Signs requests with the credentials that botocore's standard chain finds. They are kept in memory only."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._session: Any = None
        self._known: tuple[Any, ...] = ()
        self._next_search = 0.0

    async def signing_of(self, client: SignedRequest, body: bytes, url: str, *, is_any_allowed: bool) -> Signing:
        """Return how a signed request is sent.

        Args:
            client: the request, as received.
            body: its body, as received.
            url: of the upstream, percent-encoded.
            is_any_allowed: a client need not have the gateway's own credentials.

        Raises:
            GatewayError: the signature does not hold for the upstream, and the gateway cannot sign. 400 without
                botocore; 403 without credentials, or if the client does not have them; 503 if they cannot be fetched.
        """
        try:
            return Signing(client, body, await self._credentials_for(client, body, is_any_allowed=is_any_allowed))
        except GatewayError:
            if client.is_for(URL(url, encoded=True)):
                return Signing(client, body)
            raise

    async def _credentials_for(self, client: SignedRequest, body: bytes, *, is_any_allowed: bool) -> Any:  # noqa: ANN401  a type of botocore, which has none
        # They may be fetched over the network or by a program.
        known = await asyncio.to_thread(self._credentials, None if is_any_allowed else client.signature.access_key)
        if not (is_any_allowed or any(_is_signed_with(each, client, body) for each in known)):
            message = (
                "the request is not signed with the AWS credentials of this gateway; use the same credentials or a "
                'bearer key, or set sign = "any" for the upstream'
            )
            raise GatewayError(403, message)
        return known[0]

    def _credentials(self, access_key: str | None) -> tuple[Any, ...]:
        """Return the gateway's credentials, and then those that they replaced, which clients may still have.

        Args:
            access_key: if none of them has it, they are searched again, since a client may have newer ones; None: any.
        """
        if not has_botocore():
            log.warning(INSTALL)
            raise GatewayError(400, f"{INSTALL}; or use a bearer key")
        with self._lock:
            self._find()
            is_known = access_key is None or any(each.access_key == access_key for each in self._known)
            if not is_known and monotonic() >= self._next_search:
                self._next_search = monotonic() + _SEARCH_SECONDS
                self._session = None
                self._find()
            return self._known

    def _find(self) -> None:
        """Put the present credentials first among the known ones.

        Raises:
            GatewayError: 403 if the chain has no credentials; 503 if they cannot be fetched.
        """
        import botocore.session  # noqa: PLC0415  an extra

        # Its debug messages have the signed headers, and the session token is one of them.
        logging.getLogger("botocore").setLevel(logging.WARNING)
        try:
            self._session = self._session or botocore.session.Session()
            source = self._session.get_credentials()
            found = None if source is None else source.get_frozen_credentials()
        except Exception as error:  # noqa: BLE001  its sources raise errors of files, programs and the network
            # Their texts may quote secrets.
            raise GatewayError(503, f"AWS credentials cannot be fetched: {error_name(error)}") from None
        if found is None or not found.access_key:
            raise GatewayError(403, "this gateway has no AWS credentials to sign the request with; use a bearer key")
        if self._known[:1] != (found,):
            self._known = (found, *self._known[:1])


def _is_signed_with(credentials: Any, client: SignedRequest, body: bytes) -> bool:  # noqa: ANN401  a type of botocore
    """Return True if a client signed this body with these credentials within the last minutes."""
    from botocore.auth import SigV4Auth  # noqa: PLC0415  an extra

    given = client.signature
    headers = {name: ",".join(client.headers.getall(name, ())) for name in given.headers}
    if given.access_key != credentials.access_key or not _is_now(headers[_DATE], given.date):
        return False
    if headers.get(_DIGEST, _sha256(body)) != _sha256(body):
        return False
    signer = SigV4Auth(credentials, given.service, given.region)
    request = _request(client.method, f"http://{client.host}{client.path}", body, {**headers, "host": client.host})
    request.context["timestamp"] = headers[_DATE]
    value = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
    return hmac.compare_digest(value, given.value)


def _signed(
    credentials: Any,  # noqa: ANN401  a type of botocore
    client: SignedRequest,
    url: str,
    headers: CIMultiDict[str],
    body: bytes,
) -> CIMultiDict[str]:
    """Return the headers of a request with a signature of the same headers as the client's."""
    from botocore.auth import SigV4Auth  # noqa: PLC0415  an extra

    given = client.signature
    names = [name for name in given.headers if name in headers and name not in _REPLACED]
    signed = {name: ",".join(headers.getall(name)) for name in names}
    if _DIGEST in headers:
        signed[_DIGEST] = _sha256(body)
    host = _REGION.search(URL(url, encoded=True).raw_host or "")
    request = _request(client.method, url, body, signed)
    SigV4Auth(credentials, given.service, given.region if host is None else host["region"]).add_auth(request)
    done = CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in _REPLACED)
    done.update((name, value) for name, value in request.headers.items() if name.lower() in _REPLACED)
    return done


def _request(method: str, url: str, body: bytes, headers: Mapping[str, str]) -> Any:  # noqa: ANN401  as above
    from botocore.awsrequest import AWSRequest  # noqa: PLC0415  an extra

    return AWSRequest(method=method, url=url, data=body, headers=headers)


def _is_now(date: str, day: str) -> bool:
    try:
        at = datetime.strptime(date, _TIME).replace(tzinfo=UTC)
    except ValueError:
        return False
    return date.startswith(day) and abs(datetime.now(UTC) - at) <= _MOST_DIFFERENCE


def _sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def has_botocore() -> bool:
    """Return True if botocore can be imported."""
    try:
        import_module("botocore.auth")
    except ModuleNotFoundError:
        return False
    return True


def check_botocore() -> None:
    """Check that botocore is installed.

    Raises:
        InputError: ``bedrock_missing``.
    """
    if not has_botocore():
        raise InputError("bedrock_missing", INSTALL, path="serve.upstream")

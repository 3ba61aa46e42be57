"""A transport for the HTTP clients of the SDKs of Anthropic and OpenAI that repairs requests to a model.

It wraps a transport of ``httpx`` or ``httpx2``, whichever the SDK uses, and imports neither. A request that needs no
repair keeps its bytes. One that cannot be repaired, or whose body is signed, is sent as it is.
"""

from __future__ import annotations

from typing import Any, Final, Self

from reknit.pipeline.integrations.request_body import OnFixes, repaired_body
from reknit.pipeline.serve.endpoints import Endpoint, endpoint_of
from reknit.pipeline.session.arguments import GivenPolicy, policy_from

_SIGNED: Final = "AWS4-"  # the beginning of a signature that includes the body


class _Transport:
    def __init__(self, transport: Any, *, policy: GivenPolicy = None, on_fixes: OnFixes | None = None) -> None:  # noqa: ANN401  of either library
        self._transport = transport
        self._policy = policy_from(policy)
        self._on_fixes = on_fixes

    def _repaired(self, request: Any, body: bytes, endpoint: Endpoint) -> Any:  # noqa: ANN401  of either library
        sent = repaired_body(body, endpoint, self._policy, self._on_fixes)
        if sent is body:
            return request
        headers = [(name, value) for name, value in request.headers.multi_items() if name.lower() != "content-length"]
        return type(request)(request.method, request.url, headers=headers, content=sent, extensions=request.extensions)


class RepairTransport(_Transport):
    """Repairs the requests of a client: ``httpx2.Client(transport=RepairTransport(httpx2.HTTPTransport()))``.

    ``policy`` is that of ``normalize``; ``on_fixes`` is called with the fixes of each request that is repaired.
    """

    def handle_request(self, request: Any) -> Any:  # noqa: ANN401  of either library
        endpoint = _endpoint(request)
        sent = self._repaired(request, request.read(), endpoint) if endpoint is not None else request
        return self._transport.handle_request(sent)

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> Self:
        self._transport.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._transport.__exit__(*exception)


class AsyncRepairTransport(_Transport):
    """As `RepairTransport`, for clients with coroutines."""

    async def handle_async_request(self, request: Any) -> Any:  # noqa: ANN401  of either library
        endpoint = _endpoint(request)
        sent = self._repaired(request, await request.aread(), endpoint) if endpoint is not None else request
        return await self._transport.handle_async_request(sent)

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._transport.__aexit__(*exception)


def _endpoint(request: Any) -> Endpoint | None:  # noqa: ANN401  of either library
    """Return the endpoint of a request whose body can be replaced; None for any other request."""
    headers = request.headers
    is_encoded = headers.get("content-encoding", "identity") != "identity"
    if request.method != "POST" or is_encoded or headers.get("authorization", "").startswith(_SIGNED):
        return None
    return endpoint_of(request.url.raw_path.decode("ascii", "replace").partition("?")[0], request.url.host)

"""The gateway's server: requests that it refuses itself, start and drain, and its status."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from aiohttp import hdrs, web
from msgspec import Struct

from reknit.pipeline.client.routes import SILENCE_SECONDS
from reknit.pipeline.errors import InputError
from reknit.pipeline.serve.connections import new_client
from reknit.pipeline.serve.errors import GatewayError, error_body
from reknit.pipeline.serve.exchange import Exchanges
from reknit.pipeline.serve.headers import KEY, passed_already
from reknit.pipeline.serve.input_log import Connect, InputLog
from reknit.pipeline.serve.journal import MOST_BYTES, Journal
from reknit.pipeline.serve.local import LocalPaths, has_key
from reknit.pipeline.serve.memory import GatewayMemory
from reknit.pipeline.serve.metrics import GatewayMetrics
from reknit.pipeline.serve.publishing import Publishing
from reknit.pipeline.serve.received import HOLD_SECONDS
from reknit.pipeline.serve.recent import RecentExchanges
from reknit.pipeline.serve.repair import MOST_BYTES as MOST_BODY_BYTES
from reknit.pipeline.serve.repair import Repairs
from reknit.pipeline.serve.request_lines import RequestLines
from reknit.pipeline.serve.upstreams import Destination, Publish, Upstreams, form_of_errors
from reknit.pipeline.tracing.calls import Tracing
from reknit.pipeline.urls import LOOPBACK
from reknit.pipeline.web import listen, runner_of, status_app

log = logging.getLogger("reknit.serve")

# One header may be long: Codex describes its workspaces in one. aiohttp's default of 8,190 bytes answers it with 400.
_MOST_HEADER_BYTES: Final = 32 * 1024
# Longer than the pools of the SDKs keep a connection.
_KEEPALIVE_SECONDS: Final = 3600.0


class Gateway:
    """Answers requests.

    Args:
        upstreams: the configured upstreams.
        exchanges: relays the requests.
        metrics: counted per request.
        recent: where each exchange is noted.
        key: that clients must send in ``x-reknit-key``; "" for none.
    """

    def __init__(
        self,
        upstreams: Upstreams,
        exchanges: Exchanges,
        metrics: GatewayMetrics,
        recent: RecentExchanges,
        key: str = "",
    ) -> None:
        self._upstreams = upstreams
        self._exchanges = exchanges
        self._metrics = metrics
        self._recent = recent
        self._key = key
        self.is_draining = False

    async def handle(self, request: web.Request) -> web.StreamResponse:
        to: Destination | None = None
        begun = time.perf_counter()
        exchange = self._recent.begin(int(time.time() * 1000))
        self._metrics.in_flight.inc()
        try:
            to = self._destination_of(request)
            exchange.upstream = to.upstream.name
            exchange.target = "" if to.endpoint is None else to.endpoint.target
            return await self._exchanges.relay(request, to, exchange)
        except GatewayError as error:
            exchange.status = error.status
            return _error_response(error, to)
        finally:
            exchange.seconds = time.perf_counter() - begun
            status = f"{exchange.status // 100}xx" if exchange.status else "failed"
            self._metrics.in_flight.dec()
            self._metrics.requests.labels(exchange.upstream, status).inc()

    def _destination_of(self, request: web.Request) -> Destination:
        """Return where a request goes.

        Raises:
            GatewayError: the gateway refuses it.
        """
        path = request.raw_path
        if request.method == hdrs.METH_CONNECT or not path.startswith("/") or path.startswith("//"):
            raise GatewayError(400, "Reknit is no forward proxy: send requests to its own paths")
        if passed_already(request.headers):
            raise GatewayError(508, "the request has passed a Reknit gateway already: an upstream leads back to it")
        if self._key and not has_key(request, self._key):
            raise GatewayError(401, f"the header {KEY} has no valid key")
        if hdrs.UPGRADE in request.headers:
            # Codex falls back to HTTPS at once after 426. After other statuses it tries again for seconds.
            raise GatewayError(426, "this gateway has no WebSocket; use HTTPS")
        if self.is_draining:
            raise GatewayError(503, "the gateway stops; send the request again")
        found = self._upstreams.find(path, is_anthropic="anthropic-version" in request.headers)
        if found is None:
            raise GatewayError(404, "no upstream has this path")
        return found


def _error_response(error: GatewayError, to: Destination | None) -> web.Response:
    body, headers = error_body("" if to is None else form_of_errors(to), error.status, f"Reknit: {error.message}")
    if error.status == web.HTTPServiceUnavailable.status_code:
        headers["retry-after"] = "1"
    elif error.status == web.HTTPUpgradeRequired.status_code:
        headers["connection"] = "close"
    elif error.status < web.HTTPInternalServerError.status_code:
        # The SDKs retry some of these. The result would be the same.
        headers["x-should-retry"] = "false"
    return web.Response(body=body, status=error.status, headers=headers, content_type="application/json")


class Listening(Struct, frozen=True, kw_only=True):
    """The address of a gateway and its conditions.

    Attributes:
        host: the address. Any but a loopback address needs ``key``.
        port: 0 takes a free one.
        key: that clients must send; "" for none.
        tls: for clients that require HTTPS.
        metrics_host: the address of ``/livez``, ``/readyz`` and ``/metrics``.
        metrics_port: its port; None for none.
        drain_seconds: most time for answers in progress at the end.
        silence_seconds: an answer that sends nothing for longer is broken off.
        hold_seconds: a stream without content is held for this time at most.
        state_dir: where facts about conversations are remembered beyond the end of the process; None for nowhere.
        publish: the records for the topics, for upstreams without a setting of their own.
        connect: connects to the brokers; None where nothing is published.
        journal_bytes: most bytes of records that wait for the brokers.
        is_shadow: bodies are forwarded unchanged; the upstreams are those of ``Upstream.as_shadow``.
        shadow_log: a file for the requests of a shadow without brokers.
        prefix: of the topics; metrics have it as the label ``pipeline``.
    """

    host: str = "127.0.0.1"
    port: int = 0
    key: str = ""
    tls: ssl.SSLContext | None = None
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    drain_seconds: float = 120.0
    silence_seconds: float = SILENCE_SECONDS
    hold_seconds: float = HOLD_SECONDS
    state_dir: Path | None = None
    publish: Publish = "off"
    connect: Connect | None = None
    journal_bytes: int = MOST_BYTES
    is_shadow: bool = False
    shadow_log: Path | None = None
    prefix: str = ""


async def serve(
    upstreams: Upstreams,
    listening: Listening,
    on_start: Callable[[str, str], object] = lambda _url, _status_url: None,
    *,
    tracing: Tracing | None = None,
) -> None:
    """Serve until cancelled; then accept nothing more, and let answers in progress end.

    Args:
        upstreams: the configured upstreams.
        listening: the address and its conditions.
        on_start: called with the URLs of the gateway and of its status, or "".
        tracing: gets a call for each request to a model.

    Raises:
        InputError: ``key_missing``: the address is not a loopback address, or an upstream has a key of its own, and
            there is no key for clients. ``state_dir_unusable``.
        OSError: an address cannot be bound.
    """
    _check_key(upstreams, listening)
    metrics = GatewayMetrics(listening.prefix)
    memory = GatewayMemory(listening.state_dir)
    recent, repairs = RecentExchanges(), Repairs(is_shadow=listening.is_shadow)
    inputs, lines = _input_log(upstreams, listening, metrics), _request_lines(listening, metrics, memory)
    exchanges = Exchanges(
        new_client(),
        metrics,
        repairs,
        memory,
        silence_seconds=listening.silence_seconds,
        hold_seconds=listening.hold_seconds,
        tracing=tracing,
        publishing=lines if inputs is None else _publishing(inputs, listening, metrics, memory),
    )
    gateway = Gateway(upstreams, exchanges, metrics, recent, listening.key)
    local = LocalPaths(recent, repairs, key=listening.key, host=listening.host)
    runner = _runner(gateway, local, listening)
    status: web.AppRunner | None = None
    try:
        if inputs is not None:
            inputs.start()
        await runner.setup()
        bound = listen(listening.host, listening.port)
        await web.SockSite(runner, bound, ssl_context=listening.tls).start()
        status_url = ""
        if listening.metrics_port is not None:
            status, status_url = await _serve_status(gateway, metrics, listening.metrics_host, listening.metrics_port)
        scheme = "http" if listening.tls is None else "https"
        on_start(f"{scheme}://{_in_url(listening.host)}:{bound.getsockname()[1]}", status_url)
        await asyncio.Event().wait()
    finally:
        gateway.is_draining = True
        await runner.cleanup()
        if status is not None:
            await status.cleanup()
        await _close(exchanges, inputs, lines)
        repairs.close()
        memory.close()


async def _close(exchanges: Exchanges, inputs: InputLog | None, lines: RequestLines | None) -> None:
    await exchanges.close()
    if inputs is not None:
        await inputs.close()
    if lines is not None:
        await asyncio.to_thread(lines.close)


def _request_lines(listening: Listening, metrics: GatewayMetrics, memory: GatewayMemory) -> RequestLines | None:
    return None if listening.shadow_log is None else RequestLines(listening.shadow_log, metrics, memory.secret)


def _publishing(inputs: InputLog, listening: Listening, metrics: GatewayMetrics, memory: GatewayMemory) -> Publishing:
    return Publishing(inputs, metrics, memory.secret, listening.publish, is_shadow=listening.is_shadow)


def _input_log(upstreams: Upstreams, listening: Listening, metrics: GatewayMetrics) -> InputLog | None:
    """Return the way to the topics, if anything is published.

    Raises:
        InputError: ``state_dir_unusable``.
    """
    if (
        listening.connect is None
        or listening.shadow_log is not None
        or all((each.publish or listening.publish) == "off" for each in upstreams)
    ):
        return None
    if listening.state_dir is None:
        raise InputError("state_dir_unusable", "records for the topics need a directory. Set --state-dir.")
    return InputLog(Journal(listening.state_dir, most_bytes=listening.journal_bytes), listening.connect, metrics)


def _check_key(upstreams: Upstreams, listening: Listening) -> None:
    with_key = [each.name for each in upstreams if each.key_env or each.sign == "any"]
    if not listening.key and (listening.host not in LOOPBACK or with_key):
        exposed = f"{listening.host} is no loopback address"
        reason = f"upstream {with_key[0]} sends the gateway's own key or signature" if with_key else exposed
        raise InputError("key_missing", f"{reason}, so clients need a key: give --key-file")


def _runner(gateway: Gateway, local: LocalPaths, listening: Listening) -> web.AppRunner:
    app = web.Application(client_max_size=MOST_BODY_BYTES)
    local.add_to(app)
    app.router.add_route("*", "/{path:.*}", gateway.handle)
    return runner_of(
        app,
        stop_seconds=listening.drain_seconds,
        can_cancel=True,
        keepalive_timeout=_KEEPALIVE_SECONDS,
        # Bodies are forwarded as they were received.
        auto_decompress=False,
        max_field_size=_MOST_HEADER_BYTES,
        max_line_size=_MOST_HEADER_BYTES,
    )


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


async def _serve_status(gateway: Gateway, metrics: GatewayMetrics, host: str, port: int) -> tuple[web.AppRunner, str]:
    """Serve the status on a port of its own, so that no path of a provider is hidden."""
    app = status_app(lambda: None, lambda: "draining" if gateway.is_draining else None, metrics.registry)
    runner = runner_of(app, stop_seconds=1.0)
    await runner.setup()
    listening = listen(host, port)
    await web.SockSite(runner, listening).start()
    return runner, f"http://{_in_url(host)}:{listening.getsockname()[1]}"


def tls_of(certificate: Path | None, private_key: Path | None) -> ssl.SSLContext | None:
    """Return the TLS settings for clients; HTTP/1.1 only.

    Raises:
        InputError: ``tls_unusable``.
    """
    if certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, private_key)
    except (ssl.SSLError, OSError) as error:
        raise InputError("tls_unusable", f"{certificate} and its key cannot be used: {type(error).__name__}") from error
    return context

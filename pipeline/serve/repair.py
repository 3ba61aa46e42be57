"""Repair of one request's body. The body has its whole history; of its conversation only ``answered`` is needed.

A body that needs no repair is forwarded byte for byte. If repair fails or takes too long, the client's bytes are
forwarded as well: the gateway never makes a request fail that would have reached the provider.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, Literal, TypeVar

import cramjam
import msgspec
from msgspec import Raw, Struct, structs

from reknit.pipeline.errors import ReknitError, error_name
from reknit.pipeline.helper_process import HelperProcess
from reknit.pipeline.policy import Policy
from reknit.pipeline.scaling import scale_again
from reknit.pipeline.serve.answered import NOTHING_ANSWERED
from reknit.pipeline.serve.endpoints import Endpoint
from reknit.pipeline.serve.known import KnownConversations
from reknit.pipeline.serve.upstreams import Upstream
from reknit.pipeline.session import Normalized, normalize_answered
from reknit.pipeline.session.bindings import End
from reknit.pipeline.stages.defaults import chains_in

# A body above this size is repaired in another process: it would delay all other streams of this one.
LARGE_BYTES: Final = 512 * 1024
# Most time for the repair of a large body, and the addition for each MiB.
BUDGET_SECONDS: Final = 0.25
_SECONDS_PER_MIB: Final = 0.5
# Most bytes of a request's body after decompression. Providers refuse at 20 to 32 MB.
MOST_BYTES: Final = 64 * 1024 * 1024

# JSON compresses by less than this.
_MOST_RATIO: Final = 200
# Errors of the helper process that mean that a body was not repaired in its time.
_LATE: Final = frozenset({"too_long", "busy"})

Result = TypeVar("Result")
Outcome = Literal["unchanged", "repaired", "rejected", "skipped", "failed", "late"]
_body_members = msgspec.json.Decoder(dict[str, Raw]).decode


class Repaired(Struct, frozen=True):
    """The result for one body.

    Attributes:
        outcome: ``unchanged``: it needs no repair; ``repaired``; ``rejected``: no repair makes it valid; ``skipped``:
            only the provider knows its history, or the gateway is a shadow; ``failed``: Reknit could not read or
            repair it; ``late``: repair took too long.
        body: the bytes to send; None if they are the client's.
        fixes: the number of fixes by code.
        reason: the broken rule or the error, without content.
        params: the names of parameters that the configuration added.
        end: whether a later turn may change the end of the body.
        written: the body that a worker writes for the same history, also where the client's bytes are sent; None
            without one.
    """

    outcome: Outcome
    body: bytes | None = None
    fixes: Mapping[str, int] = {}
    reason: str = ""
    params: tuple[str, ...] = ()
    end: End = ""
    written: bytes | None = None


class RequestBody:
    """A body without its content encoding. Its members are decoded once, for everything that the gateway reads.

    Args:
        data: JSON; other bytes have no members.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.error = ""
        try:
            self.members = _body_members(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self.members, self.error = {}, error_name(error)

    @property
    def asks_for_stream(self) -> bool:
        return self.members.get("stream") == Raw(b"true")

    @property
    def model(self) -> str:
        """The model that the body names, or ""."""
        value = self.members.get("model")
        try:
            return "" if value is None else msgspec.json.decode(value, type=str)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return ""

    def with_params(self, params: dict[str, Raw]) -> bytes:
        """Return the bytes with members that the body does not have; the same bytes where none is added."""
        return msgspec.json.encode(self.members | params) if params else self.data


def repaired(data: bytes, endpoint: Endpoint, policy: Policy, answered: Mapping[int, bool]) -> Repaired:
    """Repair a body for its target; never raises an error of the input.

    Args:
        data: the body.
        endpoint: its target.
        policy: of the repair.
        answered: as of ``normalize_answered``.
    """
    scale = scale_again if policy.media == "shrink" else None
    model = endpoint.model or None
    return _result(lambda: normalize_answered(data, endpoint.target, answered, policy, model=model, scale=scale))


def _result(work: Callable[[], tuple[Normalized, End]]) -> Repaired:
    """Return the result of repair; never raises an error of the input."""
    try:
        done, end = work()
    except (ReknitError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Repaired("failed", reason=error.code if isinstance(error, ReknitError) else error_name(error))
    made = [fix for fix in done.fixes if not fix.observed]
    if done.body is None:
        hard = next(violation for violation in done.violations if violation.severity == "hard")
        return Repaired("rejected", reason=f"{hard.rule}: {hard.message}")
    if not made:
        return Repaired("unchanged", end=end, written=done.body)
    return Repaired("repaired", done.body, Counter(fix.code for fix in made), end=end, written=done.body)


def decoded(body: bytes, encoding: str) -> bytes | None:
    """Return a body without its content encoding; None if that is unknown, broken, or beyond ``MOST_BYTES``."""
    try:
        match encoding.strip().lower():
            case "" | "identity":
                return body
            case "gzip" | "x-gzip":
                reader = zlib.decompressobj(16 + zlib.MAX_WBITS)
                whole = reader.decompress(body, MOST_BYTES)
                return whole if reader.eof and not reader.unconsumed_tail else None
            case "zstd":
                # The size in a frame's header is the sender's claim, so the output has a fixed bound.
                room = bytearray(min(MOST_BYTES, _MOST_RATIO * len(body)))
                return bytes(room[: cramjam.zstd.decompress_into(body, room)])
            case _:
                return None
    except (zlib.error, cramjam.DecompressionError, OSError):
        return None


class Repairs:
    """Repairs bodies within their time: small ones here, large ones in another process.

    Args:
        is_shadow: repair nothing.
    """

    def __init__(self, *, is_shadow: bool = False) -> None:
        self._is_shadow = is_shadow
        self._helper = HelperProcess(repaired)
        self._known = KnownConversations()

    async def repair(
        self,
        body: RequestBody,
        endpoint: Endpoint,
        upstream: Upstream,
        answered: Mapping[int, bool] = NOTHING_ANSWERED,
        *,
        tenant: bytes,
    ) -> Repaired:
        """Return the result for a body. A large body that takes too long is ``late``.

        Args:
            body: of the client.
            endpoint: its target.
            upstream: it has the policy.
            answered: as of ``normalize_answered``.
            tenant: of the client; it shares no known conversation with others.
        """
        try:
            return await self._with_settings(body, endpoint, upstream, answered, tenant=tenant)
        except TimeoutError:
            return Repaired("late")
        except ReknitError as error:  # of the process: every error of the work is in its result
            return Repaired("late" if error.code in _LATE else "failed", reason=error.code)
        except Exception as error:  # noqa: BLE001  a fault of Reknit must not stop the request
            return Repaired("failed", reason=error_name(error))

    async def _with_settings(
        self,
        body: RequestBody,
        endpoint: Endpoint,
        upstream: Upstream,
        answered: Mapping[int, bool],
        *,
        tenant: bytes,
    ) -> Repaired:
        if self._is_shadow:
            return Repaired("skipped", reason="shadow")
        if body.error:
            return Repaired("failed", reason=body.error)
        if chains_in(body.members):
            return Repaired("skipped", reason="chained")
        settings = upstream.settings_of(endpoint.model or body.model)
        added = {name: value for name, value in settings.params.items() if name not in body.members}
        whole = body.with_params(added)
        members = body.members | added
        done = await self._within_time(whole, members, endpoint, settings.policy, answered, tenant=tenant)
        if done.outcome not in {"unchanged", "repaired"}:
            return done
        return structs.replace(done, body=done.body or (whole if added else None), params=tuple(added))

    async def _within_time(
        self,
        data: bytes,
        members: Mapping[str, Raw],
        endpoint: Endpoint,
        policy: Policy,
        answered: Mapping[int, bool],
        *,
        tenant: bytes,
    ) -> Repaired:
        # Decoding an image may take a second, however few bytes it has.
        if len(data) <= LARGE_BYTES and policy.media != "shrink":
            return _result(lambda: self._known.normalized(data, members, endpoint, policy, answered, tenant=tenant))
        seconds = BUDGET_SECONDS + _SECONDS_PER_MIB * len(data) / 2**20
        # The time in which it waits for the process and for other bodies counts too.
        return await asyncio.wait_for(
            self._helper.run(seconds, repaired, data, endpoint, policy, dict(answered)), seconds
        )

    async def run(self, function: Callable[[bytes], Result], body: bytes) -> Result:
        """Return a function's result for a body; a large body is processed in another process.

        Raises:
            ReknitError: as ``HelperProcess.run``.
        """
        return function(body) if len(body) <= LARGE_BYTES else await self._helper.run(None, function, body)

    def close(self) -> None:
        self._helper.stop()

"""Repair of one request's body. It needs no conversation: the body has its whole history.

A body that needs no repair is forwarded byte for byte. If repair fails or takes too long, the client's bytes are
forwarded as well: the gateway never makes a request fail that would have reached the provider.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import zlib
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Final, Literal

import cramjam
import msgspec
from msgspec import Raw, Struct

from reknit.pipeline.errors import ReknitError, error_name
from reknit.pipeline.model import Policy
from reknit.pipeline.scaling import scale_again
from reknit.pipeline.serve.endpoints import Endpoint
from reknit.pipeline.session import normalize
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

Outcome = Literal["unchanged", "repaired", "rejected", "skipped", "failed", "late"]
_body_members = msgspec.json.Decoder(dict[str, Raw]).decode


class Repaired(Struct, frozen=True):
    """The result for one body.

    Attributes:
        outcome: ``unchanged``: it needs no repair; ``repaired``; ``rejected``: no repair makes it valid; ``skipped``:
            only the provider knows its history; ``failed``: Reknit could not read or repair it; ``late``: repair took
            too long.
        body: the repaired bytes; None in every other case.
        fixes: the number of fixes by code.
        reason: the broken rule or the error, without content.
    """

    outcome: Outcome
    body: bytes | None = None
    fixes: Mapping[str, int] = {}
    reason: str = ""


def repaired(body: bytes, endpoint: Endpoint, policy: Policy) -> Repaired:
    """Repair a body for its target; never raises an error of the input."""
    try:
        members = _body_members(body)
        if chains_in(members):
            return Repaired("skipped", reason="chained")
        scale = scale_again if policy.media == "shrink" else None
        done = normalize(body, endpoint.target, policy=policy, model=endpoint.model or None, scale=scale)
    except (ReknitError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Repaired("failed", reason=error.code if isinstance(error, ReknitError) else error_name(error))
    made = [fix for fix in done.fixes if not fix.observed]
    if done.body is None:
        hard = next(violation for violation in done.violations if violation.severity == "hard")
        return Repaired("rejected", reason=f"{hard.rule}: {hard.message}")
    if not made:
        return Repaired("unchanged")
    return Repaired("repaired", done.body, Counter(fix.code for fix in made))


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
    """Repairs bodies within their time: small ones here, large ones in another process."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    async def repair(self, body: bytes, endpoint: Endpoint, policy: Policy) -> Repaired:
        """Return the result for a body. A large body that takes too long is ``late``."""
        # Decoding an image may take a second, however few bytes it has.
        if len(body) <= LARGE_BYTES and policy.media != "shrink":
            return self._here(body, endpoint, policy)
        seconds = BUDGET_SECONDS + _SECONDS_PER_MIB * len(body) / 2**20
        try:
            if self._pool is None:
                # Not forked: the event loop and its threads must not be copied.
                self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
            work = asyncio.get_running_loop().run_in_executor(self._pool, repaired, body, endpoint, policy)
            return await asyncio.wait_for(work, seconds)
        except TimeoutError:
            return Repaired("late")
        except BrokenProcessPool:
            self._pool = None
            return Repaired("failed", reason="process_ended")
        except Exception as error:  # noqa: BLE001  as in ``_here``
            return Repaired("failed", reason=error_name(error))

    @staticmethod
    def _here(body: bytes, endpoint: Endpoint, policy: Policy) -> Repaired:
        try:
            return repaired(body, endpoint, policy)
        except Exception as error:  # noqa: BLE001  a fault of Reknit must not stop the request
            return Repaired("failed", reason=error_name(error))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

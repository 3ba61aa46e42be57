"""The replaced parts of aiokafka: connections, the join of a group, and the pause between transactions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

from aiokafka import conn
from aiokafka.consumer import consumer, group_coordinator
from aiokafka.errors import KafkaConnectionError
from aiokafka.producer import sender
from aiokafka.protocol.group import JoinGroupRequest

# If a transaction follows another closely, its first request gets CONCURRENT_TRANSACTIONS: the broker is still writing
# markers. aiokafka then sleeps 20 ms; a broker in the same network needs a tenth of that. Transactions that follow each
# other at once were measured to take 3 ms less in the median, and 10 ms less in one of ten. The general
# retry_backoff_ms keeps its default: a lower one was measured to double the number of requests.
_NEXT_TRANSACTION_SECONDS = 0.002


class Connection(conn.AIOKafkaConnection):  # type: ignore[misc] # aiokafka has no types
    """A connection that reports a closed transport as the client's own error.

    If a transport fails, the client learns of it in a later iteration of the loop. A request that is sent before that
    raises RuntimeError in uvloop. The client expects OSError, so the task that sent the request died, and with it the
    worker.
    """

    def send(self, request: Any, expect_response: bool = True) -> Any:  # noqa: ANN401, FBT001, FBT002  as the client's
        self._check_transport()
        return super().send(request, expect_response)

    def _send_sasl_token(self, payload: bytes, expect_response: bool = True) -> Any:  # noqa: ANN401, FBT001, FBT002  as above
        self._check_transport()
        return super()._send_sasl_token(payload, expect_response)

    def _check_transport(self) -> None:
        if self._writer is not None and self._writer.transport.is_closing():
            self.close(reason=conn.CloseReason.CONNECTION_BROKEN)
            raise KafkaConnectionError(f"Connection at {self.host}:{self.port} broken: its transport is closed")


class Coordinator(group_coordinator.GroupCoordinator):  # type: ignore[misc] # as above
    """A member of a group that sends one request to join, with all strategies of assignment that it offers.

    The client sends a request for each strategy, with the strategies up to that one, and only then takes part in the
    assignment (aio-libs/aiokafka#1168). Each request changes the member's strategies, so it begins a generation. Two
    members can get out of step: the group answers the last request of one member together with the first request of
    the other. The next request of the other member then ends the generation, the first member joins again, and so on.
    Two clients that joined within 2 ms of each other began nine generations a second, and had no assignment after 25 s.
    """

    async def _send_req(self, request: Any) -> Any:  # noqa: ANN401  as the client's
        if isinstance(request, JoinGroupRequest) and len(request._group_protocols) < len(self._assignors):  # noqa: SLF001  no public call has it
            return _NOT_SENT
        return await super()._send_req(request)


# The client ignores the content of each answer but the last one, unless it is an error.
_NOT_SENT: Final = SimpleNamespace(error_code=0)


def patch_aiokafka() -> None:
    """Replace these parts of the client for all clients of this process."""
    conn.AIOKafkaConnection = Connection
    consumer.GroupCoordinator = Coordinator
    sender.BACKOFF_OVERRIDE = _NEXT_TRANSACTION_SECONDS

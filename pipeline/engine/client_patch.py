"""The replaced parts of aiokafka: a connection whose transport was closed, and a pause between transactions."""

from __future__ import annotations

from typing import Any

from aiokafka import conn
from aiokafka.errors import KafkaConnectionError
from aiokafka.producer import sender

# If a transaction follows another closely, its first request gets CONCURRENT_TRANSACTIONS: the broker is still writing
# markers. aiokafka then sleeps 20 ms; a broker in the same network needs a tenth of that. Transactions that follow each
# other at once were measured to take 3 ms less in the median, and 10 ms less in one of ten. The general
# retry_backoff_ms keeps its default: a lower one was measured to double the number of requests.
_NEXT_TRANSACTION_SECONDS = 0.002


class Connection(conn.AIOKafkaConnection):  # type: ignore[misc] # as above
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


def patch_aiokafka() -> None:
    """Make every client of this process create ``Connection`` objects, and every producer pause for a shorter time."""
    conn.AIOKafkaConnection = Connection
    sender.BACKOFF_OVERRIDE = _NEXT_TRANSACTION_SECONDS

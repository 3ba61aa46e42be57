"""A gateway without its connections: it repairs bodies, remembers which were answered, and writes their records."""

import asyncio
import json

from multidict import CIMultiDict

from reknit.pipeline.policy import Policy
from reknit.pipeline.serve.answered import AnsweredHistory
from reknit.pipeline.serve.conversations import Conversation
from reknit.pipeline.serve.endpoints import Endpoint
from reknit.pipeline.serve.memory import GatewayMemory
from reknit.pipeline.serve.metrics import GatewayMetrics
from reknit.pipeline.serve.repair import Repairs, RequestBody
from reknit.pipeline.serve.sent_requests import SentRequest, SessionLogs
from reknit.pipeline.serve.upstreams import Upstream


class GatewayLog:
    """A gateway and the log that it writes.

    ``bodies`` are those that the provider received, and ``records`` the records of each request.
    """

    def __init__(self, target, policy=None, memory=None):
        self._target = target
        self._upstream = Upstream(name="provider", to="http://127.0.0.1:9", policy=policy or Policy())
        self.memory = memory or GatewayMemory(None)
        self.bodies, self.records = [], []
        self.begin_again()

    def begin_again(self):
        """Start another process on the same memory."""
        self._repairs, self._sessions = Repairs(), SessionLogs(GatewayMetrics(), bytes([len(self.bodies) % 256]))

    def send(self, body, *, model="", is_accepted=True):
        """Send a client's body; return the result of its repair. ``model`` is that of the path."""
        given, endpoint = RequestBody(json.dumps(body).encode()), Endpoint(self._target, model)
        conversation = Conversation(b"", CIMultiDict(), given.members, upstream="", target=self._target)
        history = AnsweredHistory(self.memory.answered, conversation.key, given.members)
        tenant = conversation.tenant()
        done = asyncio.run(self._repairs.repair(given, endpoint, self._upstream, history.known(), tenant=tenant))
        end = done.end if is_accepted else ""
        history.note(end)
        sent = SentRequest(
            session=conversation.key().hex(),
            endpoint=endpoint,
            request_id=f"q{len(self.bodies)}",
            members=given.members,
            sent=done.body or given.data,
            written=done.written,
            policy=self._upstream.settings_of(model or given.model).policy,
            answered=history.known(),
            end=end,
        )
        self.bodies.append(sent.sent)
        self.records.append(self._sessions.records(sent))
        return done

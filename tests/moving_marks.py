"""Conversations whose cache breakpoints move from request to request, as a client that marks its last messages does."""

import json

from hypothesis import strategies as st

from reknit.pipeline.errors import InputError
from reknit.pipeline.serve.known import KnownConversations
from reknit.pipeline.serve.repair import RequestBody
from reknit.pipeline.session import normalize_answered

MARKS = [{"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}, {"type": "ephemeral", "ttl": "5m"}, None]
# Messages at the end that a client marks, and one beyond the gateway's limit.
LAST = 10
drawn_marks = st.dictionaries(st.integers(1, LAST), st.sampled_from(MARKS), max_size=5)


def with_marks(messages, marks):
    """Return messages with breakpoints, by the distance from the end; a text that gets one becomes a block."""
    count = len(messages)
    return [
        marked(message, marks[count - at]) if count - at in marks else message for at, message in enumerate(messages)
    ]


def marked(message, mark):
    """Return a message with a breakpoint in its last block, or after it in Converse's shape."""
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list) or not content or not isinstance(content[-1], dict):
        return message
    *before, last = content
    if "type" in last:
        return {**message, "content": [*before, {**last, "cache_control": mark}]}
    return {**message, "content": [*content, {"cachePoint": {"type": "default"}}]}


def result_of(make):
    try:
        done, end = make()
    except InputError as error:
        return error.code
    return end, done.body, done.sha256, done.violations, sorted(done.fixes, key=repr)


class Moving:
    """A gateway's memory of one conversation.

    Args:
        endpoint: of the requests.
        policy: of the repair.
        root: the member with the messages.
        answered: as of ``normalize_answered``.
    """

    def __init__(self, endpoint, policy, root="messages", answered=None):
        self.endpoint, self.policy, self.root, self.answered = endpoint, policy, root, answered or {}
        self.known = KnownConversations()

    def results(self, messages, **head):
        """Send a request; return its result, and that of a gateway which knows nothing."""
        given = {"tools": [], "max_tokens": 64} if self.root == "messages" and not head else head
        data = json.dumps({**given, self.root: messages}).encode()
        members, target, model = RequestBody(data).members, self.endpoint.target, self.endpoint.model or None
        normalized, answered = self.known.normalized, self.answered
        found = result_of(lambda: normalized(data, members, self.endpoint, self.policy, answered, tenant=b""))
        whole = result_of(lambda: normalize_answered(data, target, answered, self.policy, model=model))
        return found, whole

"""A provider with state: it signs and encrypts its own output, and accepts only its own values.

The provider is a pure function of its seed and of the requests of a session: no clock, no other randomness. Reports say
which sentences a provider writes and when (the reference on refusals); the mock enforces no more than those.
Not modelled: prices, counts of tokens, streamed answers, and beta headers other than that of ``block_binding``.
"""

from __future__ import annotations

import json
from typing import Any

from mock_provider.answers import ANSWERS, Making, wants_call
from mock_provider.chaining import check_chain, check_outputs
from mock_provider.claude_messages import messages_of
from mock_provider.echo import check_echo
from mock_provider.envelopes import WRAPPERS, enveloped
from mock_provider.facts import Facts, facts_of
from mock_provider.gemini import check_signatures
from mock_provider.items import check_items
from mock_provider.media import check_media, check_strings
from mock_provider.parameters import check_parameters
from mock_provider.parties import PARTIES, Party
from mock_provider.prefix import check_prefix
from mock_provider.received import Received
from mock_provider.searches import check_references, check_searches
from mock_provider.sentences import RefusedError, Sentence
from mock_provider.state import State
from mock_provider.thinking import check_thinking
from mock_provider.uploads import check_uploads
from mock_provider.values import Mint, digest_of
from msgspec import Struct, structs

from reknit.pipeline.validation import validate


class Answered(Struct, frozen=True):
    """An answer, with the facts that only the provider knows.

    Attributes:
        status: of the answer.
        body: an accepted answer, or the refusal.
        party: that answered.
        name: of the sentence; "" if the request was accepted.
        value: that was refused, or "".
        digest: of the request.
        same_as: the number of an earlier refused request with the same body, or -1.
    """

    status: int
    body: dict[str, Any]
    party: str
    name: str
    value: str
    digest: str
    same_as: int


class Provider:
    """All parties, with one state. Scripts change its public attributes while a session runs.

    Attributes:
        state: the values that it issued and stored.
        ledger: every answer.
        organisation: that the credential selects; "" is an unknown key.
        connection: that requests come over.
        wording: of sentences that have several.
        wrapper: the envelope around the party's own.
        status: of refusals, where a gateway changes it; 0 leaves it.
        busy: how many requests are answered before any check.
        refuses_all: the sentence of a refusal that no request avoids, or "".
        misplaced: the path in sentences, where a client and the provider count differently, or "".
    """

    def __init__(self, seed: str) -> None:
        self._mint = Mint(seed)
        self._facts: dict[str, Facts] = {}
        self._accepted = 0
        self.state = State()
        self.ledger: list[Answered] = []
        self.organisation = "o1"
        self.connection = "c1"
        self.wording = ""
        self.wrapper = ""
        self.status = 0
        self.busy = 0
        self.refuses_all = ""
        self.misplaced = ""

    def facts(self, party: Party) -> Facts:
        return self._facts.get(party.model) or facts_of(party)

    def tighten(self, party: Party, **changes: Any) -> None:
        """Change facts of a model."""
        self._facts[party.model] = structs.replace(self.facts(party), **changes)

    def receive(self, party_name: str, body: bytes) -> Answered:
        """Answer a request."""
        party = PARTIES[party_name]
        try:
            status, answer, name, value = 200, self._accept(party, body), "", ""
        except RefusedError as error:
            status, answer = self._refusal(party, error.sentence)
            name, value = error.name, error.value
        digest = digest_of(json.loads(body))
        refused = [at for at, each in enumerate(self.ledger) if each.name and each.party == party_name]
        earlier = [at for at in refused if self.ledger[at].digest == digest]
        done = Answered(status, answer, party_name, name, value, digest, earlier[-1] if earlier else -1)
        self.ledger.append(done)
        return done

    def _refusal(self, party: Party, sentence: Sentence) -> tuple[int, dict[str, Any]]:
        error = enveloped(party, sentence, f"{len(self.ledger):06d}")
        if self.wrapper:
            error = WRAPPERS[self.wrapper](error, sentence)
        return (200 if self.wrapper == "stream" else self.status or sentence.status), error

    def _accept(self, party: Party, body: bytes) -> dict[str, Any]:
        """Return an answer, or raise the refusal of the first check that fails."""
        self._check_script()
        request = Received(
            party=party,
            state=self.state,
            facts=self.facts(party),
            organisation=self.organisation,
            connection=self.connection,
            body=json.loads(body),
            dropped={},
            wording=self.wording,
        )
        if not self.organisation:
            raise RefusedError("key")
        if len(body) > request.facts.body_bytes:
            raise RefusedError("too_large")
        check_parameters(request)
        check_uploads(request)
        chained = _check_content(request, self.misplaced)
        _check_shape(request, body)
        self._accepted += 1
        making = Making(request, self._mint, self._accepted, wants_call(request), chained)
        return ANSWERS[party.shape](making)

    def _check_script(self) -> None:
        if self.busy:
            self.busy -= 1
            raise RefusedError("busy")
        if self.refuses_all:
            raise RefusedError(self.refuses_all)


def _check_shape(request: Received, body: bytes) -> None:
    """Refuse a breach of a hard rule. A chained request is not judged: its calls are in what it is chained to.

    This check is the last: where the provider's state and a rule both refuse, the sentence is that of the state.
    """
    if "previous_response_id" in request.body:
        return
    broken = [each for each in validate(body, request.party.target, request.party.model) if each.severity == "hard"]
    if broken:
        raise RefusedError("shape", words=broken[0].message)


def _check_content(request: Received, misplaced: str) -> list[dict[str, Any]]:
    """Check what the request holds, in the provider's order; return the items of what it is chained to."""
    shape = request.party.shape
    chained: list[dict[str, Any]] = []
    if shape == "responses":
        chained = check_chain(request)
        check_items(request)
        check_outputs(request, chained)
    elif shape == "gemini":
        check_signatures(request)
    elif shape == "chat":
        check_strings(request)
        check_echo(request)
    else:
        _check_claude(request, misplaced)
    check_media(request)
    return chained


def _check_claude(request: Received, misplaced: str) -> None:
    messages = messages_of(request)
    try:
        check_references(request, messages)
        check_thinking(request, messages)
        check_prefix(request, messages)
        check_searches(request, messages)
    except RefusedError as refused:
        if misplaced and refused.value:
            raise RefusedError(refused.name, refused.value, at=misplaced) from refused
        raise

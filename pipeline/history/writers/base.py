"""The description of a shape that is written: the content that it has a place for, and the function that writes it.

A reader makes canonical turns of a shape, and a writer makes its messages of canonical turns. What the shape has no
place for is left out before the writer is called (`reknit.pipeline.history.writers.kept`), so a writer decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from reknit.pipeline.history.pieces import ANTHROPIC, CONVERSE, GEMINI, RESPONSES
from reknit.pipeline.model import Turn

Members: TypeAlias = dict[str, Any]
"""The members of a written object: values that msgspec encodes."""

Place: TypeAlias = Literal["system", "user", "assistant", "result"]
"""The kind of a message: a user's turn of results only is a message of results in most shapes."""

Source: TypeAlias = Literal["base64", "url", "file"]

EVERY: Final[frozenset[str]] = frozenset({"*"})
"""All providers."""


class Holds(Struct, frozen=True, kw_only=True):
    """The content that a shape has a place for.

    Attributes:
        items: neighbouring messages of one role stay apart: reasoning and calls are messages of their own.
        ids: the messages that can have an id.
        uuids: such an id must be a UUID, but for that of an assistant's message.
        system: messages of the role system.
        maker: the provider whose content the messages have; its own blocks, members and reasoning need no mark of it.
        thinkers: the providers whose reasoning it holds.
        thoughts: the reasoning that it holds: all, with a signature, or as items of Responses.
        signers: the providers whose signatures and redacted reasoning it holds.
        issuers: the reasoning's provider; ``signed`` if only next to a signature.
        one_issuer: a message names the issuer of its reasoning, so reasoning without one gets that of its message.
        models: the model that wrote the reasoning; ``plain`` if not that of an item, and without a slash in its name.
        seals: Gemini's signatures of texts and calls, or of calls only.
        reasoning_items: reasoning items of Responses; ``one`` if only with one summary, ``named`` if only with an id.
        native: the providers whose own blocks it holds unchanged.
        own_types: the types of items that it knows, where these are not all of their provider's.
        native_forms: the sets of members that such a block can have; none is named where it can have any.
        own: the providers whose own members of calls, results and messages it holds.
        refusals: the model's refusal as a part of its own.
        errors: the error flag of a result; ``text`` if only of a result without media.
        cut_calls: calls whose arguments never finished, by a mark, or by a text that is no JSON.
        cut_texts: the mark of a text that a stream never finished.
        objects: a call's input must be an object.
        media: the messages that can have images and documents.
        documents: documents, where images are.
        sources: the forms of their sources.
        result_sources: the same in results.
        typed: a medium's type says whether it is a document, so one of audio or video is none.
        titles: the titles of documents; ``all`` if each document of bytes must have one, and no other has.
        result_titles: the same in results.
        cache: breakpoints of the prompt cache, in messages of the user; ``text`` if only on texts.
        texts: a result can have several texts.
        results_at_calls: a result is a part of its call.
    """

    items: bool = False
    ids: frozenset[Place] = frozenset()
    uuids: bool = False
    system: bool = True
    maker: str = ""
    thinkers: frozenset[str] = EVERY
    thoughts: Literal["all", "signed", "items"] = "all"
    signers: frozenset[str] = frozenset()
    issuers: Literal["", "signed", "all"] = ""
    one_issuer: bool = False
    models: Literal["", "plain", "all"] = ""
    seals: Literal["", "calls", "all"] = ""
    reasoning_items: Literal["", "one", "named", "all"] = ""
    native: frozenset[str] = frozenset()
    native_forms: tuple[frozenset[str], ...] = ()
    own_types: frozenset[str] = frozenset()
    own: frozenset[str] = frozenset()
    refusals: bool = False
    errors: Literal["", "text", "all"] = "all"
    cut_calls: Literal["", "text", "marked"] = "text"
    cut_texts: bool = False
    objects: bool = False
    media: frozenset[Place] = frozenset({"user", "assistant", "result"})
    documents: bool = True
    sources: frozenset[Source] = frozenset({"base64", "url", "file"})
    result_sources: frozenset[Source] = frozenset({"base64", "url", "file"})
    typed: bool = True
    titles: Literal["", "some", "all"] = ""
    result_titles: bool = False
    cache: Literal["", "text", "all"] = ""
    texts: bool = True
    results_at_calls: bool = False


class Known(Struct, frozen=True):
    """The facts of a history that are not in its messages.

    Attributes:
        names: the names of the called tools by the ids of their calls.
        model: the model that the document names.
    """

    names: Mapping[str, str]
    model: str | None = None


class Writer(Struct, frozen=True, kw_only=True):
    """A shape that is written.

    Attributes:
        name: its name for ``to``.
        alias: another name for ``to``.
        source: the name of the shape as which it is read again.
        forms: the form that is written, for people.
        loads: the function of the framework that loads it, for people.
        holds: the content that it has a place for.
        write: writes turns that have nothing else.
        lines: the messages are the lines of a file.
        tried: the versions of the program that have loaded such a file.
    """

    name: str
    alias: str = ""
    source: str
    forms: str
    loads: str
    holds: Holds
    write: Callable[[Sequence[Turn], Known], list[Members]]
    lines: bool = False
    tried: str = ""


# The providers' names in the frameworks; a provider that is not listed has the same name there.
LANGCHAIN_NAMES: Final[Mapping[str, str]] = {RESPONSES: "openai", GEMINI: "google_genai", CONVERSE: "bedrock_converse"}
PYDANTIC_AI_NAMES: Final[Mapping[str, str]] = {RESPONSES: "openai", GEMINI: "google-gla", CONVERSE: "bedrock"}
AI_SDK_NAMES: Final[Mapping[str, str]] = {RESPONSES: "openai", GEMINI: "google", CONVERSE: "bedrock"}
LITELLM_NAMES: Final[Mapping[str, str]] = {RESPONSES: "openai", GEMINI: "gemini", CONVERSE: "bedrock"}
MAKER: Final = ANTHROPIC
"""The provider of a signature without an issuer: the canonical form is Anthropic's."""


def has(providers: frozenset[str], provider: str) -> bool:
    """Return True if a provider is one of those that a table names."""
    return providers is EVERY or provider in providers

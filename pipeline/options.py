"""The options that describe what a target takes: one vocabulary for the writers of all providers.

``Structure`` has the order of messages and the pairing of calls, ``HeadOptions`` the request without its messages,
``MessageOptions`` the blocks of a message, ``ModelOptions`` the differences between models of one provider, and
``Parts`` the form of a block. The rules that judge a request never read these: each side checks the other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal, TypeAlias

from msgspec import Raw, Struct

from reknit.pipeline.model import Image, Role, Text, Tool

Choice: TypeAlias = Literal["auto", "any", "tool", "none"]


class Structure(Struct, frozen=True, kw_only=True):
    """The histories that a model family of a target takes; anything else is repaired.

    Attributes:
        assistant_first: it may begin with the assistant.
        leads: if the assistant must not be first and is, a user turn is inserted before it.
        assistant_last: it may end with the assistant: with any content, or with text only.
        paused_by: types of blocks after which any model continues its own turn.
        neighbours: the roles that may have two messages in a row.
        calls_apart: an assistant message with calls and one without text may follow each other, before the results.
        assistant_media: an assistant message may hold images and documents.
        flat: the assistant's blocks are items of a flat list: text may follow a call, and blank text may be next to it.
        unanswered: a turn's calls may have no result.
        blank: the roles whose messages may consist of blank texts.
        blank_results: a result may hold blank texts.
        ids_again: a call may have the id of one in an earlier turn.
        marked_ids: ids of calls may have dots and colons.
        system_inside: system messages of text may follow other messages.
        system_first: such a message may also be the first one.
        system_blocks: the types of blocks that such a message may hold; one that holds any of them may always stay.
        system_media: such messages, and those at the beginning, may hold images and documents.
        reasoning_alone: an assistant message may consist of reasoning.
        calls_elsewhere: a result may answer a call that the provider stores: any result, or one after a reference to an
            item.
        own: the provider whose own items and parts it may hold; a message with only those of others is left out.
        cut_text: the treatment of a text that was cut off, where the policy leaves that to the target.
        prefix_bound: the model's reasoning is bound to all that was sent before it: what an assistant turn has answered
            never changes.
        observed: the codes of the repairs that are not made, because a policy only observes them.
    """

    assistant_first: bool = False
    leads: bool = False
    assistant_last: Literal["never", "text", "always"] = "never"
    paused_by: frozenset[str] = frozenset()
    neighbours: frozenset[Role] = frozenset()
    calls_apart: bool = False
    assistant_media: bool = False
    flat: bool = False
    unanswered: bool = False
    blank: frozenset[Role] = frozenset()
    blank_results: bool = False
    ids_again: bool = False
    marked_ids: bool = False
    system_inside: bool = False
    system_first: bool = False
    system_blocks: frozenset[str] = frozenset()
    system_media: bool = False
    reasoning_alone: bool = False
    calls_elsewhere: Literal["never", "referred", "always"] = "never"
    own: str = ""
    cut_text: Literal["keep", "mark", "drop"] = "keep"
    prefix_bound: bool = False
    observed: frozenset[str] = frozenset()


STRICT = Structure()


class HeadOptions(Struct, frozen=True, kw_only=True):
    """The system prompt, the tools and the parameters that a target takes.

    Attributes:
        target: its name.
        places: the place of each parameter (``inferenceConfig.topP``), by its common name.
        elsewhere: the parameters of a setting that are written by other means, or have no meaning here.
        bounds: the minimum and the maximum of numbers, in the unit of the parameter.
        tool_name: converts a tool's name.
        is_own: whether a tool in its input form is the target's own, to be written unchanged.
        choices: the tool choices that it has.
        schema_members: the members that it refuses at the top level of a tool's schema, which has to be of type object.
            None if it takes any schema.
        keeps_schema: whether a tool in its input form is the target's own, with a schema that no refusal is known of.
    """

    target: str
    places: Mapping[str, str] = {}
    elsewhere: Collection[str] = ()
    bounds: Mapping[str, tuple[float, float]] = {}
    tool_name: Callable[[str], str] = str
    is_own: Callable[[Tool, Mapping[str, Raw]], bool] = lambda _tool, _given: False
    choices: Collection[Choice] = ()
    schema_members: frozenset[str] | None = None
    keeps_schema: Callable[[Mapping[str, Raw]], bool] = lambda _given: False


class MessageOptions(Struct, frozen=True, kw_only=True):
    """The blocks that a target's messages hold, for one model.

    Attributes:
        target: its name.
        parts: the form of each block.
        call_id: converts the id of a call, and of its result.
        model: the model that reads the messages, if known.
        reasoning_issuers: the providers whose readable reasoning is sent back. Empty if the model takes none.
        user_blocks: the types of unknown blocks that a user message may hold unchanged.
        calls_as_text: calls and results are written as text.
        refusal_field: an assistant message has a field of its own for a refusal.
        images: the model takes images.
        reasoning_parts: reasoning is a part of an assistant message's content, at its place.
        any_reasoning: readable reasoning of every provider is sent back.
        owners: the providers whose specific members are written again.
        result_media: results may hold images and documents. Otherwise these follow the results in a user message.
        observed: the codes of the repairs that are not made, because a policy only observes them.
    """

    target: str
    parts: Parts
    call_id: Callable[[str], str] = str
    model: str | None = None
    reasoning_issuers: frozenset[str] = frozenset()
    user_blocks: frozenset[str] = frozenset()
    calls_as_text: bool = False
    refusal_field: bool = False
    images: bool = True
    reasoning_parts: bool = False
    any_reasoning: bool = False
    owners: frozenset[str] = frozenset()
    result_media: bool = False
    observed: frozenset[str] = frozenset()


class ModelOptions(Struct, frozen=True, kw_only=True):
    """The options that differ between models of one provider.

    Attributes:
        structure: the histories that the model takes.
        system_roles: the roles of system messages that the model has. Empty if it has none.
        joined_system: all leading system messages are one message (VLM-03).
        reasoning: the model takes readable reasoning of earlier turns.
        reasoning_parts: reasoning is a part of an assistant message's content, at its place.
        any_reasoning: the model takes readable reasoning of every provider.
        reasoning_required: a message with calls always has the field of the reasoning, be it empty (DSK-01, KIM-01).
        short_ids: ids of calls are nine letters and digits (VLM-06); otherwise 40 characters at most (OAI-03).
        single_call: a message has one call (VLM-05).
        answer_required: an assistant message is required between results and the user (VLM-02, VLM-08).
        calls_as_text: calls and results are written as text, since the model has none (VLM-01).
        images: the model takes images.
        empty_content: a message with calls may have an empty text as its content (KIM-04).
        message_members: the members of a message that it takes of those that only some APIs have; None if it takes all.
        prefill_mark: the member that marks an answer to continue (VLM-09). ``""`` if it is not marked.
        user_blocks: the types of unknown blocks that a user message may hold unchanged.
        custom_tools: tools that are not functions.
        limit_parameter: the only name of the limit on output tokens that the model takes. ``""`` if any is taken.
        thinking_parameter: the parameter ``thinking`` says whether the model thinks.
        schema_members: as in ``HeadOptions``.
        strict_schemas: strict mode takes only schemas whose objects are closed and require all of their properties.
        answer_schemas: the answer may be asked for as JSON of a schema.
        answer_objects: the answer may be asked for as a JSON object without a schema.
        json_word: a message must have the word JSON then (OAI-26, DSK-11).
        efforts: the levels of reasoning that it has.
    """

    structure: Structure
    system_roles: frozenset[str] = frozenset({"system", "developer"})
    joined_system: bool = False
    reasoning: bool = True
    reasoning_parts: bool = False
    any_reasoning: bool = False
    reasoning_required: bool = False
    short_ids: bool = False
    single_call: bool = False
    answer_required: bool = False
    calls_as_text: bool = False
    images: bool = True
    empty_content: bool = True
    message_members: frozenset[str] | None = None
    prefill_mark: str = ""
    user_blocks: frozenset[str] = frozenset()
    custom_tools: bool = True
    limit_parameter: str = ""
    thinking_parameter: bool = False
    schema_members: frozenset[str] | None = None
    strict_schemas: bool = False
    answer_schemas: bool = False
    answer_objects: bool = False
    json_word: bool = False
    efforts: tuple[str, ...] = ()


NO_EXTRAS: Final[Mapping[str, Raw]] = MappingProxyType({})


class Parts(ABC):
    """The writers of the parts of a user's message; None where the API has no such part.

    ``extras`` are members of a part that only OpenAI's APIs have. ``members`` names those that this API takes, by the
    type of the block.
    """

    members: ClassVar[Mapping[type, frozenset[str]]] = MappingProxyType({Image: frozenset({"detail"})})

    @abstractmethod
    def text(self, text: Text) -> Any:  # noqa: ANN401  a part, ready to encode
        """Words of a message or a result."""

    def thinking(self, text: str) -> Any:  # noqa: ANN401, ARG002  no such part
        """Reasoning of the assistant's."""
        return None

    @abstractmethod
    def image(self, url: str, extras: Mapping[str, Raw] = NO_EXTRAS) -> Any:  # noqa: ANN401  a part
        """An image by its URL, or as a data URL."""

    def uploaded_image(self, file_id: str, extras: Mapping[str, Raw] = NO_EXTRAS) -> Any:  # noqa: ANN401, ARG002  no such part
        return None

    def takes(self, media_type: str) -> bool:
        """Return True if a document of this type may be part of the request."""
        return media_type == "application/pdf"

    def file(self, name: str, url: str, extras: Mapping[str, Raw] = NO_EXTRAS) -> Any:  # noqa: ANN401, ARG002  no such part
        """A document as a data URL; ``name`` is "" for one without a title."""
        return None

    def uploaded_file(self, file_id: str, extras: Mapping[str, Raw] = NO_EXTRAS) -> Any:  # noqa: ANN401, ARG002  no such part
        return None

    def linked_file(self, url: str, extras: Mapping[str, Raw] = NO_EXTRAS) -> Any:  # noqa: ANN401, ARG002  no such part
        return None

"""The faults that a script can inject, by name. Each changes the provider, the client, or the client's next answer."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from mock_provider.client_shapes import SHAPES, Entry
from mock_provider.parties import PARTIES
from mock_provider.state import Issued
from mock_provider.values import digest_of

if TYPE_CHECKING:  # the driver runs faults
    from mock_provider.driver import Run

_OTHER_TEXT: Final = "x"


# The provider's state.


def forget(run: Run, kinds: list[str]) -> None:
    """The provider rotates its keys."""
    run.provider.state.forget(tuple(kinds))


def expire(run: Run, what: str) -> None:
    """A file, a cache, a container or a response expires, or a URL goes away."""
    run.provider.state.gone.add(what)


def drop_state(run: Run) -> None:
    """Stored items and responses vanish."""
    run.provider.state.drop_items()


def tighten(run: Run, **facts: Any) -> None:
    """A limit or a refused parameter appears."""
    given = {name: frozenset(value) if isinstance(value, list) else value for name, value in facts.items()}
    run.provider.tighten(PARTIES[run.party], **given)


def speak(run: Run, **how: Any) -> None:
    """The provider, or what is between, answers otherwise: wording, wrapper, status, busy, refuses_all, misplaced."""
    for name, value in how.items():
        setattr(run.provider, name, value)


# The caller.


def switch(run: Run, party: str = "", organisation: str = "", connection: str = "") -> None:
    """Requests go to another party of the same shape, or with another key, or over another connection."""
    if party:
        run.party = party
        run.agent.switch(party)
    run.provider.organisation = organisation or run.provider.organisation
    run.provider.connection = connection or run.provider.connection


def configure(run: Run, tools: list[str] | None = None, system: str = "", params: Entry | None = None) -> None:
    """The client changes its tools, its system prompt or its parameters."""
    run.tools = run.tools if tools is None else tools
    run.system = system or run.system
    run.agent.configure(tools=run.tools, system=run.system, params=params)


def chain(run: Run) -> None:
    """The client refers to the last response."""
    last = next(each for each in reversed(run.provider.ledger) if not each.name)
    configure(run, params={"previous_response_id": last.body["id"]})


def rewrite_text(run: Run, at: int) -> None:
    """The client edits an old message of the user."""
    entries = run.agent.entries
    entries[at]["content"][0]["text"] += " please"
    run.log = [text for text in run.log if not text.startswith("Question 0")]
    run.agent.rewrite(entries)


# The client's next answer.


def damage(run: Run, cut: int = 1) -> None:
    """The client receives a signature that is cut."""

    def change(entries: list[Entry]) -> None:
        block = _first_reasoning(entries)
        for holder in (block, *[value for value in _objects(block) if "signature" in value]):
            for name in ("signature", "data", "encrypted_content", "thoughtSignature"):
                if name in holder:
                    holder[name] = holder[name][:-cut]

    run.on_answer.append(change)


def damage_text(run: Run) -> None:
    """The client stores a reasoning text that differs by one character."""

    def change(entries: list[Entry]) -> None:
        for holder in _objects(_first_reasoning(entries)):
            for name in ("thinking", "text"):
                if isinstance(holder.get(name), str):
                    holder[name] += _OTHER_TEXT

    run.on_answer.append(change)


def damage_data(run: Run) -> None:
    """The client stores redacted reasoning that differs."""

    def change(entries: list[Entry]) -> None:
        for block in entries[0]["content"]:
            if block["type"] == "redacted_thinking":
                block["data"] = block["data"][:-8] + "AAAAAAA="

    run.on_answer.append(change)


def rename_reasoning(run: Run) -> None:
    """The client gives a reasoning item another id, that of an earlier one."""

    def change(entries: list[Entry]) -> None:
        old = next(each["id"] for each in run.agent.entries if each.get("type") == "function_call")
        run.provider.state.items["rs_other"] = run.provider.state.items[old]
        entries[0]["id"] = "rs_other"

    run.on_answer.append(change)


def lose_follower(run: Run) -> None:
    """The client loses what followed the reasoning: a message."""

    def change(entries: list[Entry]) -> None:
        del entries[1:]

    run.on_answer.append(change)


def lose(run: Run, member: str) -> None:
    """The client does not store a member of the answer."""

    def change(entries: list[Entry]) -> None:
        for entry in entries:
            for holder in [*_objects(entry)]:
                holder.pop(member, None)

    run.on_answer.append(change)


def lose_reasoning(run: Run) -> None:
    """The client does not store the reasoning item."""

    def change(entries: list[Entry]) -> None:
        entries[:] = [entry for entry in entries if entry.get("type") != "reasoning"]

    run.on_answer.append(change)


# The client's history.


def merge(run: Run) -> None:
    """The client makes the last two answers one, and the results of their calls too."""
    *head, first, results, second, more = run.agent.entries
    both = {"role": "assistant", "content": [*first["content"], *second["content"]]}
    run.agent.rewrite([*head, both, {"role": "user", "content": [*results["content"], *more["content"]]}])


def foreign(run: Run, signature: str) -> None:
    """The history begins with a turn that another provider signed."""
    shape = PARTIES[run.party].shape
    run.agent.say(SHAPES[shape].user("Before.", []))
    if shape == "responses":
        reasoning = {"type": "reasoning", "summary": [], "encrypted_content": signature}
        message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Once."}]}
        run.agent.say(reasoning, message)
    elif shape == "converse":
        reasoning = {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": signature}}}
        run.agent.say({"role": "assistant", "content": [reasoning, {"text": "Once."}]})
    else:
        reasoning = {"type": "thinking", "thinking": "Hm.", "signature": signature}
        run.agent.say({"role": "assistant", "content": [reasoning, {"type": "text", "text": "Once."}]})


def search(run: Run) -> None:
    """The assistant has searched the web, and the provider has issued the results."""
    provider, party = run.provider, PARTIES[run.party]
    page = f"page-{len(provider.ledger)}-{digest_of(len(provider.state.issued))}"
    issued = Issued(family=provider.facts(party).family, boundary=party.platform)
    provider.state.issue(party.platform, "search", page, issued)
    call_id = f"srvtoolu_{len(provider.ledger)}"
    call = {"type": "server_tool_use", "id": call_id, "name": "web_search", "input": {"query": "reknit"}}
    found = {"type": "web_search_result", "url": "https://a.example/p", "title": "A page", "encrypted_content": page}
    result = {"type": "web_search_tool_result", "tool_use_id": call_id, "content": [found]}
    said = {"type": "text", "text": "I searched."}
    run.agent.say(SHAPES["messages"].user("Search.", []), {"role": "assistant", "content": [call, result, said]})


def refer(run: Run, form: str, tool: str) -> None:
    """The history refers to a tool: in a search of the server, in a result of the client, or in ``tools``."""
    reference = {"type": "tool_reference", "tool_name": tool}
    user = SHAPES["messages"].user("Find tools.", [])
    said = {"role": "assistant", "content": [{"type": "text", "text": "I found some."}]}
    if form == "server":
        call = {
            "type": "server_tool_use",
            "id": "srvtoolu_t",
            "name": "tool_search_tool_regex",
            "input": {"query": tool},
        }
        content = {"type": "tool_search_tool_search_result", "tool_references": [reference]}
        result = {"type": "tool_search_tool_result", "tool_use_id": "srvtoolu_t", "content": content}
        run.agent.say(user, {"role": "assistant", "content": [call, result, *said["content"]]})
        return
    call = {"type": "tool_use", "id": "toolu_t", "name": "read", "input": {"path": tool}}
    result = {"type": "tool_result", "tool_use_id": "toolu_t", "content": [reference]}
    run.agent.say(user, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}, said)


def declare_reference(run: Run, tool: str) -> None:
    """The client declares a reference to a tool that it does not declare."""
    run.agent.declare({"type": "tool_reference", "tool_name": tool})


def compact(run: Run) -> None:
    """The client replaces its history by a compaction of the provider."""
    value = "gAAAAABcompaction" + digest_of(len(run.provider.ledger))
    run.provider.state.issue(
        PARTIES[run.party].platform, "compaction", value, Issued(family="gpt", boundary="openai", item="cmp_1")
    )
    run.log = []
    run.agent.say({"type": "compaction", "encrypted_content": value})


def in_container(run: Run, container: str) -> None:
    """The assistant has run code in a container."""
    state = run.provider.state
    item = {
        "type": "code_interpreter_call",
        "id": "ci_1",
        "container_id": container,
        "code": "1",
        "outputs": [],
        "status": "completed",
    }
    known = next(iter(state.items.values()))
    state.items["ci_1"] = known
    run.agent.say(SHAPES["responses"].user("Run it.", []), item)
    run.agent.say({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It ran."}]})


# Media.


def show(
    run: Run, count: int = 1, side: int = 10, url: str = "", file: str = "", *, bad: bool = False, large: int = 0
) -> None:
    """The user's next entry has pictures."""
    shape = SHAPES[PARTIES[run.party].shape]
    for number in range(count):
        data = "" if url or file else picture_data(side, number + len(run.provider.ledger) * 1000, large)
        if bad:
            run.provider.state.undecodable.add(digest_of(data))
        run.media.append(shape.picture(data=data, url=url, file=file))


def picture_data(side: int, number: int, large: int = 0) -> str:
    """Return the base64 of the first bytes of a picture, with ``large`` bytes more."""
    head = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + struct.pack(">III", side, side, number)
    return base64.b64encode(head + bytes(large + 4) + b"IEND").decode()


def spoil(run: Run) -> None:
    """The provider cannot decode pictures any more that it took before."""
    for entry in run.agent.entries:
        for value in _objects(entry):
            if isinstance(value.get("data"), str):
                run.provider.state.undecodable.add(digest_of(value["data"]))


def time_out(run: Run, url: str, times: int) -> None:
    """Downloads of a URL time out some times."""
    run.provider.state.timeouts[url] = times


def _first_reasoning(entries: list[Entry]) -> Entry:
    """Return the first block of reasoning, or the first signed part."""
    for entry in entries:
        if entry.get("type") == "reasoning":
            return entry
        for block in [*entry.get("content", []), *entry.get("parts", [])]:
            if block.get("type") == "thinking" or "reasoningContent" in block or "thoughtSignature" in block:
                return block
    raise AssertionError("the answer has no reasoning")


def _objects(value: object) -> list[Entry]:
    """Return an object and the objects within it."""
    if isinstance(value, dict):
        return [value, *[found for each in value.values() for found in _objects(each)]]
    return [found for each in value for found in _objects(each)] if isinstance(value, list) else []


FAULTS: Final[dict[str, Callable[..., None]]] = {
    fault.__name__: fault
    for fault in (
        forget, expire, drop_state, tighten, speak, switch, configure, chain, rewrite_text, damage, damage_text,
        damage_data, rename_reasoning, lose_follower, lose, lose_reasoning, merge, foreign, search, refer,
        declare_reference, compact, in_container, show, spoil, time_out,
    )
}  # fmt: skip

"""Random sessions: a party, rounds, and faults that its shape can have, all from a seed."""

from __future__ import annotations

import random
from typing import Any, Final

from mock_provider.parties import PARTIES
from mock_provider.scripts import Fault, Script

_PARTIES: Final = ("ant", "vtx", "pfx", "bed", "oai", "azr", "cop", "gem", "gvx", "dsk", "kim", "vll")
_FOREIGN: Final = (
    "0123456789abcdef01234567",
    "3f0c1d2e-1111-2222-3333-444455556666",
    "gAAAAABforeignforeignforeignforeign",
    "rsn_a1b2c3d4e5f6",
    "claude#EpwBforeignforeignforeign",
)
_WRAPPERS: Final = ("openrouter", "litellm", "copilot", "stream", "vertex-string")
_URL: Final = "https://a.example/p.png"
_PARAMS: Final[dict[str, dict[str, Any]]] = {
    "messages": {"temperature": 1},
    "responses": {"temperature": 0.5},
    "chat": {"temperature": 0.5},
}


class _Making:
    """The faults of one script, while they are chosen."""

    def __init__(self, chance: random.Random, party: str, rounds: list[int]) -> None:
        self.chance = chance
        self.shape = PARTIES[party].shape
        self.party = party
        self.rounds = rounds
        self.faults: list[Fault] = []

    def add(self, name: str, number: int | None = None, step: int = 0, **given: Any) -> int:
        """Add a fault to a round, by default any but the first; return the number of the round."""
        at = self.chance.randrange(1, len(self.rounds)) if number is None else number
        self.faults.append(Fault(name=name, round=at, step=step, given=given))
        return at

    def later(self, number: int) -> int:
        return self.chance.randrange(number + 1, len(self.rounds)) if number + 1 < len(self.rounds) else number


def random_script(seed: int | str, *, is_switching: bool = False) -> Script:
    """Return the session of a seed; ``is_switching``: between providers of different shapes."""
    chance = random.Random(f"{seed} switching" if is_switching else seed)  # noqa: S311  a reproducible choice, not a secret
    party = chance.choice(_PARTIES)
    rounds = [chance.choice((0, 1, 2)) for _ in range(chance.randrange(4, 9))]
    making = _Making(chance, party, rounds)
    known = [fault for fault in _OF_SHAPE[making.shape] if not is_switching or fault in _IN_EVERY_SHAPE]
    for _ in range(chance.choice((0, 1, 1, 2, 2, 3))):
        chance.choice(_ANY + known)(making)
    for _ in range(chance.choice((1, 2, 3)) if is_switching else 0):
        making.add("switch", party=chance.choice(_PARTIES))
    return Script(
        name=f"random-{seed}",
        group="random",
        party=party,
        report="-",
        rounds=rounds,
        faults=making.faults,
        params={} if is_switching else _PARAMS.get(making.shape, {}),
        late=chance.random() < 0.1,
    )


def _damage(making: _Making) -> None:
    making.add("damage", cut=making.chance.choice((1, 2, 3)))


def _edit(making: _Making) -> None:
    making.add("damage_text")


def _redacted(making: _Making) -> None:
    making.add("damage_data")


def _merge(making: _Making) -> None:
    places = [at for at, calls in enumerate(making.rounds) if calls > 1]
    if places:
        making.add("merge", making.chance.choice(places), 2)


def _forget(making: _Making) -> None:
    making.add("forget", kinds=["thinking", "redacted_thinking", "encrypted", "thought"])


def _foreign(making: _Making) -> None:
    for _ in range(making.chance.choice((1, 2))):
        making.add("foreign", 0, signature=making.chance.choice(_FOREIGN))


def _search(making: _Making) -> None:
    making.add("forget", making.later(making.add("search")), kinds=["search"])


def _refer(making: _Making) -> None:
    tool = "LSP"
    making.add("configure", 0, tools=["read", tool])
    at = making.add("refer", form=making.chance.choice(("server", "client")), tool=tool)
    making.add("configure", making.later(at), tools=["read"])


def _prefix(making: _Making) -> None:
    making.add("configure", system=f"System {making.chance.randrange(9)}.")


def _rewrite(making: _Making) -> None:
    making.add("rewrite_text", at=0)


def _platform(making: _Making) -> None:
    others = {"ant": ["vtx"], "vtx": ["ant"], "oai": ["azr"], "azr": ["oai"]}.get(making.party)
    if others:
        making.add("switch", making.later(making.add("switch", party=others[0])), party=making.party)


def _connection(making: _Making) -> None:
    making.add("switch", connection=f"c{making.chance.randrange(2, 5)}")


def _organisation(making: _Making) -> None:
    making.add("switch", organisation=f"o{making.chance.randrange(2, 5)}")


def _lose_signature(making: _Making) -> None:
    making.add("lose", member="thoughtSignature")


def _lose_reasoning_text(making: _Making) -> None:
    making.add("lose", member="reasoning_content")


def _lose_items(making: _Making) -> None:
    making.add(making.chance.choice(("lose_follower", "lose_reasoning")))


def _pictures(making: _Making) -> None:
    at = making.add("show", count=making.chance.choice((1, 1, 3)))
    making.add("spoil", making.later(at))


def _bad_picture(making: _Making) -> None:
    making.add("show", bad=True)


def _address(making: _Making) -> None:
    at = making.add("show", url=_URL)
    making.add("expire", making.later(at), what=_URL)


def _slow(making: _Making) -> None:
    at = making.add("show", url=_URL)
    making.add("time_out", making.later(at), url=_URL, times=making.chance.choice((1, 2)))


def _file(making: _Making) -> None:
    at = making.add("show", file="file-9xGone1")
    making.add("expire", making.later(at), what="file-9xGone1")


def _no_vision(making: _Making) -> None:
    making.add("tighten", making.later(making.add("show")), vision=False)


def _few_pictures(making: _Making) -> None:
    making.add("show", count=2)
    making.add("tighten", images_max=1)


def _parameter(making: _Making) -> None:
    making.add("tighten", refused_params=["temperature"])


def _short(making: _Making) -> None:
    making.add("tighten", output_max=4096)


def _busy(making: _Making) -> None:
    making.add("speak", busy=making.chance.choice((1, 2)))


def _wrap(making: _Making) -> None:
    making.add("speak", 0, wrapper=making.chance.choice(_WRAPPERS))


_ANY: Final = [_busy, _wrap, _prefix]
_CLAUDE: Final = [_damage, _edit, _merge, _forget, _foreign, _pictures, _bad_picture, _short, _damage, _edit]
_OF_SHAPE: Final = {
    "messages": [*_CLAUDE, _redacted, _search, _refer, _rewrite, _platform, _address, _slow, _parameter],
    "converse": _CLAUDE,
    "responses": [
        *(_damage, _forget, _foreign, _platform, _connection, _organisation, _lose_items),
        *(_pictures, _address, _slow, _file, _parameter),
    ],
    "gemini": [_damage, _forget, _organisation, _lose_signature, _pictures, _bad_picture, _file],
    "chat": [_lose_reasoning_text, _pictures, _address, _no_vision, _few_pictures, _parameter],
}
# These ask nothing of the history, so the session may be at another provider when they happen.
_IN_EVERY_SHAPE: Final = (
    _forget, _foreign, _connection, _organisation, _lose_signature, _lose_reasoning_text, _bad_picture, _address, _slow,
)  # fmt: skip

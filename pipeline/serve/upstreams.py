"""The configured upstreams, and the one that a request is for.

Upstreams come from the configuration only, never from a request, so that the gateway is no open proxy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from types import MappingProxyType
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from msgspec import Meta, Raw, Struct, structs

from reknit.pipeline.errors import InputError, expected_one_of
from reknit.pipeline.policy import Endpoint as PolicyEndpoint
from reknit.pipeline.policy import Platform, Policy
from reknit.pipeline.serve.endpoints import Endpoint, endpoint_of, is_at_bedrock, targets_of
from reknit.pipeline.urls import LOOPBACK

_PREFIX: Final = re.compile(r"(/[A-Za-z0-9._~-]+)+")

Publish = Literal["off", "events", "all"]
Heal = Literal["off", "once", "on"]
# Healings of one request at most.
_HEALINGS: Final[Mapping[Heal, int]] = MappingProxyType({"off": 0, "once": 1, "on": 3})


class ModelSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings for the requests to some models.

    Attributes:
        policy: of repair; None: that of the upstream.
        params: members of the body, by the provider's names, for requests that do not have them.
    """

    policy: Policy | None = None
    params: dict[str, Raw] = {}


class SettingsOfRequest(Struct, frozen=True):
    """The settings of one request: the policy of repair, and members for a body that does not have them."""

    policy: Policy
    params: Mapping[str, Raw] = {}


class Upstream(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A provider's API.

    Attributes:
        name: for logs and metrics.
        prefix: the first segments of the gateway's paths that lead here, such as ``/anthropic``; "" for none.
        to: the base URL, ``https`` unless the host is this machine.
        target: judges requests to an API that imitates another, such as ``vllm``; "": known by the path.
        policy: of repair, as in ``[session.policy]``.
        models: settings by pattern of the model's name, such as ``claude-opus-*``; the first that matches applies.
        key_env: the environment variable of a key that replaces the client's; "": the client's key is forwarded.
        sign: the gateway signs a request that was signed for AWS again with its own credentials: if the client has the
            same credentials (``own``), or always (``any``), for which clients need the gateway's key.
        heal: how often one request is sent again without what the provider refused: never, ``once``, or three times
            (``on``).
        reject: an irreparable request is forwarded unchanged, or answered in the provider's words (``local``).
        publish: the records of its exchanges for the topics; "": as ``[serve]`` says.
    """

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,40}$")]
    to: str
    prefix: str = ""
    target: str = ""
    policy: Policy = Policy()
    models: dict[str, ModelSettings] = {}
    key_env: str = ""
    sign: Literal["own", "any"] = "own"
    heal: Heal = "on"
    reject: Literal["forward", "local"] = "forward"
    publish: Publish | Literal[""] = ""

    @property
    def most_healings(self) -> int:
        return _HEALINGS[self.heal]

    def settings_of(self, model: str) -> SettingsOfRequest:
        """Return the settings of requests to a model; "" for a body that names none."""
        for pattern, settings in self.models.items():
            if fnmatchcase(model, pattern):
                return SettingsOfRequest(settings.policy or self.policy, settings.params)
        return SettingsOfRequest(self.policy)

    def as_shadow(self) -> Upstream:
        """Return the upstream of a gateway that changes nothing."""
        models = {pattern: structs.replace(each, params={}) for pattern, each in self.models.items()}
        return structs.replace(self, models=models, heal="off", reject="forward", publish="all")

    def policies(self) -> Iterator[Policy]:
        """Yield every policy that a request may get."""
        yield self.policy
        for settings in self.models.values():
            if settings.policy is not None:
                yield settings.policy


def _policy_at(platform: Platform) -> Policy:
    """Return the policy for a platform that also has an endpoint in Anthropic's shape."""
    return Policy(endpoints={"anthropic": PolicyEndpoint(platform=platform)})


DEFAULT_UPSTREAMS: Final = (
    Upstream(name="anthropic", prefix="/anthropic", to="https://api.anthropic.com"),
    Upstream(name="openai", prefix="/openai", to="https://api.openai.com"),
    Upstream(name="gemini", prefix="/gemini", to="https://generativelanguage.googleapis.com"),
    Upstream(name="mistral", prefix="/mistral", to="https://api.mistral.ai"),
    Upstream(name="deepseek", prefix="/deepseek", to="https://api.deepseek.com", policy=_policy_at("deepseek")),
    Upstream(name="moonshot", prefix="/moonshot", to="https://api.moonshot.ai", policy=_policy_at("moonshot")),
)


class Destination(Struct, frozen=True):
    """The destination of a request: the upstream, the full URL, and the endpoint if it is a request to a model."""

    upstream: Upstream
    url: str
    endpoint: Endpoint | None


class Upstreams:
    """The upstreams of a gateway.

    Raises:
        InputError: ``serve_upstream``: a value cannot be used.
    """

    def __init__(self, upstreams: Iterable[Upstream], targets: Iterable[str]) -> None:
        """``targets`` are the names of all targets."""
        self._upstreams = tuple(upstreams)
        known = tuple(targets)
        for upstream in self._upstreams:
            _check(upstream, known)
        for what, values in (
            ("name", [each.name for each in self._upstreams]),
            ("prefix", [each.prefix for each in self._upstreams]),
        ):
            double = next((value for value in values if values.count(value) > 1), None)
            if double is not None:
                raise _unusable(f"two upstreams have the {what} {double!r}")
        self._by_prefix = sorted((each for each in self._upstreams if each.prefix), key=lambda each: -len(each.prefix))

    def __iter__(self) -> Iterator[Upstream]:
        return iter(self._upstreams)

    def find(self, path: str, *, is_anthropic: bool = False) -> Destination | None:
        """Return the destination of a request; None if no upstream is known to take it.

        The longest prefix decides. A request without a prefix goes to the upstream whose API has its path, or, with
        ``is_anthropic`` (it has the header ``anthropic-version``), to Anthropic's.

        Args:
            path: path and query, percent-encoded as received.
            is_anthropic: the request has a header that only Anthropic's API has.
        """
        for upstream in self._by_prefix:
            if path.startswith(upstream.prefix) and path[len(upstream.prefix) : len(upstream.prefix) + 1] in {
                "/",
                "?",
                "",
            }:
                return _destination(upstream, path[len(upstream.prefix) :])
        if len(self._upstreams) == 1 and not self._upstreams[0].prefix:
            return _destination(self._upstreams[0], path)
        endpoint = endpoint_of(path.partition("?")[0])
        shape = "anthropic" if endpoint is None and is_anthropic else endpoint and endpoint.target
        upstream_of_shape = next((each for each in self._upstreams if shape in shapes_of(each)), None)
        return None if upstream_of_shape is None else _destination(upstream_of_shape, path)


def _check(upstream: Upstream, targets: tuple[str, ...]) -> None:
    url = urlsplit(upstream.to)
    if url.scheme not in {"http", "https"} or not url.hostname or url.query or url.fragment or "@" in url.netloc:
        raise _unusable(f"upstream {upstream.name}: `to` is no base URL without user and query")
    if url.scheme == "http" and url.hostname not in LOOPBACK:
        raise _unusable(
            f"upstream {upstream.name}: `to` is http; keys are sent over https only, except on this machine"
        )
    if upstream.prefix and not _PREFIX.fullmatch(upstream.prefix):
        raise _unusable(f"upstream {upstream.name}: `prefix` is not like /name")
    if upstream.target and upstream.target not in targets:
        raise _unusable(f"upstream {upstream.name}: {expected_one_of(targets, upstream.target)}")


def _unusable(message: str) -> InputError:
    return InputError("serve_upstream", message, path="serve.upstream")


def _shape_of(target: str) -> str:
    """Return the shape of a target's requests."""
    from reknit.pipeline.registry import shape_of  # noqa: PLC0415  settings import this; most commands need no target

    return shape_of(target)


@cache
def _host_of(base: str) -> str:
    """Return the host of an upstream's base URL; each request needs it."""
    return urlsplit(base).hostname or ""


def _destination(upstream: Upstream, rest: str) -> Destination:
    endpoint = endpoint_of(rest.partition("?")[0], _host_of(upstream.to))
    # An upstream's target replaces that of a path only within one shape.
    if endpoint is not None and upstream.target and _shape_of(upstream.target) == _shape_of(endpoint.target):
        endpoint = Endpoint(upstream.target, endpoint.model, endpoint.streams)
    return Destination(upstream, upstream.to.rstrip("/") + rest, endpoint)


def shapes_of(upstream: Upstream) -> frozenset[str]:
    """Return the shapes of requests to an upstream, by its target or its host; none for an unknown host."""
    if upstream.target:
        return frozenset({_shape_of(upstream.target)})
    return frozenset(map(_shape_of, targets_of(_host_of(upstream.to))))


def form_of_errors(to: Destination) -> str:
    """Return the target in whose form the gateway reports errors to the clients of a destination; "" if unknown."""
    if is_at_bedrock(urlsplit(to.url).path):
        return "bedrock-converse"
    if to.endpoint is not None:
        return to.endpoint.target
    return "bedrock-converse" if "bedrock-converse" in shapes_of(to.upstream) else ""

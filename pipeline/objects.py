"""Values too large for a topic, as objects in a store: a folder, S3, Google Cloud Storage (extra ``objects``).

An object's key is made of digests: its session's, then its value's. So a redelivery writes the same object again, no
two sessions share one, and whoever reads it knows whether it is what was written. Below the store's URL each pipeline
has a folder of its own, named after its prefix; records carry only the key.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from msgspec import Meta, Struct, structs

from reknit.pipeline.errors import InputError, ReknitError, error_name
from reknit.pipeline.stages.base import Record
from reknit.pipeline.urls import mask_urls
from reknit.topics import LARGEST_INPUT
from reknit.topics.headers import dataref_of, find_dataref, is_own_dataref

if TYPE_CHECKING:
    from datetime import datetime

    from obstore.store import ObjectStore

# The pauses before an object that is missing is requested again: it may arrive shortly after its record.
_LOOK_AGAIN_SECONDS = (0.1, 0.3, 0.9)
_LARGE_BYTES = 1024 * 1024


class ObjectSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The store of values that are too large for a topic."""

    url: Annotated[
        str,
        Meta(
            description="The store: `file:///folder`, `s3://bucket/folder`, `gs://bucket/folder`; the rights are "
            "those of the variables of the provider's own programs. Empty: everything stays in the "
            "topics."
        ),
    ] = ""
    threshold_bytes: Annotated[
        int, Meta(ge=1, description="Minimum bytes of a request's body, or an input, that becomes an object.")
    ] = _LARGE_BYTES


class HasObjects(Protocol):
    """The part of the configuration that says where objects are."""

    @property
    def prefix(self) -> str:
        """The pipeline's."""

    @property
    def objects(self) -> ObjectSettings:
        """The URL of the store."""


class ObjectStoreError(ReknitError):
    """The store cannot be used as it is configured."""

    fault = "caller"


class Objects:
    """The objects of one pipeline. Where the store does not answer, calls raise ``ConnectionError``.

    The client's own coroutines are not used: its threads may still want the interpreter's lock while that is taken
    down, and the process then ends with an abort.
    """

    def __init__(
        self,
        store: ObjectStore,
        folder: str,
        threshold_bytes: int,
        in_thread: Callable[..., Awaitable[Any]] = asyncio.to_thread,
    ) -> None:
        """``in_thread`` runs calls that block."""
        self._store = store
        self._folder = folder
        self._in_thread = in_thread
        self.threshold_bytes = threshold_bytes

    def of_pipeline(self, prefix: str) -> Objects:
        """The objects of another pipeline in the same store."""
        return Objects(self._store, _folder(prefix), self.threshold_bytes, self._in_thread)

    async def put(self, session: bytes, value: bytes) -> str:
        """Write a value; its key."""
        key = dataref_of(session, value)
        with _answering():
            await self._in_thread(self._store.put, self._path(key), value)
        return key

    async def get(self, session: bytes, key: str) -> bytes:
        """The value that was written under a key of the session's.

        Raises:
            InputError: ``object_foreign`` (no key of this session), ``object_missing``, ``object_damaged`` (not what
                was written), ``too_large``.
        """
        if not is_own_dataref(session, key):
            raise InputError("object_foreign", "header `dataref` is no key of this session")
        for pause in (*_LOOK_AGAIN_SECONDS, None):
            with suppress(FileNotFoundError), _answering():
                value: bytes = await self._in_thread(self._read, key)
                if dataref_of(session, value) != key:
                    raise InputError("object_damaged", "the object is not what was written under its key")
                return value
            if pause is not None:
                await asyncio.sleep(pause)
        raise InputError("object_missing", "the object store does not hold what the record names")

    async def put_made(self, session: bytes, name: str, value: bytes) -> None:
        """Write a value that was made of another one, under the digest ``name`` of the latter."""
        checked = hashlib.sha256(value).digest() + value
        with _answering():
            await self._in_thread(self._store.put, self._path(made_key(session, name)), checked)

    async def get_made(self, session: bytes, name: str) -> bytes | None:
        """Return such a value; None if it is not there, or is not what was written."""
        with suppress(FileNotFoundError), _answering():
            found: bytes = await self._in_thread(self._read, made_key(session, name))
            value = found[hashlib.sha256().digest_size :]
            if hashlib.sha256(value).digest() + value == found:
                return value
        return None

    async def every(self, session: bytes | None = None) -> dict[str, datetime]:
        """Keys and when each was written; of one session's objects, or of all."""
        below = "" if session is None else f"/{hashlib.sha256(session).hexdigest()}"
        with _answering():
            every = await self._in_thread(self._store.list(prefix=self._folder + below).collect)
        return {found["path"].removeprefix(f"{self._folder}/"): found["last_modified"] for found in every}

    async def delete(self, keys: Collection[str]) -> None:
        """Delete objects; a missing one is not an error."""
        for key in keys:
            with suppress(FileNotFoundError), _answering():
                await self._in_thread(self._store.delete, self._path(key))

    async def forget(self, session: bytes) -> int:
        """Delete everything of a session; how many objects there were."""
        keys = await self.every(session)
        await self.delete(keys)
        return len(keys)

    def _read(self, key: str) -> bytes:
        found = self._store.get(self._path(key))
        if found.meta["size"] > LARGEST_INPUT:
            raise InputError("too_large", f"an object holds at most {LARGEST_INPUT} bytes")
        return bytes(found.bytes())

    def _path(self, key: str) -> str:
        return f"{self._folder}/{key}"


def made_key(session: bytes, name: str) -> str:
    """Return the key of a value that was made of another one; no record names it."""
    return f"{hashlib.sha256(session).hexdigest()}/made-{name}"


def is_made(key: str) -> bool:
    """Return True if a key is that of a value that was made of another one."""
    return key.rpartition("/")[2].startswith("made-")


@contextmanager
def _answering() -> Iterator[None]:
    """Convert any error of the store's client to "no answer", except for a missing object.

    A refused right is included: it may be granted again, and data to be written must not be lost meanwhile.
    """
    from obstore.exceptions import BaseError  # noqa: PLC0415  an optional extra

    try:
        yield
    except FileNotFoundError:
        raise
    except (BaseError, OSError) as error:
        raise ConnectionError(f"the object store does not answer ({error_name(error)})") from error


def open_objects(config: HasObjects) -> Objects | None:
    """Open the object store of a pipeline; None if none is configured.

    Raises:
        ObjectStoreError: the extra is not installed, or the store does not exist.
    """
    settings = config.objects
    if not settings.url:
        return None
    try:
        from obstore.store import LocalStore, from_url  # noqa: PLC0415  an optional extra
    except ImportError as error:
        raise ObjectStoreError(
            "objects_missing", "object stores need an extra: pip install 'reknit[objects]'"
        ) from error
    try:
        if settings.url.startswith("file://"):
            store: ObjectStore = LocalStore.from_url(settings.url, mkdir=True, automatic_cleanup=True)
        else:
            store = from_url(settings.url)
    except Exception as error:
        # The extension's errors have no base of their own, and quote its sources over many lines.
        words = str(error).partition("\n")[0]
        raise ObjectStoreError(
            "objects_unusable", f"{mask_urls(settings.url)} cannot be used: {mask_urls(words)}", path="objects.url"
        ) from error
    return Objects(store, _folder(config.prefix), settings.threshold_bytes)


def _folder(prefix: str) -> str:
    return f"{prefix}reknit"


# Objects that are read at once: each may hold 64 MiB.
_AT_ONCE = 4


async def with_objects(records: Sequence[Record], objects: Objects | None) -> Sequence[Record]:
    """Return records with the values that they refer to.

    Only the first few records that refer to one are returned; the others are left for another call. A record whose
    object is missing stays without a value, and the stage decides its outcome.
    """
    naming = [at for at, record in enumerate(records) if record.value is None and find_dataref(record.headers)]
    if objects is None or not naming:
        return records
    found = list(records[: [*naming, len(records)][min(_AT_ONCE, len(naming))]])
    naming = naming[:_AT_ONCE]
    for at, record in zip(naming, await asyncio.gather(*(_read(records[at], objects) for at in naming)), strict=True):
        found[at] = record
    return found


async def _read(record: Record, objects: Objects) -> Record:
    try:
        return structs.replace(record, value=await objects.get(record.key or b"", find_dataref(record.headers) or ""))
    except InputError:
        return record

"""Large request bodies as objects, which exist before the records that name them."""

from __future__ import annotations

from msgspec import structs

from reknit.pipeline.engine.commit import Batch, Writer
from reknit.pipeline.objects import Objects
from reknit.pipeline.stages.base import Output
from reknit.topics import PROVIDER_REQUESTS
from reknit.topics import headers as names


class ObjectWriter:
    """Writes large bodies as objects, then the batch with their keys; first it deletes forgotten sessions' objects."""

    def __init__(self, writer: Writer, objects: Objects) -> None:
        self._writer = writer
        self._objects = objects
        self.open = writer.open
        self.close = writer.close

    async def write(self, batch: Batch) -> int | None:
        """Write a batch; every object that it names exists."""
        outputs = [await self._named(output) for output in batch.outputs]
        for output in outputs:
            if output.key and any(name == names.FORGOTTEN for name, _ in output.headers):
                await self._objects.forget(output.key)
        return await self._writer.write(structs.replace(batch, outputs=outputs))

    async def _named(self, output: Output) -> Output:
        value, key = output.value, output.key
        if output.topic != PROVIDER_REQUESTS or not key or len(value or b"") < self._objects.threshold_bytes:
            return output
        dataref = await self._objects.put(key, value or b"")
        return structs.replace(output, value=None, headers=(*output.headers, (names.DATAREF, dataref.encode())))

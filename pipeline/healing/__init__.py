"""From a provider's refusal to one narrower request.

Some causes are in no body: a signature that the provider no longer accepts, an item that it did not store, a file that
expired. The provider states them in its refusal. ``errors`` finds the provider's own sentence in the answer, ``table``
has the repair for each known sentence, and ``claude``, ``items``, ``media``, ``gemini``, ``parameters`` and ``chat``
change a body. ``single`` heals one request, and ``memory`` is what a session remembers of its refusals. A sentence that
is not known is never interpreted.
"""

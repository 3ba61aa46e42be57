"""``reknit serve``: an HTTP proxy on the request path that repairs requests and never ends a broken stream cleanly.

A request passes these modules: ``upstreams`` selects the provider, ``headers`` what is forwarded, ``repair`` repairs
the body, ``exchange`` sends it and relays the answer, ``streams`` decides whether a stream is complete, and ``errors``
writes errors in the provider's own form. ``server`` listens.
"""

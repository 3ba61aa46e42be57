"""``reknit screens``: sessions for UI clients over HTTP, as AG-UI, as the AI SDK's UI message stream, or as items.

The server holds the view of each session that has connections. A client that connects again gets the current view, not
a log of events. An answer that breaks off ends without its last chunk, because clients take a clean end for success.
"""

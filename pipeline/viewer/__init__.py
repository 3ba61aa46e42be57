"""The viewer: sessions, fixes and streams in a browser, from an index of its own that follows the topics."""

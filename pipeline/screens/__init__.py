"""Items of a session as the events of two UI protocols: AG-UI 1.0, and the UI message stream v1 of the AI SDK.

Both are written from the view of the session and not from a log of events: each event is the difference that one record
makes to the view, and a client that connects again gets the view as it is. So a record that is delivered twice yields
nothing, and no text is on a screen twice.
"""

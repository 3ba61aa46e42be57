"""The index of the topics: what it keeps of a record, its file, who fills it, and what pages ask of it."""

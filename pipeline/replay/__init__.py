"""Work again through what a pipeline has read: which part of it, into which topics or files."""

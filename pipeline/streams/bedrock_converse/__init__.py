"""Streams of Bedrock's Converse."""

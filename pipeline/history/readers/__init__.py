"""Readers: histories of any shape in, canonical turns out. They change the shape and never the structure."""

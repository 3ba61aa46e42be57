"""Bytes to payloads: where events end, however they are laid out, cut or damaged."""

"""Ends with 0 where the worker in this container is ready. It imports little, since it runs every few seconds."""

# ruff: noqa: INP001 - a script by itself, not a package
import os
import socket
import sys

PORT = int(os.environ.get("REKNIT_METRICS_PORT", "9464"))
try:
    with socket.create_connection(("127.0.0.1", PORT), 3) as connection:
        connection.settimeout(3)
        connection.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
        answer = connection.recv(64)
except OSError as error:
    sys.exit(f"no answer: {error}")
sys.exit(None if b" 200 " in answer else answer.decode("latin-1"))

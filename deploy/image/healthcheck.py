"""Ends with 0 where the worker in this container is ready; or what answers at the port and path that are given.

It imports little, since it runs every few seconds.
"""

# ruff: noqa: INP001 - a script by itself, not a package
import os
import socket
import sys

PORT, PATH = sys.argv[1:] or (os.environ.get("REKNIT_METRICS_PORT", "9464"), "/readyz")
try:
    with socket.create_connection(("127.0.0.1", int(PORT)), 3) as connection:
        connection.settimeout(3)
        connection.sendall(f"GET {PATH} HTTP/1.0\r\n\r\n".encode())
        answer = connection.recv(64)
except OSError as error:
    sys.exit(f"no answer: {error}")
sys.exit(None if b" 200 " in answer else answer.decode("latin-1"))

"""A certificate for a server on the loopback address."""

import subprocess


def make_certificate(folder):
    """Write `cert.pem`, a self-signed certificate for 127.0.0.1, and `key.pem`; return the folder."""
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, *files]
    subprocess.run(command, check=True, capture_output=True)
    return folder

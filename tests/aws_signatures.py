"""AWS Signature Version 4, as its specification describes it: an oracle that is not botocore's."""

import hashlib
import hmac
import re
from urllib.parse import quote

GIVEN = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/([^/]+)/aws4_request, SignedHeaders=([^,]+), Signature=(\w+)"
)


def scope_of(headers):
    """Return the access key, the day, the region and the service of a signed request."""
    return GIVEN.fullmatch(headers["authorization"]).groups()[:4]


def is_signed(method, path, headers, body, secret):
    """Return True if the signature of a received request is that of this secret for what was received.

    Args:
        method: of the request.
        path: path and query, as received.
        headers: by lower-case name, as received.
        body: as received.
        secret: the secret access key.
    """
    _, day, region, service, names, value = GIVEN.fullmatch(headers["authorization"]).groups()
    place, _, query = path.partition("?")
    canonical = [method, quote(place, safe="/~"), "&".join(sorted(filter(None, query.split("&"))))]
    canonical += [f"{name}:{' '.join(headers[name].split())}" for name in names.split(";")]
    canonical += ["", names, hashlib.sha256(body).hexdigest()]
    digest = hashlib.sha256("\n".join(canonical).encode()).hexdigest()
    text = "\n".join(["AWS4-HMAC-SHA256", headers["x-amz-date"], f"{day}/{region}/{service}/aws4_request", digest])
    key = f"AWS4{secret}".encode()
    for part in (day, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, text.encode(), "sha256").hex() == value

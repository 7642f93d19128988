"""TLS and HTTP clients that verify nothing and only read the status."""

from __future__ import annotations

import ssl
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from tests.support.machine import patience


def unverified_context() -> ssl.SSLContext:
    """Return TLS settings that verify nothing."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def http_status(request: str | Request, context: ssl.SSLContext | None = None) -> int:
    """Return the HTTP status that a server answers with; 0 where it does not answer."""
    try:
        with urlopen(request, context=context, timeout=patience(10)) as response:
            return int(response.status)
    except HTTPError as error:
        with error:
            return error.code
    except (URLError, OSError):
        return 0

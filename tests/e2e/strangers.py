"""TLS as a stranger speaks it: whoever answers is believed."""

from __future__ import annotations

import ssl


def trusting() -> ssl.SSLContext:
    """Return TLS settings that verify nothing."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context

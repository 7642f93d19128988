"""Name of the page on this machine.

Browsers send a cookie to every port of its host. Forwarded ports of pods are at 127.0.0.1, so they would receive the
cookies of a page there. Browsers resolve names below `localhost` to the loopback address (RFC 6761, section 6.3).
"""

from __future__ import annotations

from typing import Final

LOCAL_HOST: Final = "vkgateway.localhost"
_SHOWN: Final = 100


def local_address(port: int | str) -> str:
    """Return the URL of the page on this machine at a port, without its path."""
    return f"http://{LOCAL_HOST}:{port}"


def is_local_host(host: str) -> bool:
    """Return whether a Host header names the page on this machine, at any port."""
    name, _, port = host.partition(":")
    return name.lower() == LOCAL_HOST and (not port or (port.isascii() and port.isdecimal()))


def wrong_host(host: str) -> tuple[str, str]:
    """Return the message for a request with another Host header, and the way out."""
    port = host.rpartition(":")[2]
    url = f"http://{LOCAL_HOST}{f':{port}' if port.isascii() and port.isdecimal() else ''}/ui/"
    return (
        f"The page is at {url}, not at {host[:_SHOWN]!r}, whose cookies every port of that host receives.",
        f"Open {url}. If the name has no address, add `127.0.0.1 {LOCAL_HOST}` to the file hosts of your machine. "
        f"A proxy in front must send `Host: {LOCAL_HOST}`, or the page needs page.cert.",
    )

"""A client that sends requests to an API server without a pause, and counts those that fail twice."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import ssl
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tests.e2e.cluster import Cluster

_PATH = "/api/v1/namespaces/default/configmaps?limit=1"
_PAUSE_SECONDS = 0.02


@dataclass
class RequestsLoop:
    """Requests of one client, which retries each once."""

    sent: int = 0
    retried: int = 0
    failures: list[str] = field(default_factory=list)


@contextlib.contextmanager
def requests_loop(cluster: Cluster) -> Iterator[RequestsLoop]:
    """Send requests within the block."""
    host, port, context = open_kubeconfig(cluster)
    loop, stop = RequestsLoop(), threading.Event()

    def run() -> None:
        with contextlib.closing(http.client.HTTPSConnection(host, port, context=context, timeout=10)) as connection:
            while not stop.wait(_PAUSE_SECONDS):
                loop.sent += 1
                if _send_request(connection):
                    loop.retried += 1
                    connection.close()
                    if problem := _send_request(connection):
                        loop.failures.append(problem)
                        connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield loop
    finally:
        stop.set()
        thread.join()


def _send_request(connection: http.client.HTTPSConnection) -> str:
    """Send a request, and return what is wrong with the answer; empty if nothing is."""
    try:
        connection.request("GET", _PATH)
        answer = connection.getresponse()
        answer.read()
    except (OSError, http.client.HTTPException) as error:
        return repr(error)
    return "" if answer.status == 200 else f"HTTP status {answer.status}"


def open_kubeconfig(cluster: Cluster) -> tuple[str, int, ssl.SSLContext]:
    """Return host, port and TLS settings of a kubeconfig with a client certificate."""
    config = json.loads(cluster.kubectl("config", "view", "--raw", "--minify", "-o", "json"))
    server, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    context = ssl.create_default_context(cadata=base64.b64decode(server["certificate-authority-data"]).decode())
    with tempfile.TemporaryDirectory() as folder:
        files = {"client-certificate-data": Path(folder) / "crt", "client-key-data": Path(folder) / "key"}
        for key, file in files.items():
            file.write_bytes(base64.b64decode(user[key]))
        crt, secret = files.values()
        context.load_cert_chain(crt, secret)
    url = urlsplit(server["server"])
    assert url.hostname is not None
    return url.hostname, url.port or 443, context

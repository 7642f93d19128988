"""Validating webhooks whose server is part of the tests."""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from tests.e2e.cluster import Document
from vkgateway.planes.pki import Authority

Review = Callable[[Document], str]
"""Returns why a request is refused; "" if it is allowed. The argument is the `request` of an AdmissionReview."""
_IDLE_SECONDS: Final = 120
"""An API server closes idle connections after 90 s. A server that closed them first could lose a request."""


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # an API server opens a connection for each of its concurrent requests


@contextlib.contextmanager
def serve_webhook(address: str, review: Review) -> Iterator[Document]:
    """Answer reviews at an address of this machine within the block, and yield the `clientConfig` of the webhook."""
    authority = Authority.create("webhook test")
    server = _Server((address, 0), _handler(review))
    server.socket = _server_context(authority, address).wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        bundle = base64.b64encode(authority.cert_pem).decode()
        yield {"url": f"https://{address}:{server.server_port}/", "caBundle": bundle}
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(review: Review) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = _IDLE_SECONDS

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
            refusal = review(request)
            response = {"uid": request["uid"], "allowed": not refusal, "status": {"message": refusal}}
            document = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
            body = json.dumps(document).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Log nothing."""

    return Handler


def _server_context(authority: Authority, address: str) -> ssl.SSLContext:
    pair = authority.issue("localhost", dns=("localhost",), ips=(address,), server=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        cert, key = Path(folder) / "cert.pem", Path(folder) / "key.pem"
        cert.write_bytes(pair.cert_pem)
        key.write_bytes(pair.key_pem)
        context.load_cert_chain(cert, key)
    return context

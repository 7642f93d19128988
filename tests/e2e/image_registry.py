"""A registry of container images for the real node, which answers slowly on demand."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import tarfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.e2e.cluster import Platform
from vkgateway_platform.embedded.realnode.images import Image, image_architecture

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"


@dataclass
class ImageRegistry:
    """Images by name without the registry (`train:1`), as the distribution specification serves them.

    See https://github.com/opencontainers/distribution-spec.
    """

    address: str = ""
    """HOST:PORT."""
    layer_seconds: float = 0.0
    """Delay of each layer."""
    private: str = ""
    """Repository that only a user with `password` may read."""
    password: str = "secret"
    _released: threading.Event = field(default_factory=threading.Event)
    _manifests: dict[tuple[str, str], bytes] = field(default_factory=dict)
    _blobs: dict[str, bytes] = field(default_factory=dict)
    _layers: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._released.set()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Answer no layer before the end of the block."""
        self._released.clear()
        try:
            yield
        finally:
            self._released.set()

    def add_image(self, name: str, image: Image) -> str:
        """Serve an image under a name, and return its reference."""
        with tarfile.open(fileobj=io.BytesIO(image.to_archive(architecture=image_architecture()))) as archive:
            files = {member.name: _read(archive, member) for member in archive.getmembers()}
        entry = json.loads(files["manifest.json"])[0]
        config, layers = files[entry["Config"]], [files[layer] for layer in entry["Layers"]]
        self._layers |= {self._add_blob(layer) for layer in layers}
        self._add_blob(config)
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": _descriptor(_CONFIG, config),
            "layers": [_descriptor(_LAYER, layer) for layer in layers],
        }
        data = json.dumps(manifest).encode()
        repository, _, tag = name.partition(":")
        self._manifests[repository, tag] = self._manifests[repository, _digest(data)] = data
        return f"{self.address}/{name}"

    @property
    def docker_config(self) -> str:
        """Content of a pull secret, as `kubectl create secret docker-registry` writes it."""
        return json.dumps({"auths": {self.address: {"username": "user", "password": self.password}}})

    def answer(self, path: str, authorization: str) -> tuple[int, str, bytes]:
        """Return status, content type and body of the answer to a request."""
        if path in ("/v2", "/v2/"):
            return 200, "application/json", b"{}"
        repository, _, rest = path.removeprefix("/v2/").partition("/")
        expected = base64.b64encode(f"user:{self.password}".encode()).decode()
        if repository == self.private and authorization != f"Basic {expected}":
            return 401, "application/json", b'{"errors": [{"code": "UNAUTHORIZED", "message": "who is there?"}]}'
        kind, _, reference = rest.partition("/")
        if kind == "manifests" and (repository, reference) in self._manifests:
            return 200, _MANIFEST, self._manifests[repository, reference]
        if kind == "blobs" and reference in self._blobs:
            if reference in self._layers:
                time.sleep(self.layer_seconds)
                self._released.wait()
            return 200, "application/octet-stream", self._blobs[reference]
        return 404, "application/json", b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}'

    def _add_blob(self, data: bytes) -> str:
        digest = _digest(data)
        self._blobs[digest] = data
        return digest


def _read(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    return file.read() if file is not None else b""


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _descriptor(kind: str, data: bytes) -> Mapping[str, object]:
    return {"mediaType": kind, "digest": _digest(data), "size": len(data)}


@contextlib.contextmanager
def serve_images(platform: Platform) -> Iterator[ImageRegistry]:
    """Yield a registry that the real node of a platform may use without TLS."""
    registry = ImageRegistry()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, kind, body = registry.answer(self.path, self.headers.get("Authorization", ""))
            self.send_response(status)
            self.send_header("Content-Type", kind)
            if status == 401:
                self.send_header("WWW-Authenticate", 'Basic realm="registry"')
            self.send_header("Content-Length", str(len(body)))
            if kind == _MANIFEST:
                self.send_header("Docker-Content-Digest", _digest(body))
            self.end_headers()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                if self.command != "HEAD":
                    self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815 - the name that http.server calls

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    host = str(platform.status()["address"])
    with ThreadingHTTPServer((host, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        registry.address = f"{host}:{server.server_address[1]}"
        folder = platform.data_dir / "node" / "registries" / registry.address
        folder.mkdir(parents=True)
        url = f"http://{registry.address}"
        (folder / "hosts.toml").write_text(f'server = "{url}"\n[host."{url}"]\ncapabilities = ["pull", "resolve"]\n')
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join()

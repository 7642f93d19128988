"""Client of the node's containerd: images are listed and imported with `ctr`."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from vkgateway.api.errors import UnavailableError
from vkgateway.planes.atomic_files import write_file
from vkgateway_platform.embedded.realnode.configs import CONTAINERD_SOCKET
from vkgateway_platform.embedded.realnode.host import ToolError, run_command
from vkgateway_platform.embedded.realnode.namespaces import NodeNamespaces

log = structlog.get_logger(__name__)

_LOAD_SECONDS = 600.0


@dataclass(frozen=True)
class Containerd:
    """The containerd in a node's namespaces; `ctr` is the path of its client. All methods block."""

    ctr: Path
    namespaces: NodeNamespaces

    def run_ctr(self, *arguments: str, timeout: float = 60.0) -> str:
        """Run the client in the namespace of Kubernetes, for at most `timeout` seconds; return its output."""
        command = (str(self.ctr), "--address", CONTAINERD_SOCKET, "-n", "k8s.io", *arguments)
        return run_command(*self.namespaces.enter_command(*command), timeout=timeout)

    def list_images(self) -> list[str]:
        """Return the names of the images. Raises `ToolError` if containerd does not answer."""
        # containerd also lists each image by its digest, which is not a name.
        return [name for name in self.run_ctr("images", "list", "--quiet").split() if not name.startswith("sha256:")]

    def load_archive(self, archive: Path) -> None:
        """Load the images of an archive (docker or OCI, tar); existing names are replaced.

        Raises `ToolError` if containerd rejects the archive.
        """
        self.run_ctr("images", "import", str(archive), timeout=_LOAD_SECONDS)

    def import_archives(self, archives: Mapping[str, Path], *, timeout: float = 60.0) -> None:
        """Import the archive of each image, and wait up to `timeout` seconds for containerd.

        An image whose archive has not changed since its last import is skipped.
        """
        present = self._wait_for_images(deadline=time.monotonic() + timeout)
        for name, path in archives.items():
            imported, digest = path.with_suffix(".imported"), hashlib.sha256(path.read_bytes()).hexdigest()[:16]
            if name not in present or not imported.exists() or imported.read_text() != digest:
                self.run_ctr("images", "import", str(path))
                write_file(imported, digest.encode())
                log.info("image imported", image=name)

    def _wait_for_images(self, *, deadline: float) -> list[str]:
        while True:
            try:
                return self.list_images()
            except ToolError as error:
                if time.monotonic() > deadline:
                    raise UnavailableError(f"containerd does not answer: {error}") from error
                time.sleep(0.2)

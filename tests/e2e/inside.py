"""Network view of a pod: this machine's Python, in the pod's network namespace and with its resolver files."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.e2e.cluster import Document
from tests.support.machine import patience

_ANSWER_SECONDS = 5
"""Seconds in which a server that can be reached answers."""
_SCRIPT = 'mount --bind "$0/resolv.conf" /etc/resolv.conf; mount --bind "$0/hosts" /etc/hosts; exec "$@"'

_ASK = """
import json, socket, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = sorted({entry[4][0] for entry in socket.getaddrinfo(name, None, socket.AF_INET)})
    except OSError:
        found[name] = []
print(json.dumps(found))
"""
_FETCH = """
import sys, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
print(opener.open(sys.argv[1], timeout=float(sys.argv[2])).read().decode().strip())
"""
_HANDSHAKE = """
import json, socket, ssl, sys
host, port, ca, seconds = sys.argv[1:]
context = ssl.create_default_context(cafile=ca)
with socket.create_connection((host, int(port)), timeout=float(seconds)) as link:
    with context.wrap_socket(link, server_hostname=host) as line:
        print(json.dumps(line.getpeercert()["subjectAltName"]))
"""


class PodNetwork:
    """Running pod. `below` is its compute pod."""

    def __init__(self, below: Document) -> None:
        self._uid = below["metadata"]["uid"]
        self._pid = next(_pod_processes(self._uid))

    def resolve(self, *names: str) -> dict[str, list[str]]:
        """Return IPv4 addresses by name, from the pod's resolver configuration. Unknown names have none."""
        found: dict[str, list[str]] = json.loads(self._run_python(_ASK, *names))
        return found

    def name_servers(self) -> list[str]:
        """Return the pod's name servers."""
        lines = Path(f"/proc/{self._pid}/root/etc/resolv.conf").read_text().splitlines()
        return [line.split()[1] for line in lines if line.startswith("nameserver")]

    def fetch(self, url: str) -> str:
        """Return a server's response over HTTP."""
        return self._run_python(_FETCH, url, _answer_limit()).strip()

    def can_reach(self, url: str) -> bool:
        """Return whether a server responds."""
        return self._try_python(_FETCH, url, _answer_limit()).returncode == 0

    def certificate_names(self, host: str, port: int, *, ca: str) -> list[Any]:
        """Perform a TLS handshake with a server of that name, trusting `ca` only, and return the names in its
        certificate.
        """
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(ca)
            file.flush()
            found: list[Any] = json.loads(self._run_python(_HANDSHAKE, host, str(port), file.name, _answer_limit()))
        return found

    def _run_python(self, code: str, *args: str) -> str:
        done = self._try_python(code, *args)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _try_python(self, code: str, *args: str) -> subprocess.CompletedProcess[str]:
        files = Path(f"/proc/{self._pid}/root/etc")
        with tempfile.TemporaryDirectory() as folder:
            for name in ("resolv.conf", "hosts"):
                Path(folder, name).write_text((files / name).read_text())
            enter = ["nsenter", f"--net=/proc/{self._pid}/ns/net", "unshare", "--mount", "sh", "-ec", _SCRIPT, folder]
            command = [*enter, sys.executable, "-c", code, *args]
            return subprocess.run(command, capture_output=True, text=True, timeout=patience(60), check=False)


def _pod_processes(uid: str) -> Any:
    """Return the processes in a pod's control groups, except the one that holds its network and has no files."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                is_member = f"pod{uid}" in (folder / "cgroup").read_text()
                if is_member and (folder / "root/etc/hosts").exists():
                    yield int(folder.name)
            except OSError:
                continue


def _answer_limit() -> str:
    """Return the seconds that a client waits for an answer, as text."""
    return f"{patience(_ANSWER_SECONDS):.0f}"

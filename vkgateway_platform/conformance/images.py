"""The suite's images, built on this machine from a Debian root and Kubernetes' test programs."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from vkgateway.planes.pki import Authority
from vkgateway_platform.embedded.realnode import debian
from vkgateway_platform.embedded.realnode.images import ImageEntry, image_architecture
from vkgateway_platform.embedded.realnode.layers import Layer, LayeredImage, write_archive, write_layer

PROGRAMS: Final = ("agnhost", "nonewprivs", "sample-apiserver", "etcd")
"""Programs in the images in addition to Debian's packages."""

PACKAGES: Final = (
    "bash",
    "bind9-dnsutils",
    "busybox",
    "curl",
    "iproute2",
    "iputils-ping",
    "netcat-openbsd",
    "nginx",
)

_COMMANDS: Final = (
    # Shells other than bash drop variables with dots in their names, which some cases check.
    'ln -sf bash "$1/usr/bin/sh"',
    'for name in $(chroot "$1" busybox --list); do'
    ' chroot "$1" sh -c "command -v $name" >/dev/null || ln -s /bin/busybox "$1/usr/bin/$name"; done',
    # Users that cases rely on.
    'echo "user-defined-in-image:x:1000:1000::/home/user-defined-in-image:/bin/sh" >>"$1/etc/passwd"',
    'printf "user-defined-in-image:x:1000:\\ngroup-defined-in-image:x:50000:user-defined-in-image\\n" >>"$1/etc/group"',
    'printf "server { listen 80; root /usr/share/nginx/html; index index.html; }\\n"'
    ' >"$1/etc/nginx/sites-available/default"',
    'ln -sf /dev/stdout "$1/var/log/nginx/access.log"; ln -sf /dev/stderr "$1/var/log/nginx/error.log"',
)
"""Shell commands that make Debian's root match the original images where cases depend on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ImageKind:
    """The command of an image, and its own small files."""

    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    user: str = ""
    files: Mapping[str, bytes] | None = None


_AGNHOST: Final = _ImageKind(entrypoint=("/agnhost",), command=("pause",))
_SHELL: Final = _ImageKind(command=("/bin/sh",))

IMAGE_KINDS: Final[Mapping[str, _ImageKind]] = {
    "agnhost": _AGNHOST,
    "busybox": _SHELL,
    "etcd": _ImageKind(entrypoint=("/usr/local/bin/etcd",)),
    "glibc-dns-testing": _SHELL,
    "jessie-dnsutils": _SHELL,
    "httpd": _ImageKind(command=("nginx", "-g", "daemon off;")),
    "kitten": _ImageKind(
        entrypoint=("/agnhost",), command=("test-webserver",), files={"data.json": b'{"image": "kitten.jpg"}\n'}
    ),
    "nautilus": _ImageKind(
        entrypoint=("/agnhost",), command=("test-webserver",), files={"data.json": b'{"image": "nautilus.jpg"}\n'}
    ),
    "nginx": _ImageKind(command=("nginx", "-g", "daemon off;")),
    "nonewprivs": _ImageKind(command=("nnp",)),
    "nonroot": _ImageKind(command=("/bin/sh",), user="1234"),
    "pause": _ImageKind(command=("sleep", "2147483647")),
    "perl": _ImageKind(command=("perl",)),
    "sample-apiserver": _ImageKind(entrypoint=("/sample-apiserver",)),
}
"""Kind of each image by name, without registry and tag; other images are not built."""


def image_kind(image: str) -> _ImageKind | None:
    """Return the kind of an image by the last part of its name; None if it is not built."""
    path, _, _ = image.rpartition(":")
    folder, _, name = path.rpartition("/")
    return None if folder.endswith("-test") else IMAGE_KINDS.get(name)


def buildable_images(images: Iterable[str]) -> tuple[str, ...]:
    """Return the suite's images that can be built here, without private ones and those of storage drivers."""
    return tuple(image for image in images if image_kind(image) is not None)


def root_archive(cache: Path) -> Path:
    """Return the path of Debian's root in the program cache, shared by all platforms; it changes with the content.

    Raises:
        UnavailableError: this machine does not run Debian or a derivative.
    """
    recipe = msgspec.json.encode([debian.release_name(), image_architecture(), PACKAGES, _COMMANDS])
    return cache / "images" / f"{hashlib.sha256(recipe).hexdigest()[:12]}-conformance-root.tar"


def build_images(archive: Path, images: Sequence[str], *, programs: Mapping[str, Path], root: Path) -> None:
    """Write the images into one archive; `root_archive` is Debian's root, built if it is missing.

    `programs` maps each of PROGRAMS to its file.

    Raises:
        UnavailableError, ToolError: Debian's packages are not available.
    """
    if not root.exists():
        debian.make_root(root, packages=PACKAGES, commands=_COMMANDS)
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as name:
        folder = Path(name)
        shared = (Layer.from_file(root), write_layer(folder / "programs.tar", _program_files(programs)))
        built = [_build_image(image, shared, folder=folder) for image in images]
        write_archive(archive, built, architecture=image_architecture())


def _build_image(name: str, shared: Sequence[Layer], *, folder: Path) -> LayeredImage:
    kind = image_kind(name)
    assert kind is not None, name
    layers = list(shared)
    if kind.files:
        own_files = folder / f"{name.replace('/', '-')}.tar"
        layers.append(write_layer(own_files, [ImageEntry(path, 0o644, data) for path, data in kind.files.items()]))
    return LayeredImage(name=name, layers=layers, entrypoint=kind.entrypoint, command=kind.command, user=kind.user)


def _program_files(programs: Mapping[str, Path]) -> list[ImageEntry | tuple[ImageEntry, Path]]:
    certificate = Authority.create("localhost").issue("localhost", dns=("localhost",), server=True)
    return [
        (ImageEntry("agnhost"), programs["agnhost"]),
        ImageEntry("agnhost-2", 0o777, target="agnhost"),
        ImageEntry("uploads", 0o777),
        ImageEntry("localhost.crt", 0o644, certificate.cert_pem),
        ImageEntry("localhost.key", 0o644, certificate.key_pem),
        (ImageEntry("sample-apiserver"), programs["sample-apiserver"]),
        (ImageEntry("usr/local/bin/etcd"), programs["etcd"]),
        # Set-uid and set-gid bits: a case checks that a pod can forbid privilege escalation.
        (ImageEntry("usr/local/bin/nnp", 0o6755), programs["nonewprivs"]),
    ]

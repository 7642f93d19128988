"""Copies a virtual environment, its Python interpreter and their shared libraries into an empty root file system.

The build stage of the Containerfile runs this script, so it needs only the standard library. It reads ELF headers and
doesn't run ldd(1), which would execute the files.
"""

from __future__ import annotations

import argparse
import compileall
import os
import py_compile
import shutil
import struct
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import NamedTuple

USER = 65532
"""User and group of the gateway in the image."""
DATA_DIR = "var/lib/vkgateway"

_UNUSED_STDLIB = frozenset(
    {
        *("__pycache__", "dist-packages", "distutils", "ensurepip", "idlelib", "lib2to3", "pydoc_data"),
        *("site-packages", "test", "tests", "tkinter", "turtledemo", "venv"),
    }
)
"""Entries of the standard library that a server does not need."""
_STDLIB_TESTS = frozenset({"idle_test", "test", "tests"})
_UNUSED_FOLDERS = frozenset({"__pycache__", "include", "test", "testing", "tests"})
_UNUSED_SUFFIXES = (".a", ".c", ".cpp", ".h", ".hpp", ".js", ".o", ".pxd", ".pxi", ".pyc", ".pyi", ".pyx", ".svg")
_REQUIRED_FOLDERS = ("numpy/testing",)
"""Folders that a package imports, whatever their name says."""
_LIBRARY_FOLDERS = ("lib/{machine}", "usr/lib/{machine}", "usr/local/lib", "lib64", "usr/lib64", "lib", "usr/lib")
_LOADED_AT_RUN_TIME = ("libgcc_s.so.1",)
"""Libraries that no ELF header names: glibc loads this one to end a thread."""
_CONFIGURATION = ("etc/ssl/openssl.cnf", "etc/ssl/certs/ca-certificates.crt")
_SYSTEM_FILES = {
    "etc/passwd": (f"root:x:0:0:root:/:/sbin/nologin\nvkgateway:x:{USER}:{USER}::/{DATA_DIR}:/sbin/nologin\n"),
    "etc/group": f"root:x:0:\nvkgateway:x:{USER}:\n",
    "etc/nsswitch.conf": "hosts: files dns\n",
}
_FOLDERS = {"tmp": 0o1777, DATA_DIR: 0o755, "proc": 0o555, "sys": 0o555, "dev": 0o755}
"""Empty folders and their modes."""
_PACKAGE_FIELDS = ("Package", "Status", "Architecture", "Source", "Version", "Maintainer")

_ELF_64_BIT = b"\x7fELF\x02"
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_DYNAMIC_ENTRY = struct.Struct("<qQ")
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_RPATH, _DT_RUNPATH = 0, 1, 5, 15, 29


class _Segment(NamedTuple):
    """Program header of a 64-bit ELF file, in the order of its fields: elf(5)."""

    kind: int
    flags: int
    offset: int
    address: int
    physical_address: int
    file_size: int
    memory_size: int
    alignment: int


@dataclass(frozen=True, slots=True)
class ElfFile:
    """Dependencies of a 64-bit little-endian ELF file."""

    interpreter: str = ""
    """Path of the dynamic loader; empty for a library."""
    needed: tuple[str, ...] = ()
    """Names of shared libraries."""
    search_path: tuple[str, ...] = ()
    """Folders to search first; may contain `$ORIGIN`, the folder of the file."""


def read_elf(path: Path) -> ElfFile | None:
    """Return the dependencies of an ELF file; None for a file of another type."""
    with path.open("rb") as file:
        if file.read(len(_ELF_64_BIT)) != _ELF_64_BIT:
            return None
    data = path.read_bytes()
    segments = list(_read_segments(data))
    tags = _read_dynamic_tags(data, segments)
    strings = _find_string_table(tags, segments)
    return ElfFile(
        interpreter=next((_read_text(data, one.offset) for one in segments if one.kind == _PT_INTERP), ""),
        needed=tuple(_read_text(data, strings + at) for at in tags.get(_DT_NEEDED, ())),
        search_path=tuple(
            folder
            for tag in (_DT_RUNPATH, _DT_RPATH)
            for at in tags.get(tag, ())
            for folder in _read_text(data, strings + at).split(":")
        ),
    )


def _read_segments(data: bytes) -> Iterator[_Segment]:
    (table,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    for index in range(count):
        yield _Segment(*_PROGRAM_HEADER.unpack_from(data, table + index * size))


def _read_dynamic_tags(data: bytes, segments: list[_Segment]) -> dict[int, list[int]]:
    tags: dict[int, list[int]] = {}
    for segment in segments:
        if segment.kind == _PT_DYNAMIC:
            for tag, value in _DYNAMIC_ENTRY.iter_unpack(data[segment.offset : segment.offset + segment.file_size]):
                if tag == _DT_NULL:
                    break
                tags.setdefault(tag, []).append(value)
    return tags


def _find_string_table(tags: Mapping[int, list[int]], segments: list[_Segment]) -> int:
    """Return the offset of the string table in the file; 0 without one."""
    for address in tags.get(_DT_STRTAB, ()):
        for one in segments:
            if one.kind == _PT_LOAD and one.address <= address < one.address + one.file_size:
                return one.offset + address - one.address
    return 0


def _read_text(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode()


class RootCopy:
    """Selected files of the root file system `source`, copied to the same paths in `target`.

    Paths are relative to the root.
    """

    def __init__(self, source: Path, target: Path, *, machine: str) -> None:
        self.source = source
        self.target = target
        self.copied: set[str] = set()
        self.missing_libraries: set[str] = set()
        """Each with the file that needs it: `usr/bin/tool: libtool.so.1`."""
        self._library_folders = [folder.format(machine=machine) for folder in _LIBRARY_FOLDERS]

    def copy_file(self, path: str) -> None:
        """Copy a file with the symbolic links on its path and the shared libraries that it needs."""
        path = self._copy_links(path.lstrip("/"))
        if path in self.copied:
            return
        self.copied.add(path)
        source, target = self.source / path, self.target / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        is_executable = source.stat().st_mode & 0o100 or ".so" in source.name
        target.chmod(0o755 if is_executable else 0o644)
        self._copy_dependencies(path)

    def copy_if_present(self, path: str) -> None:
        """Copy a file if the source has it."""
        if (self.source / path).exists():
            self.copy_file(path)

    def copy_library(self, name: str) -> None:
        """Copy a shared library from the system's library folders if the source has it."""
        found = self._find_library(name, self._library_folders)
        if found:
            self.copy_file(found)

    def write_text(self, path: str, text: str) -> None:
        """Write a text file to the target."""
        file = self.target / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def _copy_links(self, path: str) -> str:
        """Return the path without symbolic links, after re-creating these links in the target."""
        while (link := self._first_link(path)) is not None:
            destination = os.readlink(self.source / link)
            copy = self.target / link
            if not copy.is_symlink():
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.symlink_to(destination)
            rest = os.path.relpath(path, link)
            path = os.path.normpath(os.path.join("/", os.path.dirname(link), destination, rest)).lstrip("/")
        return path

    def _first_link(self, path: str) -> str | None:
        prefixes = [*reversed(PurePath(path).parents), PurePath(path)]
        return next((str(one) for one in prefixes if (self.source / one).is_symlink()), None)

    def _copy_dependencies(self, path: str) -> None:
        elf = read_elf(self.source / path)
        if elf is None:
            return
        if elf.interpreter:
            self.copy_file(elf.interpreter)
        origin = os.path.dirname(path)
        first = [one.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", origin).lstrip("/") for one in elf.search_path]
        for name in elf.needed:
            found = self._find_library(name, [*first, *self._library_folders])
            if found:
                self.copy_file(found)
            else:
                self.missing_libraries.add(f"{path}: {name}")

    def _find_library(self, name: str, folders: list[str]) -> str | None:
        paths = (os.path.normpath(f"{folder}/{name}") for folder in folders)
        return next((path for path in paths if (self.source / path).exists()), None)


def find_stdlib_files(folder: Path) -> Iterator[Path]:
    """Return the files of the standard library that a server needs."""
    for entry in sorted(folder.iterdir()):
        if entry.name in _UNUSED_STDLIB or entry.name.startswith("config-"):
            continue
        for path in _find_files(entry):
            is_unused = path.suffix == ".pyc" or path.name.startswith("_tkinter.")
            if not is_unused and not _STDLIB_TESTS & set(path.relative_to(folder).parts):
                yield path


def find_package_files(folder: Path) -> Iterator[Path]:
    """Return the files of installed packages that run: no tests, headers or type stubs.

    Every file of vkgateway is kept.
    """
    for path in _find_files(folder):
        inner = path.relative_to(folder)
        if inner.parts[0] == "vkgateway":
            if path.suffix != ".pyc":
                yield path
        elif not _is_unused(inner):
            yield path


def _is_unused(path: Path) -> bool:
    if path.name.endswith(_UNUSED_SUFFIXES):
        return True
    return bool(_UNUSED_FOLDERS & set(path.parts[:-1])) and not str(path).startswith(_REQUIRED_FOLDERS)


def _find_files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    elif path.is_dir():
        for entry in sorted(path.iterdir()):
            yield from _find_files(entry)


def record_packages(root: RootCopy) -> None:
    """Record the Debian packages of the copied files, for vulnerability scanners, with their licenses.

    The format is that of distroless images: a file for each package in /var/lib/dpkg/status.d.
    """
    status = root.source / "var/lib/dpkg/status"
    if not status.exists():
        return
    copied = {f"/{path}" for path in root.copied}
    # A package may list /lib/FILE where the merged file system has /usr/lib/FILE.
    copied |= {path.removeprefix("/usr") for path in copied}
    for stanza in status.read_text().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in stanza.splitlines() if ": " in line and line[0] != " ")
        if "Package" in fields and not copied.isdisjoint(_list_package(root.source, fields)):
            _record_package(root, fields)


def _list_package(source: Path, fields: Mapping[str, str]) -> Iterator[str]:
    """Return the paths of a package."""
    name = fields["Package"]
    for stem in (name, f"{name}:{fields.get('Architecture')}"):
        file = source / f"var/lib/dpkg/info/{stem}.list"
        if file.exists():
            yield from file.read_text().splitlines()


def _record_package(root: RootCopy, fields: Mapping[str, str]) -> None:
    name = fields["Package"]
    lines = [f"{field}: {fields[field]}\n" for field in _PACKAGE_FIELDS if field in fields]
    root.write_text(f"var/lib/dpkg/status.d/{name}", "".join(lines))
    root.copy_if_present(f"usr/share/doc/{name}/copyright")


def copy_python(root: RootCopy, venv: Path) -> list[Path]:
    """Copy the running interpreter and the virtual environment; return their folders of modules."""
    interpreter = os.path.realpath(sys.executable)
    stdlib = Path(sysconfig.get_path("stdlib"))
    packages = venv / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    root.copy_file(interpreter)
    for path in (*find_stdlib_files(stdlib), *find_package_files(packages)):
        root.copy_file(str(path))
    for name in ("pyvenv.cfg", "bin/vkgateway"):
        root.copy_file(str(venv / name))
    for name in ("python", "python3"):
        (root.target / str(venv).lstrip("/") / "bin" / name).symlink_to(interpreter)
    return [stdlib, packages]


def compile_modules(target: Path, folders: list[Path]) -> None:
    """Compile the copied modules, because the image's root file system is read-only.

    Hashes in place of timestamps make the result the same in each build.
    """
    for folder in folders:
        compileall.compile_dir(
            target / str(folder).lstrip("/"),
            stripdir=str(target),
            prependdir="/",
            quiet=1,
            workers=1,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )


def write_system_files(root: RootCopy) -> None:
    """Write the user list, the name service's configuration and the empty folders."""
    for path, text in _SYSTEM_FILES.items():
        root.write_text(path, text)
    for path, mode in _FOLDERS.items():
        folder = root.target / path
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(mode)
    os.chown(root.target / DATA_DIR, USER, USER)


def main() -> None:
    """Collect the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", type=Path, required=True, help="virtual environment with vkgateway")
    parser.add_argument("--out", type=Path, required=True, help="root file system to write")
    options = parser.parse_args()
    root = RootCopy(Path("/"), options.out, machine=f"{os.uname().machine}-linux-gnu")
    modules = copy_python(root, options.venv)
    for name in _LOADED_AT_RUN_TIME:
        root.copy_library(name)
    for path in _CONFIGURATION:
        root.copy_if_present(path)
    record_packages(root)
    write_system_files(root)
    compile_modules(options.out, modules)
    if root.missing_libraries:
        sys.exit(
            "shared libraries not found; add their packages to the base:\n" + "\n".join(sorted(root.missing_libraries))
        )


if __name__ == "__main__":
    main()

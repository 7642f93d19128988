"""Cached reads of a cluster: the first read starts a `kubectl get --watch`, which runs until the wait ends.

A kubectl costs about 60 ms of CPU, whether it prints the current objects once or also each change.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import IO, Any

from tests.support.machine import patience

Document = dict[str, Any]

_PATIENCE = 60.0
"""Seconds within which kubectl must have printed all current objects."""
_OPTIONS = ("-o", "json", "--watch", "--output-watch-events", "-v=6")
_CHANGES_FOLLOW = re.compile(rb"watch=true.*200 OK")
"""Log line about the response to kubectl's second request. All current objects were printed before it."""


class Watch:
    """Running kubectl, and the objects that it has printed."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """Start kubectl with the arguments of a `kubectl get` of one kind, without names."""
        self._what = " ".join(argv)
        self._process = subprocess.Popen(
            [*argv, *_OPTIONS],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
        )
        for pipe in (self._out, self._err):
            os.set_blocking(pipe.fileno(), False)
        self._objects: dict[tuple[str, str], Document] = {}
        self._line = self._log = b""
        self.ended = False

    @property
    def _out(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def _err(self) -> IO[bytes]:
        assert self._process.stderr is not None
        return self._process.stderr

    @property
    def files(self) -> list[int]:
        """Return the file descriptors that become readable with news."""
        return [] if self.ended else [self._out.fileno(), self._err.fileno()]

    def objects(self) -> list[Document]:
        """Return the current objects in the order of `kubectl get`, once kubectl has printed all of them."""
        deadline = time.monotonic() + patience(_PATIENCE)
        self.process_output()
        while not _CHANGES_FOLLOW.search(self._log):
            remaining = deadline - time.monotonic()
            if self.ended or remaining < 0:
                raise AssertionError(f"{self._what}: {self._log.decode(errors='replace')}")
            select.select(self.files, [], [], remaining)
            self.process_output()
        return [document for _, document in sorted(self._objects.items(), key=lambda entry: "/".join(entry[0]))]

    def process_output(self) -> None:
        """Process the output since the last call.

        The log is read first. If it says that changes follow, the other pipe holds all earlier objects.
        """
        if self.ended:
            return
        log, _ = _read(self._err)
        self._log += log
        output, ended = _read(self._out)
        *lines, self._line = (self._line + output).split(b"\n")
        for line in lines:
            event = json.loads(line)
            ended = ended or event["type"] == "ERROR"
            self._apply_event(event["type"], event["object"])
        self.ended = ended
        if ended:
            self._log += _read(self._err)[0]

    def _apply_event(self, change: str, document: Document) -> None:
        metadata = document["metadata"]
        key = (metadata.get("namespace", ""), metadata.get("name", ""))
        if change == "DELETED":
            self._objects.pop(key, None)
        elif change != "ERROR":
            self._objects[key] = document

    def close(self) -> None:
        """Stop kubectl."""
        self._process.kill()
        self._process.wait()
        self._out.close()
        self._err.close()


def _read(pipe: IO[bytes]) -> tuple[bytes, bool]:
    """Return the contents of a pipe, and whether it is closed."""
    found: list[bytes] = []
    with contextlib.suppress(BlockingIOError):
        while part := os.read(pipe.fileno(), 1 << 16):
            found.append(part)
        return b"".join(found), True
    return b"".join(found), False


class Watching:
    """Watches of one wait: one for each kind of read."""

    def __init__(self) -> None:
        """Start without watches."""
        self._watches: dict[tuple[str, ...], Watch] = {}

    def objects(self, argv: tuple[str, ...], env: Mapping[str, str] | None = None) -> list[Document]:
        """Return the current objects. A watch that the server ended is restarted."""
        watch = self._watches.get(argv)
        if watch is not None:
            watch.process_output()
        if watch is None or watch.ended:
            self._end(argv)
            watch = self._watches[argv] = Watch(argv, env)
        return watch.objects()

    def pause(self, seconds: float) -> None:
        """Wait until something changes, at most for these seconds."""
        files = [file for watch in self._watches.values() for file in watch.files]
        if files:
            select.select(files, [], [], seconds)
        else:
            time.sleep(seconds)
        for watch in self._watches.values():
            watch.process_output()

    def _end(self, argv: tuple[str, ...]) -> None:
        if argv in self._watches:
            self._watches.pop(argv).close()

    def close(self) -> None:
        """Stop all watches."""
        for argv in list(self._watches):
            self._end(argv)


_current: ContextVar[Watching | None] = ContextVar("watching", default=None)


@contextlib.contextmanager
def watching() -> Iterator[Watching]:
    """Answer reads of clusters from watches until the block ends."""
    watches = Watching()
    token = _current.set(watches)
    try:
        yield watches
    finally:
        _current.reset(token)
        watches.close()


def is_watched(args: Sequence[str]) -> bool:
    """Return whether a watch answers these arguments of `kubectl get`: within such a block, and for one kind."""
    return _current.get() is not None and _field_selector(args) is not None


def get_watched(kubectl: Sequence[str], args: Sequence[str], env: Mapping[str, str]) -> Document | None:
    """Return the result of `kubectl get`: a list, the named object, or None if it does not exist."""
    block, selected = _current.get(), _field_selector(args)
    assert block is not None
    assert selected is not None
    options, name = selected
    found = block.objects((*kubectl, "get", *options), os.environ | env)
    return next(iter(found), None) if name else {"items": found}


def _field_selector(args: Sequence[str]) -> tuple[tuple[str, ...], str] | None:
    """Return the arguments with a field selector in place of a name, and the name.

    None: several kinds or names.

    A selector also matches an object that does not exist yet. With a name, kubectl misses changes between its two
    requests.
    """
    kind, *rest = args
    name = rest.pop(0) if rest and not rest[0].startswith("-") else ""
    if "," in kind or "/" in kind or (rest and not rest[0].startswith("-")):
        return None
    return (kind, *(["--field-selector", f"metadata.name={name}"] if name else []), *rest), name

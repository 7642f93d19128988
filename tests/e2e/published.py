"""Test data that Kubernetes publishes in its Go modules, downloaded as the programs' sources are."""

from __future__ import annotations

import asyncio
import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from vkgateway_platform.binaries.cache import Cache
from vkgateway_platform.binaries.go_toolchain import find_go
from vkgateway_platform.binaries.subprocesses import run_program


@cache
def module_folder(module: str, version: str) -> Path:
    """Return the directory of a Go module's release (`0.36.3`) in Go's cache, downloaded if missing."""
    return asyncio.run(_download(f"{module}@v{version}"))


async def _download(module: str) -> Path:
    go = await find_go(Cache(Cache.default_root()), report=print)
    with TemporaryDirectory() as folder:
        argv = [str(go.command), "mod", "download", "-json", module]
        code, lines = await run_program(argv, env=go.env, cwd=Path(folder))
    text = "\n".join(lines)
    assert code == 0, text
    return Path(json.loads(text[text.index("{") : text.rindex("}") + 1])["Dir"])

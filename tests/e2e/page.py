"""A browser without a screen: it opens links of `vkgateway ui`, signs in, and reads the page's documents."""

from __future__ import annotations

import contextlib
import http.cookiejar
import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.e2e.cluster import VKGATEWAY, Document, Platform
from tests.support.machine import patience
from vkgateway.page.cookies import KEY_HEADER
from vkgateway.page.local_host import LOCAL_HOST


class Browser:
    """Browser that keeps cookies; it was opened with a link."""

    def __init__(self, link: str) -> None:
        parts = urlsplit(link)
        # Browsers resolve names below localhost themselves, the C library of most machines does not.
        self._headers = {"Host": parts.netloc} if parts.hostname == LOCAL_HOST else {}
        self.root = f"{parts.scheme}://{f'127.0.0.1:{parts.port}' if self._headers else parts.netloc}/ui/"
        self.given = {key: values[0] for key, values in parse_qs(parts.fragment).items()}
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))

    def sign_in(self, **given: str) -> int:
        """Sign in with the token of the link, or with another, and return the HTTP status."""
        body = json.dumps({"token": self.given.get("token", ""), "tenant": self.given.get("tenant", "")} | given)
        status, session = self.read("api/session", body=body)
        if status == 200:
            self._headers[KEY_HEADER] = session["key"]
        return status

    def read(self, path: str, *, body: str | None = None, cookies: bool = True) -> tuple[int, Any]:
        """Return the HTTP status and the answer."""
        headers = self._headers | ({"Content-Type": "application/json"} if body is not None else {})
        request = urllib.request.Request(self.root + path, data=body and body.encode(), headers=headers)  # type: ignore[arg-type]
        opener = self._opener if cookies else urllib.request.build_opener()
        try:
            with opener.open(request, timeout=patience(30)) as answer:
                text = answer.read().decode()
                return answer.status, json.loads(text) if path.startswith("api/") else text
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())
        except OSError:  # the gateway restarts
            return 0, None

    def state(self) -> Document:
        """Return the document of the reader."""
        status, document = self.read("api/state")
        assert status == 200, document
        return dict(document)


@contextlib.contextmanager
def open_page(platform: Platform, *options: str) -> Iterator[Browser]:
    """Yield a browser that opened the link of `vkgateway ui`, while the command forwards a port if it has to."""
    command = (*VKGATEWAY, "ui", "--no-open", *options)
    env = os.environ | {"VKGATEWAY_DATA_DIR": str(platform.data_dir)} | platform.environment
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        link = process.stdout.readline().strip()
        try:
            assert link, f"{' '.join(command)} printed no link"
            yield Browser(link)
        finally:
            process.terminate()

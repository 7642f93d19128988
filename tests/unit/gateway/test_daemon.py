"""Tests of what the daemon itself does beside its gateway."""

from __future__ import annotations

import asyncio
import ssl

import pytest

from vkgateway.controlplane.pki import Authority
from vkgateway.gateway import daemon


async def test_a_renewal_that_fails_is_followed_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    renewals: list[str] = []
    twice = asyncio.Event()

    def load(_context: ssl.SSLContext, *, cert: bytes, key: bytes) -> None:
        renewals.append("tried")
        if len(renewals) == 1:
            raise OSError("no space left on device")
        twice.set()

    monkeypatch.setattr(daemon, "RENEW_SECONDS", 0.0)
    monkeypatch.setattr(daemon, "load_identity", load)
    async with daemon.serving(Authority.create("kubelets"), "127.0.0.1"), asyncio.timeout(30):
        await twice.wait()

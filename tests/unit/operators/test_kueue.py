"""Kueue outside a cluster: definitions without conversion, its configuration, and its certificate."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from operators import kueue


def definition(*versions: str) -> str:
    return yaml.safe_dump({"spec": {"versions": [{"name": version, "served": True} for version in versions]}})


def test_only_one_version_is_served(tmp_path: Path) -> None:
    (tmp_path / "crds").mkdir()
    (tmp_path / "crds/a.yaml").write_text(definition("v1beta1", "v1beta2"))
    (tmp_path / "crds/b.yaml").write_text(definition("v1alpha1"))
    many, one = kueue.read_definitions(tmp_path, webhooks=9)
    assert [(each["name"], each["served"]) for each in many["spec"]["versions"]] == [
        ("v1beta1", False),
        ("v1beta2", True),
    ]
    assert [each["served"] for each in one["spec"]["versions"]] == [True]
    assert many["spec"]["conversion"]["webhook"]["clientConfig"] == {"url": "https://127.0.0.1:9/convert"}


@pytest.mark.parametrize(("rate", "limits"), [(None, None), (100, {"qps": 100, "burst": 200})])
def test_configuration_limits_requests(tmp_path: Path, rate: int | None, limits: object) -> None:
    argv = kueue.prepare_controller(Path("/programs"), tmp_path, webhooks=1, health=2, rate=rate)
    settings = yaml.safe_load((tmp_path / "settings.yaml").read_text())
    assert argv[:2] == ("/programs/kueue", f"--config={tmp_path}/settings.yaml")
    assert settings.get("clientConnection") == limits
    assert settings["webhook"] == {"host": "127.0.0.1", "port": 1, "certDir": str(tmp_path / "certificates")}


def test_certificate_is_where_the_controller_expects_it(tmp_path: Path) -> None:
    kueue.mount_certificate(tmp_path, {"tls.crt": "eA=="})
    assert (tmp_path / "certificates/tls.crt").read_bytes() == b"x"


def test_expected_secret_is_in_the_expected_namespace() -> None:
    namespace, secret, *webhooks = kueue.expected_objects()
    assert secret["metadata"]["namespace"] == namespace["metadata"]["name"] == kueue.NAMESPACE
    assert [each["webhooks"] for each in webhooks] == [[], []]

"""Parameters of the driver `kubernetes`: images, credentials and scheduling of its pods."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.controlplane.drivers.test_kubernetes_driver import NAMESPACE, ManagementWorld, start_world
from tests.unit.controlplane.test_provisioner import tenant
from vkgateway.api.errors import InputError, UnavailableError
from vkgateway.kube.resources import SECRETS
from vkgateway.planes.drivers.kubernetes.parameters import Parameters, parse_parameters

DIGEST = "sha256:" + "a" * 64
REFERENCE = Path(__file__).parents[4] / "docs" / "reference" / "kubernetes-driver.md"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ManagementWorld]:
    async with start_world(tmp_path) as world:
        yield world


def test_a_digest_pins_the_image_of_its_tag_only() -> None:
    found = parse_parameters({"registry": "mirror.example", "imageDigests": {"kube-scheduler:v1.36.3": DIGEST}})
    assert found.component_image("scheduler", "1.36.3") == f"mirror.example/kube-scheduler:v1.36.3@{DIGEST}"
    assert found.component_image("scheduler", "1.35.1") == "mirror.example/kube-scheduler:v1.35.1"
    assert found.name_server_image.startswith("mirror.example/coredns/coredns:v")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"imageDigests": {"kube-scheduler": DIGEST}}, "'kube-scheduler': .* is not an image with its digest"),
        ({"imageDigests": {"kube-scheduler:v1.36.3": "sha256:1"}}, "'sha256:1' is not an image with its digest"),
        ({"tolerations": [{"key": "gpu", "effect": "Never"}]}, r"'Never'.*tolerations\[0\]\.effect"),
        ({"tolerations": [{"keys": "gpu"}]}, "unknown field `keys`"),
        ({"etcdEndpoints": "https://etcd:2379"}, r"Expected `array`, got `str` - at `\$\.etcdEndpoints`"),
    ],
)
def test_invalid_parameters_are_named_with_their_path(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=r"controlPlanes\.parameters.*" + message):
        parse_parameters(given)


def test_reference_lists_every_parameter() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", REFERENCE.read_text().partition("## Objects")[0], re.MULTILINE)
    assert set(rows) == {field.encode_name for field in msgspec.structs.fields(Parameters)}


async def test_pods_are_scheduled_as_the_parameters_say(world: ManagementWorld) -> None:
    toleration = {"key": "control-planes", "operator": "Exists", "effect": "NoSchedule"}
    world.parameters |= {
        "nodeSelector": {"disk": "fast"},
        "tolerations": [toleration],
        "priorityClassName": "system-cluster-critical",
        "etcdEndpoints": ["https://etcd-0:2379", "https://etcd-1:2379"],
    }
    await world.provisioner().provision(tenant())
    spec = world.pod_spec()
    assert (spec["nodeSelector"], spec["tolerations"]) == ({"disk": "fast"}, [toleration])
    assert spec["priorityClassName"] == "system-cluster-critical"
    assert spec["enableServiceLinks"] is False
    assert "--etcd-servers=https://etcd-0:2379,https://etcd-1:2379" in spec["containers"][0]["args"]


async def test_pull_secrets_are_copied_to_the_namespace(world: ManagementWorld) -> None:
    world.parameters["imagePullSecrets"] = ["registry"]
    with pytest.raises(UnavailableError, match=r"Secret vkgateway-system/registry .* does not exist"):
        await world.provisioner().provision(tenant())
    data = {".dockerconfigjson": "e30="}
    kind = "kubernetes.io/dockerconfigjson"
    world.cluster.create(SECRETS, {"metadata": {"name": "registry"}, "type": kind, "data": data}, "vkgateway-system")
    await world.provisioner().provision(tenant())
    copy = world.cluster.get(SECRETS, "registry", NAMESPACE)
    assert (copy["type"], copy["data"]) == (kind, data)
    assert world.pod_spec()["imagePullSecrets"] == [{"name": "registry"}]

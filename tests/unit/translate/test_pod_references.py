"""References of a pod, optional only if all uses are optional."""

from typing import Any

import pytest

from tests.unit.translate.samples import container, pod
from vkgateway.kinds.pods.translation.pod_references import TokenSource, find_references


def test_plain_pod_refers_to_certificates_and_token() -> None:
    found = find_references(pod())
    assert found.config_maps == {"kube-root-ca.crt": False}
    assert found.secrets == {}
    assert found.tokens == (TokenSource(key="kube-api-access-x7k2p.0", audience="", expiration_seconds=3607),)


def test_token_lifetime_defaults_to_an_hour() -> None:
    source = {"serviceAccountToken": {"path": "t", "audience": "vault"}}
    (token,) = find_references(pod(volumes=[{"name": "v", "projected": {"sources": [source]}}])).tokens
    assert token == TokenSource(key="v.0", audience="vault", expiration_seconds=3600)


@pytest.mark.parametrize("kind", ["containers", "initContainers", "ephemeralContainers"])
def test_references_from_environments_of_all_containers(kind: str) -> None:
    env = [
        {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "c1", "key": "k"}}},
        {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s1", "key": "k", "optional": True}}},
        {"name": "C", "value": "x"},
    ]
    env_from = [{"configMapRef": {"name": "c2", "optional": True}}, {"secretRef": {"name": "s2"}}]
    spec: dict[str, Any] = {"volumes": [], kind: [container(env=env, envFrom=env_from)]}
    found = find_references(pod(**spec))
    assert found.config_maps == {"c1": False, "c2": True}
    assert found.secrets == {"s1": True, "s2": False}


@pytest.mark.parametrize(
    "volume",
    [
        {"secret": {"secretName": "s"}},
        {"projected": {"sources": [{"secret": {"name": "s"}}]}},
        {"azureFile": {"secretName": "s"}},
        {"cephfs": {"secretRef": {"name": "s"}}},
        {"rbd": {"secretRef": {"name": "s"}}},
        {"flexVolume": {"secretRef": {"name": "s"}}},
        {"scaleIO": {"secretRef": {"name": "s"}}},
        {"storageos": {"secretRef": {"name": "s"}}},
        {"iscsi": {"secretRef": {"name": "s"}}},
        {"csi": {"nodePublishSecretRef": {"name": "s"}}},
    ],
)
def test_secrets_from_volumes(volume: dict[str, Any]) -> None:
    assert find_references(pod(volumes=[{"name": "v", **volume}])).secrets == {"s": False}


@pytest.mark.parametrize(
    "volume", [{"configMap": {"name": "c"}}, {"projected": {"sources": [{"configMap": {"name": "c"}}]}}]
)
def test_config_maps_from_volumes(volume: dict[str, Any]) -> None:
    assert find_references(pod(volumes=[{"name": "v", **volume}])).config_maps == {"c": False}


def test_claims_from_volumes_and_generic_ephemeral_ones() -> None:
    volumes = [
        {"name": "a", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "b", "persistentVolumeClaim": {"claimName": "data", "readOnly": True}},
        {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}},
        {"name": "c", "emptyDir": {}},
    ]
    assert find_references(pod(volumes=volumes)).claims == ("data", "web-1-scratch")


@pytest.mark.parametrize(
    ("first", "second", "optional"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_reference_is_optional_only_if_all_uses_are(first: bool, second: bool, optional: bool) -> None:
    volumes = [
        {"name": "a", "configMap": {"name": "c", "optional": first}},
        {"name": "b", "configMap": {"name": "c", "optional": second}},
    ]
    assert find_references(pod(volumes=volumes)).config_maps == {"c": optional}


def test_pull_secrets_are_optional() -> None:
    found = find_references(pod(imagePullSecrets=[{"name": "pull"}, {}], volumes=[{"name": "e", "emptyDir": {}}]))
    assert found.secrets == {"pull": True}
    both = pod(imagePullSecrets=[{"name": "pull"}], volumes=[{"name": "v", "secret": {"secretName": "pull"}}])
    assert find_references(both).secrets == {"pull": False}

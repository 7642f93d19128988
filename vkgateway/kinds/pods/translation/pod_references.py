"""ConfigMaps, Secrets and service account tokens that must exist in the compute cluster before a pod."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from vkgateway.api.names import token_key
from vkgateway.api.objects import Object

DEFAULT_TOKEN_SECONDS: Final = 3600
"""Lifetime of a projected token whose source sets none (core/v1 ServiceAccountTokenProjection)."""

SECRET_REF_VOLUMES: Final = ("cephfs", "rbd", "flexVolume", "scaleIO", "storageos", "iscsi", "cinder")
"""In-tree volume types that name a Secret as `secretRef`."""

CONTAINER_LISTS: Final = ("initContainers", "containers", "ephemeralContainers")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSource:
    """Projected service account token: its key in the token Secret, and the parameters of the TokenRequest."""

    key: str
    audience: str
    expiration_seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PodReferences:
    """Names that a pod refers to in its namespace. The value is True if all uses are optional."""

    config_maps: Mapping[str, bool]
    secrets: Mapping[str, bool]
    tokens: tuple[TokenSource, ...]
    claims: tuple[str, ...] = ()


def find_references(pod: Object) -> PodReferences:
    """Return the references of a tenant pod, from init, sidecar and ephemeral containers, too.

    Image pull secrets count as optional: a kubelet runs pods whose pull secrets are missing.
    """
    config_maps: dict[str, bool] = {}
    secrets: dict[str, bool] = {}
    tokens: list[TokenSource] = []
    spec = pod.get("spec") or {}
    volumes = spec.get("volumes") or ()
    for container in all_containers(spec):
        _note_environment(container, config_maps, secrets)
    for volume in volumes:
        _note_volume(volume, config_maps, secrets, tokens)
    for pull_secret in spec.get("imagePullSecrets") or ():
        if pull_secret.get("name"):
            secrets.setdefault(pull_secret["name"], True)
    return PodReferences(config_maps=config_maps, secrets=secrets, tokens=tuple(tokens), claims=pod_claims(pod))


def pod_claims(pod: Object) -> tuple[str, ...]:
    """Return the names of the claims that a pod's volumes use, each once."""
    volumes = (pod.get("spec") or {}).get("volumes") or ()
    return tuple(dict.fromkeys(name for volume in volumes if (name := volume_claim(volume, pod["metadata"]["name"]))))


def volume_claim(volume: Mapping[str, Any], pod: str) -> str:
    """Return the name of the claim that a volume of the pod uses, or "".

    For a generic ephemeral volume, it is the claim that the tenant cluster's controller creates
    (https://kubernetes.io/docs/concepts/storage/ephemeral-volumes/#persistentvolumeclaim-naming).
    """
    if "ephemeral" in volume:
        return f"{pod}-{volume['name']}"
    return str((volume.get("persistentVolumeClaim") or {}).get("claimName") or "")


def all_containers(spec: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield all containers of a pod spec: init and sidecars, main, ephemeral."""
    for kind in CONTAINER_LISTS:
        yield from spec.get(kind) or ()


def _note_reference(found: dict[str, bool], reference: Mapping[str, Any] | None, key: str = "name") -> None:
    if reference and reference.get(key):
        name = reference[key]
        found[name] = bool(reference.get("optional")) and found.get(name, True)


def _note_environment(container: Mapping[str, Any], config_maps: dict[str, bool], secrets: dict[str, bool]) -> None:
    for entry in container.get("env") or ():
        source = entry.get("valueFrom")
        if source:
            _note_reference(config_maps, source.get("configMapKeyRef"))
            _note_reference(secrets, source.get("secretKeyRef"))
    for entry in container.get("envFrom") or ():
        _note_reference(config_maps, entry.get("configMapRef"))
        _note_reference(secrets, entry.get("secretRef"))


def _note_volume(
    volume: Mapping[str, Any], config_maps: dict[str, bool], secrets: dict[str, bool], tokens: list[TokenSource]
) -> None:
    projected = volume.get("projected")
    if projected:
        sources: Iterable[Mapping[str, Any]] = projected.get("sources") or ()
        for index, source in enumerate(sources):
            _note_reference(config_maps, source.get("configMap"))
            _note_reference(secrets, source.get("secret"))
            if source.get("serviceAccountToken"):
                tokens.append(_token_source(volume["name"], index, source["serviceAccountToken"]))
        return
    _note_reference(config_maps, volume.get("configMap"))
    _note_reference(secrets, volume.get("secret"), "secretName")
    _note_reference(secrets, volume.get("azureFile"), "secretName")
    _note_reference(secrets, (volume.get("csi") or {}).get("nodePublishSecretRef"))
    for kind in SECRET_REF_VOLUMES:
        if kind in volume:
            _note_reference(secrets, (volume[kind] or {}).get("secretRef"))


def _token_source(volume: str, index: int, source: Mapping[str, Any]) -> TokenSource:
    return TokenSource(
        key=token_key(volume, index),
        audience=source.get("audience") or "",
        expiration_seconds=source.get("expirationSeconds") or DEFAULT_TOKEN_SECONDS,
    )

"""Variables by which container runtimes of device vendors give devices to a container, whatever it requests.

A pod without devices would otherwise see all of a node's, as its image may set such a variable. Variables that a
program reads itself, such as CUDA_VISIBLE_DEVICES, give it nothing and are not among these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from vkgateway.api.objects import Object
from vkgateway.api.requests import container_requests, is_extended

NO_DEVICES: Final = "void"
"""Value with which NVIDIA's runtime, and those made after it, leave a container alone."""

HIDING_VALUES: Final = ("", "none", NO_DEVICES)
"""Values that give no device. Controllers set them for pods that should see none, such as the launcher of an MPIJob."""

_VISIBLE: Final = (
    "NVIDIA_VISIBLE_DEVICES",
    "AMD_VISIBLE_DEVICES",
    "HABANA_VISIBLE_DEVICES",  # Intel Gaudi
    "ASCEND_VISIBLE_DEVICES",
    "METAX_VISIBLE_DEVICES",
    "MTHREADS_VISIBLE_DEVICES",
    "CAMBRICON_VISIBLE_DEVICES",
)
DEVICE_VARIABLES: Final = (
    *_VISIBLE,
    "NVIDIA_MIG_CONFIG_DEVICES",
    "NVIDIA_MIG_MONITOR_DEVICES",
    "NVIDIA_IMEX_CHANNELS",
    "ASCEND_RUNTIME_MOUNTS",
    "ASCEND_VNPU_SPECS",
)
"""Variables that tenants may set to `HIDING_VALUES` only. https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/"""

_HIDING: Final[tuple[Object, ...]] = tuple({"name": name, "value": NO_DEVICES} for name in _VISIBLE)


def hiding_variables(container: Object) -> tuple[Object, ...]:
    """Return the variables that give a container no devices: none if it requests some.

    For such a container, the device plugin of its node sets the variable.
    """
    requested = any(amount and is_extended(name) for name, amount in container_requests(container).items())
    return () if requested else _HIDING


def hides_devices(variable: Object) -> bool:
    """Return whether a variable of a container is a device variable that gives no device."""
    is_literal = not variable.get("valueFrom") and (variable.get("value") or "") in HIDING_VALUES
    return is_literal and variable["name"] in DEVICE_VARIABLES


def set_variables(container: Mapping[str, Any]) -> Iterator[str]:
    """Yield the variables of a container that could give it devices."""
    for entry in container.get("env") or ():
        if entry["name"] in DEVICE_VARIABLES and not hides_devices(entry):
            yield entry["name"]


def splitting_prefixes(container: Mapping[str, Any]) -> Iterator[str]:
    """Yield the prefixes of `envFrom` that would make a device variable of another key of a ConfigMap or Secret."""
    for source in container.get("envFrom") or ():
        prefix = source.get("prefix") or ""
        if prefix and any(name.startswith(prefix) for name in DEVICE_VARIABLES):
            yield prefix


def without_device_keys(source: Object) -> Object:
    """Return a ConfigMap or Secret without keys that `envFrom` would make device variables."""
    made = source
    for field in ("data", "binaryData", "stringData"):
        values = made.get(field)
        if values and not values.keys().isdisjoint(DEVICE_VARIABLES):
            made = {**made, field: {key: value for key, value in values.items() if key not in DEVICE_VARIABLES}}
    return made

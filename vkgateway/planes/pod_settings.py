"""What templates and drivers say about the pods of control planes: resources, replicas, scheduling (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from vkgateway.api.errors import InputError
from vkgateway.api.quantity import Quantity, parse_quantity


class Toleration(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """A toleration, as in a pod."""

    key: str = ""
    operator: Literal["", "Equal", "Exists", "Lt", "Gt"] = ""
    value: str = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    toleration_seconds: int | None = None


class PodSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Number and scheduling of the pods of a control plane."""

    replicas: Annotated[int, msgspec.Meta(ge=1, le=3)] = 1
    node_selector: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()
    priority_class_name: str = ""


class ContainerResources(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Requests and limits of a component, as in a container."""

    requests: dict[str, Quantity] = {}
    limits: dict[str, Quantity] = {}

    def check(self, where: str) -> None:
        """Raise InputError if a quantity is invalid, or a request is above its limit. `where` is the field's path."""
        for kind, quantities in (("requests", self.requests), ("limits", self.limits)):
            for name, quantity in quantities.items():
                _check_quantity(quantity, f"{where}.{kind}.{name}")
        for name, quantity in self.requests.items():
            if name in self.limits and parse_quantity(quantity) > parse_quantity(self.limits[name]):
                raise InputError(
                    f"{where}: the request of {quantity} {name} is above the limit of {self.limits[name]}",
                    hint="Raise the limit, or lower the request.",
                )

    def with_default_requests(self, defaults: Mapping[str, Quantity]) -> ContainerResources:
        """Return the resources with default requests. A resource with a limit alone requests that limit."""
        added = {name: quantity for name, quantity in defaults.items() if name not in self.limits}
        return ContainerResources(requests={**added, **self.requests}, limits=self.limits)


def _check_quantity(quantity: Quantity, where: str) -> None:
    try:
        is_valid = parse_quantity(quantity) >= 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise InputError(f"{where}: {quantity!r} is not an amount", hint="Write amounts like 2, 500m or 1Gi.")

"""What `whatif` reads from its options: resources, and lengths of time."""

from __future__ import annotations

from collections.abc import Iterable

from vkgateway.model.errors import InputError
from vkgateway.model.quantity import Resources


def requests(texts: Iterable[str]) -> Resources:
    """Read `nvidia.com/gpu=8,cpu=4`, given once or several times. Raises InputError that quotes what is wrong."""
    found: Resources = {}
    for text in texts:
        for item in text.split(","):
            name, equals, amount = item.partition("=")
            if not name or not equals or not amount:
                raise InputError(
                    f"--request {text!r}: cannot read {item!r}",
                    hint="Write RESOURCE=QUANTITY, like nvidia.com/gpu=8,cpu=4,memory=16Gi",
                )
            if name in found:
                raise InputError(f"--request {text!r}: {name} is given twice", hint="Give each resource once.")
            found[name] = amount
    return found


def seconds(option: str, text: str | None) -> float | None:
    """Read a length of time as a gang's annotations have it; None where it is not given. Raises InputError."""
    from vkgateway.translate.gangs import MarkError
    from vkgateway.translate.gangs.values import duration

    try:
        return duration(option, text) if text is not None else None
    except MarkError as error:
        raise InputError(f"{option} {text!r} is no length of time", hint="Write one like 90m, 1h30m, 2d.") from error

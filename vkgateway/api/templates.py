"""Templates of a pool for the compute pods that it leaves to an external scheduler. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from vkgateway.api.names import LABEL_VALUE_MAX, TENANT_NAME_MAX, is_reserved
from vkgateway.api.types import EXTERNAL, Pool, PoolScheduling

GANG_NAME_MAX: Final = 53
"""Most characters of a gang's unique name (`backends.names.attempt_name`)."""
BAND_GUARANTEED: Final = "guaranteed"
BAND_LOW: Final = "low"
_NUMBER_DIGITS: Final = 5
"""Digits of the largest numbers of pods in a gang."""

_PLACEHOLDER: Final = re.compile(r"\{([A-Za-z]+)\}")
_PLACEHOLDERS: Final = ("tenant", "pool", "queue", "gang", "minimum", "size", "band")
_NAME_PLACEHOLDERS: Final = frozenset({"tenant", "pool", "band"})
"""Placeholders of the name of a priority class: it cannot depend on the gang, because an administrator creates it."""
_LABEL_VALUE: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_CLASS_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_KEY: Final = re.compile(
    r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?",
)


def render_template(template: str, values: Mapping[str, str]) -> str:
    """Return a template with the placeholders that have a value replaced."""
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), template)


def render_templates(templates: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    """Return a map with all values replaced."""
    return {key: render_template(template, values) for key, template in templates.items()}


def template_keys(scheduling: PoolScheduling) -> frozenset[str]:
    """Return the keys of labels and annotations that only the pool may set, in any scheduling mode.

    A pool in another mode may still have pods of the mode external, and some schedulers read a key from either place.
    """
    return frozenset({*scheduling.pod_labels, *scheduling.pod_annotations})


def template_problems(pool: Pool) -> Iterator[str]:
    """Yield the errors in the templates of a pool in mode external, each with the field, the value and the way out."""
    scheduling = pool.scheduling
    if scheduling.mode != EXTERNAL:
        return
    where = f"pool {pool.name!r}: scheduling"
    if not scheduling.scheduler_name:
        yield f"{where}.schedulerName is empty; name the scheduler that binds the pods, or use the mode native"
    yield from _class_problems(pool, where)
    longest = _longest_values(pool)
    for field, templates in (("podLabels", scheduling.pod_labels), ("podAnnotations", scheduling.pod_annotations)):
        for key, template in templates.items():
            at = f"{where}.{field}[{key}]"
            yield from _key_problems(at, key)
            yield from _placeholder_problems(at, template, _PLACEHOLDERS)
            if field == "podLabels":
                yield from _value_problems(at, template, longest)


def _class_problems(pool: Pool, where: str) -> Iterator[str]:
    name, at = pool.scheduling.priority_class_name, f"{where}.priorityClassName"
    yield from _placeholder_problems(at, name, [each for each in _PLACEHOLDERS if each in _NAME_PLACEHOLDERS])
    if name and _CLASS_NAME.fullmatch(render_template(name, {"tenant": "t", "pool": "p", "band": BAND_LOW})) is None:
        yield f"{at} {name!r} is no name of a PriorityClass; use lower-case letters, digits, dashes and dots"


def _key_problems(at: str, key: str) -> Iterator[str]:
    if is_reserved(key):
        yield f"{at} has a key of vkgateway; use a key of the scheduler"
    elif _KEY.fullmatch(key) is None:
        yield f"{at} is no key of a label or annotation; use the form example.com/name"


def _placeholder_problems(at: str, template: str, allowed: tuple[str, ...] | list[str]) -> Iterator[str]:
    unknown = sorted({match for match in _PLACEHOLDER.findall(template) if match not in allowed})
    if unknown:
        names = ", ".join(f"{{{each}}}" for each in unknown)
        known = ", ".join(f"{{{each}}}" for each in allowed)
        yield f"{at} {template!r} has the unknown placeholder {names}; use {known}"


def _value_problems(at: str, template: str, longest: Mapping[str, str]) -> Iterator[str]:
    value = render_template(template, longest)
    if _LABEL_VALUE.fullmatch(_PLACEHOLDER.sub("x", value)) is None:
        hint = "use letters, digits, dashes, underscores and dots, a letter or digit first and last"
        yield f"{at} {template!r} is no label value; {hint}, or podAnnotations"
    elif len(value) > LABEL_VALUE_MAX:
        text = f"{at} {template!r} may have {len(value)} characters, and a label value at most {LABEL_VALUE_MAX}"
        yield f"{text}; shorten it, or use podAnnotations"


def _longest_values(pool: Pool) -> dict[str, str]:
    """Return a value of the greatest length for each placeholder."""
    tenant = "t" * TENANT_NAME_MAX
    queue = render_template(pool.scheduling.queue, {"tenant": tenant, "pool": pool.name})
    number = "9" * _NUMBER_DIGITS
    return {
        "tenant": tenant,
        "pool": pool.name,
        "queue": queue,
        "gang": "g" * GANG_NAME_MAX,
        "minimum": number,
        "size": number,
        "band": BAND_GUARANTEED,
    }

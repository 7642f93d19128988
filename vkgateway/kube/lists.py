"""Lists as API servers give them: pages of objects that are not decoded."""

from __future__ import annotations

import msgspec

from vkgateway.kube import errors
from vkgateway.kube.requests import Params


class ListMeta(msgspec.Struct, rename="camel"):
    """`metadata` of a list answer."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")
    remaining_item_count: int = 0


class Page(msgspec.Struct):
    """One page of a list; each item is the raw JSON of one object (its kind and apiVersion are left out by
    servers).
    """

    metadata: ListMeta
    items: list[msgspec.Raw] = []


_decode_page = msgspec.json.Decoder(Page).decode


def read_page(answer: bytes, *, what: str) -> Page:
    """A page from an answer's body; `what` was asked for. Raises errors.ServerError where it is none."""
    try:
        return _decode_page(answer)
    except (msgspec.DecodeError, RecursionError) as error:
        raise errors.ServerError(f"{what}: the answer is no list: {error}", status=500) from error


def selector_params(label_selector: str, field_selector: str) -> dict[str, str | int | bool]:
    """The parameters that choose what is listed; empty ones choose everything."""
    given: Params = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {name: value for name, value in given.items() if value}

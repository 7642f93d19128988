"""Lists of API servers: pages of objects that are not decoded."""

from __future__ import annotations

import msgspec

from vkgateway.kube import errors
from vkgateway.kube.requests import Params


class ListMeta(msgspec.Struct, rename="camel"):
    """`metadata` of a list."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Page(msgspec.Struct):
    """One page of a list. Each item is the JSON of an object, in which servers omit kind and apiVersion."""

    metadata: ListMeta
    items: list[msgspec.Raw] = []


_decode_page = msgspec.json.Decoder(Page).decode


def read_page(body: bytes, *, what: str) -> Page:
    """Return the page in a response to the request `what`. Raises errors.ServerError if the body is not a list."""
    try:
        return _decode_page(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise errors.ServerError(f"{what}: the response is not a list: {error}", status=500) from error


def selector_params(label_selector: str, field_selector: str) -> dict[str, str | int | bool]:
    """Return the query parameters of the selectors that are not empty."""
    selectors: Params = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {name: value for name, value in selectors.items() if value}

"""Responses that are a verdict on an object, and responses that are not."""

from __future__ import annotations

import pytest

from vkgateway.api.errors import ConflictError
from vkgateway.kinds.refusals import is_object_refused, is_starting, lacks_rights
from vkgateway.kube import errors


@pytest.mark.parametrize(
    ("error", "closed", "starting", "verdict"),
    [
        (errors.Forbidden('User "vkgateway" cannot create resource "pods" in API group ""'), True, False, False),
        (errors.Forbidden('cannot update resource "networkpolicies"'), True, False, False),
        (errors.Forbidden('cannot patch resource "pods/resize"'), True, False, False),
        (errors.Forbidden('pods "a" is forbidden: not yet ready to handle request'), False, True, False),
        (errors.Forbidden('admission webhook "x" denied the request'), False, False, True),
        (errors.Invalid('spec: Invalid value: "cannot patch resource"'), False, False, True),
        (errors.BadRequest("no"), False, False, True),
        (errors.Conflict("another version"), False, False, False),
        (errors.ServerError("not yet ready to handle request"), False, False, False),
        (ConflictError("taken"), False, False, False),
    ],
)
def test_refusals_are_classified(error: Exception, *, closed: bool, starting: bool, verdict: bool) -> None:
    assert (lacks_rights(error), is_starting(error), is_object_refused(error)) == (closed, starting, verdict)

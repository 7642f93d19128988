"""Answers an API server that asks, as a webhook, whether a new pod is born gated."""

import base64
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from vkgateway.model.errors import InputError
from vkgateway.model.names import ADMISSION_GATE
from vkgateway.model.objects import Object
from vkgateway.translate.governed import has_gate, is_governed

_REVIEW_VERSION: Final = "admission.k8s.io/v1"
_GATES: Final = "/spec/schedulingGates"
_GATE: Final = {"name": ADMISSION_GATE}


def review_pod(review: Any) -> Object:
    """Answer an AdmissionReview of a pod that is being made: allowed, and gated where it must wait for the arbiter.

    https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/

    Raises InputError where it is no request for a review, or not in version v1.
    """
    request = review.get("request") if isinstance(review, Mapping) else None
    if not isinstance(request, Mapping) or not isinstance(request.get("uid"), str):
        raise InputError("this is no AdmissionReview with a request")
    if review.get("apiVersion") != _REVIEW_VERSION:
        raise InputError(f"AdmissionReview is spoken in {_REVIEW_VERSION} only, not in {review.get('apiVersion')}")
    response: Object = {"uid": request["uid"], "allowed": True}
    patch = _gate_patch(request)
    if patch:
        encoded = base64.b64encode(msgspec.json.encode(patch)).decode()
        response |= {"patchType": "JSONPatch", "patch": encoded}
    return {"apiVersion": _REVIEW_VERSION, "kind": "AdmissionReview", "response": response}


def _gate_patch(request: Mapping[str, Any]) -> list[Object]:
    """The JSON patch that gates the pod; none for what is no new pod, has a node already, or is not governed."""
    pod = request.get("object")
    kind = (request.get("kind") or {}).get("kind")
    if kind != "Pod" or request.get("operation") != "CREATE" or not isinstance(pod, Mapping):
        return []
    spec = pod.get("spec") or {}
    if spec.get("nodeName") or has_gate(pod) or not is_governed(pod):
        return []
    if spec.get("schedulingGates"):
        return [{"op": "add", "path": f"{_GATES}/-", "value": _GATE}]
    return [{"op": "add", "path": _GATES, "value": [_GATE]}]

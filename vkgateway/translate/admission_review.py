"""Webhook response that adds the scheduling gate to a new pod."""

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
    """Answer an AdmissionReview for a new pod: allowed, and gated if the pod must wait for the arbiter.

    https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/

    Raises:
        InputError: the document is not an AdmissionReview with a request, or its version is not v1.
    """
    request = review.get("request") if isinstance(review, Mapping) else None
    if not isinstance(request, Mapping) or not isinstance(request.get("uid"), str):
        raise InputError("the document is not an AdmissionReview with a request")
    if review.get("apiVersion") != _REVIEW_VERSION:
        raise InputError(f"AdmissionReview must have version {_REVIEW_VERSION}, not {review.get('apiVersion')}")
    response: Object = {"uid": request["uid"], "allowed": True}
    patch = _gate_patch(request)
    if patch:
        encoded = base64.b64encode(msgspec.json.encode(patch)).decode()
        response |= {"patchType": "JSONPatch", "patch": encoded}
    return {"apiVersion": _REVIEW_VERSION, "kind": "AdmissionReview", "response": response}


def _gate_patch(request: Mapping[str, Any]) -> list[Object]:
    """Return the JSON patch that gates the pod. It is empty if the pod is not new, has a node or is not governed."""
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

"""Mutating webhook /admission/gate: adds scheduling gates to pods for API servers without mutating policies."""

from __future__ import annotations

import msgspec

from vkgateway.kubelet.call import Call
from vkgateway.kubelet.http import Reply
from vkgateway.model.errors import InputError
from vkgateway.translate.admission_review import review_pod


async def serve_admission(call: Call, webhook: str) -> Reply:
    """Answer an AdmissionReview of the only webhook `gate`. The answer is the same for all admitted tenants."""
    if webhook != "gate":
        return Reply.from_text(404, "the gateway answers /admission/gate only")
    try:
        review = review_pod(msgspec.json.decode(call.request.body))
    except (msgspec.DecodeError, InputError) as error:
        return Reply.from_text(400, str(error))
    return Reply(200, msgspec.json.encode(review), "application/json")

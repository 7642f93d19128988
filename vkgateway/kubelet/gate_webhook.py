"""Gates new pods for API servers that are too old to do so themselves: /admission/gate, a mutating webhook."""

from __future__ import annotations

import msgspec

from vkgateway.kubelet.call import Call
from vkgateway.kubelet.http import Reply
from vkgateway.model.errors import InputError
from vkgateway.translate.admission_review import review_pod


async def serve_admission(call: Call, question: str) -> Reply:
    """Answer an AdmissionReview; `gate` is the only question. The same for every tenant: who asks must only be one."""
    if question != "gate":
        return Reply.from_text(404, "the gateway answers /admission/gate only")
    try:
        answer = review_pod(msgspec.json.decode(call.request.body))
    except (msgspec.DecodeError, InputError) as error:
        return Reply.from_text(400, str(error))
    return Reply(200, msgspec.json.encode(answer), "application/json")

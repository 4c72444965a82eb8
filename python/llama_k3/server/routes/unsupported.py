"""llama.cpp's endpoints that are not here: each answers 501 with a reason."""

from __future__ import annotations

from fastapi import Request

from ..bodies import api_router
from ..errors import ApiError

router = api_router()

_INFILL = "the model was not trained to fill in"
_EMBEDDING = "the model gives no embeddings"
_RERANK = "the model is no reranker"
_LORA = "adapters cannot be loaded"

REASONS = {
    "/infill": _INFILL,
    "/embedding": _EMBEDDING,
    "/embeddings": _EMBEDDING,
    "/v1/embeddings": _EMBEDDING,
    "/rerank": _RERANK,
    "/reranking": _RERANK,
    "/v1/rerank": _RERANK,
    "/v1/reranking": _RERANK,
    "/lora-adapters": _LORA,
    "/v1/audio/transcriptions": "the model reads text alone",
}


async def _refuse(request: Request) -> None:
    path = request.scope["path"]
    raise ApiError(501, f"{path}: {REASONS[path]}")


for _path in REASONS:
    router.add_api_route(_path, _refuse, methods=["POST"], include_in_schema=False)
router.add_api_route("/lora-adapters", _refuse, methods=["GET"], include_in_schema=False)

"""llama.cpp's endpoints that are not here: each answers 501 with a reason."""

from __future__ import annotations

from fastapi import Request

from ..bodies import api_router
from ..errors import ApiError
from .common import ERRORS

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


for _path, _reason in REASONS.items():
    router.add_api_route(
        _path,
        _refuse,
        methods=["POST"],
        responses=ERRORS,
        summary=f"Not here: {_reason}",
        name="no_" + _path.removeprefix("/").replace("/", "_").replace("-", "_"),
    )
router.add_api_route(
    "/lora-adapters",
    _refuse,
    methods=["GET"],
    responses=ERRORS,
    summary=f"Not here: {_LORA}",
    name="no_adapters",
)

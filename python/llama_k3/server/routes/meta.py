"""Health, models, properties and metrics."""

from __future__ import annotations

from typing import Any

from fastapi import Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from ..bodies import api_router
from ..errors import ApiError
from ..metrics import EngineCollector
from ..schemas.common import Form
from ..service import AnswerOptions, Service
from ..state import ServerState, State
from .common import FINGERPRINT, json_response, settings_json

router = api_router()

_METRICS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {}}}}


@router.get("/health", summary="Whether requests are answered")
@router.get("/v1/health", include_in_schema=False)
async def health(state: State) -> Response:
    """{"status": "ok"}; 503 while the model is being loaded."""
    state.check_loaded()
    return json_response({"status": "ok"})


def _model_json(state: ServerState, service: Service) -> dict[str, Any]:
    info = service.model.info
    return {
        "id": service.model_name,
        "object": "model",
        "created": state.started,
        "owned_by": "llama-k3",
        "meta": {
            "architecture": info.architecture,
            "n_vocab": info.n_vocab,
            "n_ctx": service.n_ctx,
            "n_ctx_train": info.n_ctx_train,
            "n_embd": info.n_embd,
            "n_params": info.n_params,
            "size": info.n_bytes,
        },
    }


@router.get("/v1/models", summary="The model of this server")
@router.get("/models", include_in_schema=False)
async def models(state: State) -> Response:
    """A list of one."""
    return json_response({"object": "list", "data": [_model_json(state, state.service)]})


@router.get("/v1/models/{model:path}", summary="One model by its id")
async def model(model: str, state: State) -> Response:
    """404 for all but this server's."""
    service = state.service
    if model != service.model_name:
        raise ApiError(
            404,
            f"model: found {model!r}, wanted {service.model_name!r}",
            code="model_not_found",
            param="model",
        )
    return json_response(_model_json(state, service))


@router.get("/props", summary="What the server was started with")
async def props(state: State) -> Response:
    """llama.cpp's properties, those that there are here."""
    service, options = state.service, state.options
    defaults = AnswerOptions(
        sampling=options.sampling, max_tokens=options.n_predict, ignore_eos=options.ignore_eos
    )
    tokenizer, info = service.tokenizer, service.model.info
    return json_response(
        {
            "default_generation_settings": {
                "n_ctx": service.n_ctx,
                "params": {**settings_json(defaults), "reasoning_format": options.reasoning_format},
            },
            "total_slots": service.n_slots,
            "n_ctx": service.n_ctx,
            "model_alias": service.model_name,
            "model_path": str(options.model_path or ""),
            "modalities": {"vision": False, "audio": False},
            "chat_template": service.model.metadata.get("tokenizer.chat_template", ""),
            "chat_format": service.chat_name,
            "bos_token": "" if info.bos_id < 0 else tokenizer.decode([info.bos_id]),
            "eos_token": "" if info.eos_id < 0 else tokenizer.decode([info.eos_id]),
            "build_info": FINGERPRINT,
            "endpoint_slots": options.slots,
            "endpoint_props": options.props,
            "endpoint_metrics": options.metrics,
            "webui": options.webui,
            "reasoning": {
                "thinking": options.thinking,
                "effort": options.reasoning_effort,
                "budget": options.reasoning_budget,
            },
        }
    )


class PropsForm(Form):
    """No property can be changed while the server runs."""


@router.post("/props", summary="Change properties")
async def change_props(form: PropsForm, state: State) -> Response:
    """501 without --props. As in llama.cpp, there is nothing yet that can be changed."""
    if not state.options.props:
        raise ApiError(501, "This server does not change its properties. Start it with `--props`")
    for name in form.model_extra or {}:
        raise ApiError(400, f"{name}: found a property that cannot be changed, wanted none", param=name)
    return json_response({"success": True})


@router.get("/metrics", responses=_METRICS, summary="Counters for Prometheus")
async def metrics(state: State) -> Response:
    """501 without --metrics."""
    if not state.options.metrics:
        raise ApiError(501, "This server has no metrics endpoint. Start it with `--metrics`")
    registry = CollectorRegistry()
    registry.register(EngineCollector(state.service.engine))
    return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

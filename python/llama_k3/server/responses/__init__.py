"""OpenAI's Responses API: /v1/responses, without storage at the server."""

from .routes import router

__all__ = ["router"]

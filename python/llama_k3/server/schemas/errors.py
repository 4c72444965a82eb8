"""The body of every error, for OpenAPI."""

from __future__ import annotations

from pydantic import BaseModel


class ApiErrorObject(BaseModel):
    """`code`: a word where OpenAI has one, else the HTTP status."""

    code: int | str
    message: str
    type: str
    param: str | None = None


class ApiErrorBody(BaseModel):
    error: ApiErrorObject

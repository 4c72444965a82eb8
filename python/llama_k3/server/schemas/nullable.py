"""The base of request forms in which a field that is null counts as missing."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


def _allow_null(schema: dict[str, Any]) -> None:
    """Says in the JSON schema what the validator does: null is fine where the field may be missing."""
    required = schema.get("required", [])
    for name, field in schema.get("properties", {}).items():
        if name not in required and field and {"type": "null"} not in field.get("anyOf", []):
            title = {"title": field.pop("title")} if "title" in field else {}
            schema["properties"][name] = {**title, "anyOf": [field, {"type": "null"}]}


class NullableForm(BaseModel):
    """Strict types; fields that are null count as missing; unknown fields are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", json_schema_extra=_allow_null)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        return {k: v for k, v in data.items() if v is not None} if isinstance(data, dict) else data

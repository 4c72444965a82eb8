"""Formats: natural values pass, and none does that a validator would refuse."""

from __future__ import annotations

import json

import jsonschema_rs
import pytest
from llama_k3.errors import ArgumentError
from llama_k3.grammar import GrammarCompiler
from llama_k3.grammar.formats import FORMATS

from llama_k3 import Tokenizer

GOOD = {
    "date": ["2024-02-29", "2000-02-29", "1999-12-31", "2023-04-30"],
    "time": ["23:59:59Z", "08:30:00.25+01:00"],
    "date-time": ["2024-02-29T12:00:00Z", "2023-11-30T23:59:59.999-11:30"],
    "duration": ["P1Y2M3DT4H5M6S", "PT20M", "P3W", "P2D"],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000"],
    "email": ["first.last+tag@mail.example.com", "x@example.org"],
    "hostname": ["a", "www.example-host.com"],
    "ipv4": ["0.0.0.0", "255.199.20.3"],
    "ipv6": ["::", "::1", "fe80::1:2", "1:2:3:4:5:6:7:8", "2001:db8::"],
    "uri": [
        "https://example.com:8080/a/b%20c?q=1&r=x#top",
        "mailto:me@example.com",
        "urn:isbn:123",
        "http://1.2.3.4/",
    ],
}
BAD = {
    "date": ["2023-02-29", "1900-02-29", "2024-02-30", "2024-13-01", "2024-04-31", "24-01-01", "2024-1-1"],
    "time": ["24:00:00Z", "12:60:00Z", "12:00:00", "12:00Z", "12:00:60Z"],
    "date-time": ["2023-02-29T12:00:00Z", "2024-01-01", "2024-01-01 12:00:00Z"],
    "duration": ["P", "PT", "1D", "P1S", "P1Y3D"],
    "uuid": ["123e4567e89b12d3a456426614174000", "123e4567-e89b-12d3-a456-42661417400g"],
    "email": ["x", "@x.com", "a@", ".a@x.com", "a..b@x.com"],
    "hostname": ["-a", "a-", "a..b", "a_b", ""],
    "ipv4": ["256.1.1.1", "1.2.3", "01.2.3.4"],
    "ipv6": ["1::2::3", "12345::", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9", ":"],
    "uri": ["//example.com", "1a:b", "http://exa mple.com", "http://x/%2"],
}


def test_every_format_has_its_cases() -> None:
    assert set(FORMATS) == set(GOOD) == set(BAD)


@pytest.mark.parametrize("name", FORMATS)
def test_format(name: str, compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    schema = {"type": "string", "format": name}
    validator = jsonschema_rs.validator_for(schema, validate_formats=True)
    taken = []
    for text in GOOD[name] + BAD[name]:
        constraint = compiler.json_schema(schema)
        try:
            for token in [*tokenizer.encode(json.dumps(text)), min(tokenizer.end_ids)]:
                constraint.accept(token)
        except ArgumentError:
            continue
        assert validator.is_valid(text)
        taken.append(text)
    assert taken == GOOD[name]

"""Chat requests, JSON schemas and GBNF to constraints of one model's tokens, through llguidance."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from llguidance import LLMatcher, LLParserLimits
from llguidance.gbnf_to_lark import gbnf_to_lark
from llguidance.tiktoken import lltokenizer_from_encoding

from ..tokenizer import Tokenizer
from . import k2_grammar, request, xtml_grammar
from .constraint import GrammarConstraint
from .errors import GrammarError
from .lark import Lark, Piece, choice
from .nodes import children
from .schema import normalise

ChatFormat = Literal["kimi-k3", "kimi-linear"]
MAX_GBNF = 64 * 1024
_CACHED = 64
_MAX_COMBINED = 500
# Per step at most about 15 ms of lexer work and 50 MB of lexer states.
_LIMITS = LLParserLimits(max_lexer_states=50_000, verbose_errors=False)


class GrammarCompiler:
    """Makes constraints for one vocabulary. Thread-safe. Compiled grammars are kept, the latest used ones."""

    def __init__(self, tokenizer: Tokenizer, chat: ChatFormat | None) -> None:
        """`chat`: the model's chat format. Takes about a second for a full vocabulary."""
        self._chat = chat
        self._n_vocab = len(tokenizer)
        self._end_ids = tokenizer.end_ids
        self._text_ids = tokenizer.ranks.values()
        self._control_tokens = tokenizer.special_ids
        self._tokens = lltokenizer_from_encoding(
            tokenizer.encoding, n_vocab=self._n_vocab, eos_token=sorted(tokenizer.end_ids)
        )
        self._lock = threading.Lock()
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()

    def chat(
        self,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: Any = None,
        response_format: Mapping[str, Any] | None = None,
        opened: Literal["think", "response"] | None = "response",
        parallel_tool_calls: bool = True,
    ) -> GrammarConstraint | None:
        """Of an answer, from the channel that the prompt opened to the answer's end; None: nothing is asked.

        Arguments as in OpenAI's chat completions. GrammarError: names what cannot be enforced.
        """
        asked = {"tools": tools, "choice": tool_choice, "format": response_format}
        key = _key({**asked, "opened": opened, "parallel": parallel_tool_calls})
        known = self._known(key)
        if known is not None:
            return known
        wanted = request.read(tools, tool_choice, response_format, parallel_tool_calls)
        if wanted is None:
            return None
        lark = Lark(self._text_ids)
        if self._chat == "kimi-k3":
            text = xtml_grammar.write(lark, wanted, opened or "response")
        elif self._chat is None and wanted.tools:
            raise GrammarError("tools: found some, wanted none: the model has no chat format")
        else:
            text = k2_grammar.write(lark, wanted, self._control_tokens)
        return self._new(key, text, lark)

    def json_schema(self, schema: Any) -> GrammarConstraint:
        """Of a text that is one JSON value. GrammarError: names what cannot be enforced."""
        key = _key({"schema": schema})
        known = self._known(key)
        if known is not None:
            return known
        lark = Lark(self._text_ids)
        normal = normalise(schema, "json_schema")
        return self._new(key, lark.whole(lark.json(normal, normal.root, "json_schema")), lark)

    def gbnf(self, text: str) -> GrammarConstraint:
        """Of a text in llama.cpp's grammar notation. GrammarError: it cannot be read.

        Rules without recursion are read as a lexer reads, each as far as it goes: a text that the rule behind
        would have to share with it is not found.
        """
        if not isinstance(text, str) or len(text) > MAX_GBNF:
            found = f"{len(text)} characters" if isinstance(text, str) else type(text).__name__
            raise GrammarError(f"grammar: found {found}, wanted a text of at most {MAX_GBNF} characters")
        lone = next((character for character in text if "\ud800" <= character <= "\udfff"), None)
        if lone is not None:
            raise GrammarError(f"grammar: found the lone surrogate U+{ord(lone):04X}, wanted Unicode text")
        key = _key({"gbnf": text})
        known = self._known(key)
        if known is not None:
            return known
        try:
            converted = gbnf_to_lark(text)
        except Exception as error:  # the converter raises bare exceptions
            raise GrammarError(f"grammar: found {error}, wanted llama.cpp's GBNF") from None
        return self._new(key, converted, None)

    def _known(self, key: str) -> GrammarConstraint | None:
        with self._lock:
            matcher = self._compiled.get(key)
            if matcher is None:
                return None
            self._compiled.move_to_end(key)
            return self._wrapped(matcher.deep_copy())

    def _new(self, key: str, text: str, lark: Lark | None) -> GrammarConstraint:
        """`lark`: the writer of the text; None: not ours."""
        matcher = self._compile(text)
        if lark is not None:
            self._check_terminals(lark)
        if matcher.is_error():
            self._explain(matcher.get_error(), lark)
        with self._lock:
            self._compiled[key] = matcher
            while len(self._compiled) > _CACHED:
                self._compiled.popitem(last=False)
            return self._wrapped(matcher.deep_copy())

    def _wrapped(self, matcher: LLMatcher) -> GrammarConstraint:
        return GrammarConstraint(matcher, self._n_vocab, self._end_ids)

    def _compile(self, text: str) -> LLMatcher:
        grammar = LLMatcher.grammar_from_lark(text)
        matcher = LLMatcher(self._tokens, grammar, log_level=0, limits=_LIMITS)
        if not matcher.is_error():
            # A grammar that no text meets is found out here.
            matcher.deep_copy().compute_bitmask()
        return matcher

    def _check_terminals(self, lark: Lark) -> None:
        """GrammarError: a terminal of several conditions that no text meets."""
        combined = {text: where for text, where in lark.terminals.items() if " & " in text}
        if len(combined) > _MAX_COMBINED:
            raise GrammarError(
                f"tools: found {len(combined)} different strings with several conditions each, "
                f"wanted at most {_MAX_COMBINED}"
            )
        for text, where in combined.items():
            matcher = self._compile(f"start: TEXT\nTEXT: {text}\n")
            matcher.compute_bitmask()
            if matcher.is_error():
                raise GrammarError(
                    f"{where}: found conditions that no text meets, wanted some text to meet them"
                )

    def _explain(self, reason: str, lark: Lark | None) -> None:
        """Raise for a grammar that does not compile, naming the innermost schema at fault."""
        fault = self._fault(lark.pieces) if lark is not None else None
        if fault is None:
            raise GrammarError(f"grammar: found {_short(reason)}, wanted one that can be enforced")
        inner: Piece | None = fault
        while inner is not None:
            fault = inner
            node = fault.schema.at(fault.node)
            parts = [(path, child) for path, child in children(node) if child is not False]
            inner = self._fault(
                [Piece(fault.schema, child, f"{fault.where}.{path}") for path, child in parts]
            )
        found = _short(self._reason([fault]))
        raise GrammarError(f"{fault.where}: found {found}, wanted a schema that can be enforced")

    def _fault(self, pieces: Sequence[Piece]) -> Piece | None:
        """The first piece that does not compile alone; None: all do, or only all together do not."""
        while len(pieces) > 1:
            half = pieces[: len(pieces) // 2]
            pieces = half if self._reason(half) else pieces[len(half) :]
        return pieces[0] if pieces and self._reason(pieces) else None

    def _reason(self, pieces: Sequence[Piece]) -> str:
        """Why these do not compile; empty: they do."""
        return self._compile(choice(pieces)).get_error()


def _key(asked: Mapping[str, Any]) -> str:
    try:
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()
    except RecursionError:
        raise GrammarError("request: found values nested too deep, wanted fewer levels") from None
    except (TypeError, ValueError) as error:
        raise GrammarError(f"request: found {error}, wanted JSON values") from None


def _short(reason: str) -> str:
    """The part of llguidance's message that says something about the schema."""
    line = reason.split("\n")[0].split("failed to compile JSON schema: ")[-1]
    return line.split(". Enable ")[0][:200]

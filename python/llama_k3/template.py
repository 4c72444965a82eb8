"""Chat templates of model files: Jinja in a sandbox with limits, rendered to control and text segments.

A template is a program from a file that nobody vouches for. It cannot load anything, reaches nothing but its
inputs, and ends with an ArgumentError once its loops, the sizes of its values or its output go beyond what
its input justifies. Jinja's sandbox guards attributes; the limits are enforced here: the template's tree is
rewritten so that every loop round, comparison and new container is counted, operators and calls are
intercepted, and only harmless filters and methods exist.

Control tokens come from the template's own text alone. Each one there is replaced by a secret mark before
rendering, and the marks in the result become control segments; a message that spells a control token, or
parts of one, stays text.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, MappingView, Sequence
from contextvars import ContextVar
from typing import Any, NoReturn, cast

import jinja2
from jinja2 import nodes
from jinja2.defaults import DEFAULT_FILTERS
from jinja2.ext import Extension, LoopControlExtension
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from .errors import ArgumentError
from .xtml import Segment

_MAX_SOURCE = 1 << 18
_STEP = 100
"""Work of a loop round and of an item of a container; that of a character is 1."""
_CALL = 2000
"""Work of a call."""
_MAX_BITS = 1024
_MAX_INDENT = 8

# Filters and methods whose work is in proportion to the sizes of what they read and make, or checked below.
_FILTERS = frozenset(
    {
        "abs",
        "capitalize",
        "count",
        "d",
        "default",
        "dictsort",
        "e",
        "escape",
        "first",
        "float",
        "int",
        "items",
    }
    | {"join", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace"}
    | {"reverse", "safe", "select", "selectattr", "sort", "string", "title", "trim", "unique", "upper"}
)
_QUICK_FILTERS = frozenset(["count", "d", "default", "first", "last", "length", "safe"])
"""Filters that read and make nothing large."""
_STRING_METHODS = frozenset(
    {
        "capitalize",
        "count",
        "endswith",
        "find",
        "index",
        "isalnum",
        "isalpha",
        "isdigit",
        "islower",
        "isspace",
    }
    | {"isupper", "join", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind"}
    | {"rindex", "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "title"}
    | {"upper"}
)
_METHODS: dict[type, frozenset[str]] = {
    str: _STRING_METHODS,
    dict: frozenset(["get", "items", "keys", "values"]),
    list: frozenset(["count", "index"]),
    tuple: frozenset(["count", "index"]),
    int: frozenset(),
    float: frozenset(),
}
_CONTAINERS = (dict, list, tuple)
_PLAIN = (str, int, float, type(None), Undefined, *_CONTAINERS)


class _Budget:
    """Work that one rendering may do, and the largest value that it may make."""

    def __init__(self, inputs: object) -> None:
        self._sizes: dict[int, tuple[object, int]] = {}
        self._max_size = self._work = 1 << 62
        size = self.size(inputs)
        self._max_size = (1 << 22) + 8 * size
        self._work = 500_000 * _STEP + 4000 * size

    def spend(self, work: int) -> None:
        self._work -= work
        if self._work < 0:
            raise _limit("more steps than its input justifies")

    def check_size(self, size: int) -> None:
        if size > self._max_size:
            raise _limit(f"a value of size {size}, wanted at most {self._max_size}")

    def size(self, value: object) -> int:
        """Characters and items of a value. One item that occurs n times counts n times, as it does in text.

        Sizes of containers are remembered, since nothing changes them and they are built from each other.
        """
        if isinstance(value, str):
            return 1 + len(value)
        if not isinstance(value, _CONTAINERS):
            return 1
        known = self._sizes.get(id(value))
        if known is not None:
            return known[1]
        items = [*value.keys(), *value.values()] if isinstance(value, dict) else value
        size = 1 + sum(map(self.size, items))
        self.check_size(size)
        self._sizes[id(value)] = (value, size)
        return size

    def work(self, value: Any) -> int:
        """Work of going through a value once."""
        return self.size(value) + (_STEP * len(value) if isinstance(value, _CONTAINERS) else 0)

    def made(self, value: Any) -> Any:
        """Count a new value."""
        self.check_size(self.size(value))
        self.spend(self.work(value))
        return value


_budget: ContextVar[_Budget] = ContextVar("budget")


def _limit(found: str) -> ArgumentError:
    return ArgumentError(f"chat template: found {found}")


def _listed(value: Any) -> Any:
    """A list of what an iterator, a range or a dictionary's view gives: its size can be counted."""
    if not isinstance(value, (Iterator, range, MappingView)):
        return value
    budget = _budget.get()
    items = []
    for item in cast("Iterable[Any]", value):
        budget.spend(1)
        items.append(item)
    return items


def _write(value: object) -> str:
    """A value as text."""
    if not isinstance(value, _PLAIN):
        raise _limit(f"{type(value).__name__} to write, wanted text, a number, an array or an object")
    if isinstance(value, str):
        return value
    if isinstance(value, _CONTAINERS):
        _budget.get().spend(_budget.get().size(value))
    return str(value)


def _check_growth(name: str, text: object, args: Sequence[Any]) -> None:
    """Before a method or filter of this name reads `text`: refuse too large a result, count hidden work."""
    budget = _budget.get()
    size = budget.size(text)
    longest = max((len(arg) for arg in args if isinstance(arg, str)), default=0)
    if name == "replace" and len(args) >= 2:
        found = str(text).count(str(args[0]))
        budget.check_size(size + found * len(str(args[1])))
    elif name == "join":
        values = [text, *args]
        strings = [len(value) for value in values if isinstance(value, str)]
        counts = [len(value) for value in values if isinstance(value, _CONTAINERS)] or strings
        budget.check_size(sum(map(budget.size, values)) + max(counts, default=0) * max(strings, default=0))
    elif name in ("strip", "lstrip", "rstrip", "trim"):
        budget.spend(size * longest)
    elif name in ("map", "select", "reject", "selectattr", "rejectattr"):
        budget.spend(size * sum(map(budget.size, args)))


def _limited(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that counts what it reads and makes."""
    passed = getattr(function, "jinja_pass_arg", None)
    kind = None if passed is None else passed.name

    @jinja2.pass_context
    def counted(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        budget = _budget.get()
        value, *args = map(_listed, (value, *args))  # type: ignore[assignment]
        if name == "replace" and kwargs:
            raise _limit("the filter replace with named arguments, wanted its arguments in order")
        given = (*args, *kwargs.values())
        _check_growth(name, value, given)
        first = {
            None: (),
            "context": (context,),
            "eval_context": (context.eval_ctx,),
            "environment": (context.environment,),
        }[kind]
        result = _listed(function(*first, value, *args, **kwargs))
        if name in _QUICK_FILTERS:
            budget.spend(_STEP)
            return result
        budget.spend(_STEP + sum(map(budget.work, (value, *given))))
        return budget.made(result)

    return counted


@jinja2.pass_context
def _made(context: Context, value: Any) -> Any:
    return _budget.get().made(value)


@jinja2.pass_context
def _read(context: Context, value: Any) -> Any:
    budget = _budget.get()
    budget.spend(budget.size(value))
    return value


@jinja2.pass_context
def _step(context: Context, value: Any) -> Any:
    _budget.get().spend(_STEP)
    return value


def _joined(parts: Iterable[str]) -> str:
    """What a template writes, in one piece."""
    budget = _budget.get()
    pieces = []
    size = 0
    for part in parts:
        size += len(part)
        budget.spend(1 + len(part))
        budget.check_size(size)
        pieces.append(part)
    return "".join(pieces)


@jinja2.pass_context
def _concatenated(context: Context, values: Iterable[object]) -> str:
    return _joined(map(_write, values))


@jinja2.pass_context
def _finalize(context: Context, value: object) -> str:
    return _write(value)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Sequence[str] | None = None,
    sort_keys: bool = False,
) -> str:
    """`tojson` as the transformers library gives it to chat templates."""
    if indent is not None and not (isinstance(indent, int) and 0 <= indent <= _MAX_INDENT):
        raise _limit(f"tojson with an indent of {indent!r}, wanted 0 .. {_MAX_INDENT}")
    if separators is not None and (len(separators) != 2 or max(map(len, separators)) > _MAX_INDENT):
        raise _limit(f"tojson with the separators {separators!r}, wanted two short ones")
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=None if separators is None else (separators[0], separators[1]),
        sort_keys=sort_keys,
    )
    return _joined(encoder.iterencode(value))


def _raise(message: object) -> NoReturn:
    raise ArgumentError(f"chat template: {message}")


class _Counting(NodeTransformer):
    """Rewrites a template's tree: control tokens to marks, and everything that takes work counted."""

    def __init__(self, mark: Callable[[str, int], str]) -> None:
        self._mark = mark

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:
        node.data = self._mark(node.data, node.lineno)
        return node

    def visit_Const(self, node: nodes.Const) -> nodes.Node:
        if isinstance(node.value, str):
            node.value = self._mark(node.value, node.lineno)
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        if node.test is not None:
            node.test = _filter("__step", node.test)
        counter = _filter("__step", nodes.Const(0, lineno=node.lineno))
        node.body = [nodes.ExprStmt(counter, lineno=node.lineno), *node.body]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter("__concatenated", nodes.List(node.nodes, lineno=node.lineno))

    def _container(self, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        return node if getattr(node, "ctx", "load") != "load" else _filter("__made", node)

    visit_List = visit_Tuple = visit_Dict = _container

    def visit_Operand(self, node: nodes.Operand) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _filter("__read", node.expr)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _filter("__read", node.expr)
        return node

    def visit_Test(self, node: nodes.Test) -> nodes.Node:
        self.generic_visit(node)
        node.node = _filter("__read", node.node)
        node.args = [_filter("__read", argument) for argument in node.args or []]
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _filter("__made", node) if isinstance(node.arg, nodes.Slice) else node


def _filter(name: str, node: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Environment(ImmutableSandboxedEnvironment):
    """No loader, the filters of _FILTERS, and counted operators, calls and output."""

    intercepted_binops = frozenset(["+", "-", "*", "**", "/", "//", "%"])
    concat = staticmethod(_joined)

    def __init__(self, mark: Callable[[str, int], str]) -> None:
        extensions: list[type[Extension]] = [LoopControlExtension]
        # Not optimized: constants would be computed before there is a budget.
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=extensions, optimized=False, finalize=_finalize
        )
        self._mark = mark
        self.filters = {
            **{name: _limited(name, DEFAULT_FILTERS[name]) for name in _FILTERS},
            "tojson": _limited("tojson", _to_json),
            "__made": _made,
            "__read": _read,
            "__step": _step,
            "__concatenated": _concatenated,
        }
        self.globals = {"dict": dict, "namespace": Namespace, "range": safe_range, "raise_exception": _raise}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _Counting(self._mark).visit(tree)
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        for kind, methods in _METHODS.items():
            if isinstance(obj, kind):
                return attr in methods
        return not isinstance(obj, type) and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """str.format is not available; the sandbox would run it without a limit."""

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = _budget.get()
        numbers = [value for value in (left, right) if isinstance(value, int)]
        for sequence, count in ((left, right), (right, left)):
            if isinstance(sequence, (str, list, tuple)):
                if operator == "%":
                    raise _limit("printf-style formatting, which is not available")
                if operator == "*" and isinstance(count, int):
                    budget.check_size(budget.size(sequence) * count)
        bits = [value.bit_length() for value in numbers]
        if operator == "**" and len(bits) == 2 and max(bits[0], 1) * abs(right) > _MAX_BITS:
            raise _limit(f"a power of more than {_MAX_BITS} bits")
        if sum(bits) > _MAX_BITS:
            raise _limit(f"a number of more than {_MAX_BITS} bits")
        budget.spend(budget.size(left) + budget.size(right))
        return budget.made(super().call_binop(context, operator, left, right))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        budget = _budget.get()
        budget.spend(_CALL)
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str):
            args = tuple(map(_listed, args))
            budget.spend(sum(map(budget.work, (owner, *args))))
            _check_growth(obj.__name__, owner, args)
        for value in (args, kwargs):
            budget.check_size(1 + sum(map(budget.size, value.values() if isinstance(value, dict) else value)))
        return budget.made(super().call(context, obj, *args, **kwargs))


class ChatTemplate:
    """A template, compiled. Threads may share it."""

    def __init__(self, source: str, control_tokens: Iterable[str]) -> None:
        """`control_tokens`: names of the vocabulary's. ArgumentError: the source is no template for it."""
        if len(source) > _MAX_SOURCE:
            raise _limit(f"{len(source)} characters, wanted at most {_MAX_SOURCE}")
        self.knows_tools = "tools" in source and "tool_calls" in source
        """Whether it can declare tools and write calls; many templates have no words for them."""
        self._names = sorted(control_tokens, key=len, reverse=True)
        self._numbers = {name: number for number, name in enumerate(self._names)}
        self._name = re.compile("|".join(map(re.escape, self._names)) or r"(?!)")
        # Private characters around a number that no message can know.
        nonce = "".join(secrets.choice("0123456789") for _ in range(20))
        self._mark_format = f"\ue000{nonce}:{{}}\ue001"
        self._marked = re.compile(f"\ue000{nonce}:([0-9]+)\ue001")
        try:
            self._template = _Environment(self._mark).from_string(source)
        except ArgumentError:
            raise
        except jinja2.TemplateSyntaxError as error:
            raise ArgumentError(f"chat template: line {error.lineno}: {error.message}") from None
        except Exception as error:  # Jinja and the compiler fail in many ways on a hostile source.
            raise ArgumentError(f"chat template: {_describe(error)}") from None

    def _mark(self, text: str, line: int) -> str:
        marked = self._name.sub(lambda name: self._mark_format.format(self._numbers[name.group()]), text)
        rest = re.sub(r"<\|\w+\|>", "", marked)
        if "<|" in rest or "|>" in rest:
            raise ArgumentError(
                f"chat template: line {line}: found pieces of a control token, wanted it in one string"
            )
        return marked

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[Segment]:
        """The prompt. Inputs are plain JSON values. ArgumentError: the template fails, or exceeds a limit."""
        inputs = {
            "messages": list(messages),
            "tools": list(tools) or None,
            "add_generation_prompt": add_generation_prompt,
            **variables,
        }
        try:
            token = _budget.set(_Budget(inputs))
        except RecursionError:
            raise _limit("messages nested too deep") from None
        try:
            text = self._template.render(inputs)
        except ArgumentError:
            raise
        except Exception as error:  # Whatever a template does wrong is the template's fault.
            raise ArgumentError(f"chat template: {_describe(error)}") from None
        finally:
            _budget.reset(token)
        return self._segments(text)

    def _segments(self, text: str) -> list[Segment]:
        segments = []
        for number, part in enumerate(self._marked.split(text)):
            if number % 2:
                segments.append(Segment("control", self._names[int(part)]))
            elif part:
                segments.append(Segment("text", part))
        return segments


def _describe(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "found calls nested too deep"
    return str(error) or type(error).__name__

"""Structured output: grammars that the model's tokens are drawn from.

Chat requests (tools and response formats), JSON schemas and GBNF become constraints of tokens. A schema is
brought to a normal form (schema.py), written as rules around the model's chat format (xtml_grammar.py,
k2_grammar.py) and compiled by llguidance (compiler.py).
"""

from .compiler import GrammarCompiler
from .constraint import GrammarConstraint
from .errors import GrammarError

__all__ = ["GrammarCompiler", "GrammarConstraint", "GrammarError"]

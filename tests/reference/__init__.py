"""The model as an executable description: a float64 numpy forward of Kimi-K3 and Kimi-Linear.

It reads a Hugging Face checkpoint folder and follows MODEL.md step by step. Nothing here is tuned for speed,
and every result is float64, so that it can judge the C runtime. Shapes in comments: T tokens of this call,
S all tokens so far, H hidden size, h heads, D head size, E experts.
"""

from .model import ReferenceModel, State
from .tokens import separated_tokens

__all__ = ["ReferenceModel", "State", "separated_tokens"]

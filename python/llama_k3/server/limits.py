"""Bounds of what a request may ask for; each has its error."""

from __future__ import annotations

MAX_STOP_STRINGS = 64
MAX_STOP_LENGTH = 1024
"""Characters of one stop string."""

MAX_LOGIT_BIAS = 1024
"""Entries of logit_bias; a text counts once for each of its tokens."""

MAX_PROBS = 100
"""Likeliest tokens reported with each token."""

MAX_PROMPTS = 64
"""Prompts of one request, each of which may have several answers."""

MAX_ANSWERS = 128
"""Answers to one request: prompts times n."""

MAX_MESSAGES = 65_536
MAX_TOOLS = 1024
MAX_RESPONSE_FIELDS = 256

INT32_MAX = 2**31 - 1

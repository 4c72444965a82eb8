"""Reasoning in the opaque strings that clients hand back unread: signatures and encrypted contents.

A sealed text is encoded, not encrypted: it hides nothing, and lets a client that is not shown the reasoning
return it with the next turn.
"""

from __future__ import annotations

import base64
import binascii
import hashlib

_SEALED = "k3-text-"
_SIGNED = "k3-sha256-"


def sign(text: str) -> str:
    """A string that goes with a reasoning text; the same for the same text, never empty."""
    digest = hashlib.sha256(text.encode("utf-8", "replace")).digest()
    return _SIGNED + base64.urlsafe_b64encode(digest).decode()


def seal(text: str) -> str:
    """A string of printable ASCII that holds the text."""
    return _SEALED + base64.urlsafe_b64encode(text.encode("utf-8", "replace")).decode()


def unseal(sealed: str) -> str:
    """The text of `seal`; empty where the string is another server's, a signature or damaged."""
    if not sealed.startswith(_SEALED):
        return ""
    try:
        return base64.b64decode(sealed[len(_SEALED) :].encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError):
        return ""

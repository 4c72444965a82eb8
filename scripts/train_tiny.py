#!/usr/bin/env python3
"""Command line of the tiny Kimi-K3's training; `--help` has the recipe, scripts/tiny_k3 the code."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from scripts.tiny_k3.cli import main

    sys.exit(main())

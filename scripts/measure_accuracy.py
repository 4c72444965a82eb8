#!/usr/bin/env python3
"""Command line of the accuracy measurement; `--help` tells more, scripts/accuracy has the code."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from scripts.accuracy.cli import main

    sys.exit(main())

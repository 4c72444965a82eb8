#!/usr/bin/env python3
"""Command line of the models for speed measurements; `--help` has the kinds, scripts/bench_model the code."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from scripts.bench_model.cli import main

    sys.exit(main())

"""Command `python convert_k3.py CHECKPOINT --outfile OUT.gguf`: see convert/cli.py."""

import sys

from convert.cli import main

if __name__ == "__main__":
    sys.exit(main())

"""A folder of broken GGUF files, each with the status that loading it has to give.

    python tests/bad_files.py OUT_DIR

writes the files and `manifest.json`, {path below OUT_DIR: status name}. Every file is under 64 KB. Those
named `good_*` load (LLAMA_K3_OK); the others each break one thing of a tiny valid model. The other parts of a
split model lie beside the one that the manifest names.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

if __package__ in (None, ""):  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.broken.container import container_cases
from tests.broken.good import good_cases
from tests.broken.model import model_cases
from tests.broken.split import split_cases
from tests.broken.tiny import MAX_FILE_SIZE, Case


def cases() -> list[Case]:
    """All cases; each path and each expectation once."""
    out = [*good_cases(), *container_cases(), *model_cases(), *split_cases()]
    paths = [case.load for case in out]
    assert len(set(paths)) == len(paths), "two cases of one name"
    return out


def write_folder(out_dir: Path) -> list[Case]:
    """Writes the files of all cases and manifest.json; returns the cases."""
    out = cases()
    for case in out:
        for path, content in case.files.items():
            target = out_dir / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                target.mkdir(exist_ok=True)
            else:
                assert len(content) < MAX_FILE_SIZE, f"{path}: {len(content)} bytes"
                target.write_bytes(content)
    manifest = {case.load: case.status for case in out}
    (out_dir / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    return out


def main() -> int:
    if len(sys.argv) != 2:
        sys.exit("usage: python tests/bad_files.py OUT_DIR")
    out = write_folder(Path(sys.argv[1]))
    print(f"{len(out)} cases in {sys.argv[1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

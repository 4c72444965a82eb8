"""How the page's files are served, and what may not stand in them."""

from __future__ import annotations

import re

import pytest
from llama_k3.server.web import STATIC, WEB_FILES, add_web_page
from starlette.applications import Starlette
from starlette.testclient import TestClient


@pytest.fixture(scope="module")
def client() -> TestClient:
    app = Starlette()
    add_web_page(app)
    return TestClient(app)


@pytest.mark.parametrize("path", WEB_FILES)
def test_files_have_types_validators_and_a_policy(client: TestClient, path: str) -> None:
    answer = client.get(path)
    types = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    kind = "html" if path == "/" else path.rpartition(".")[2]
    assert answer.status_code == 200
    assert answer.headers["content-type"].partition(";")[0] == types[kind]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-cache"
    policy = answer.headers["content-security-policy"].split("; ")
    assert "default-src 'self'" in policy and "frame-ancestors 'none'" in policy
    assert not re.search(r"unsafe|\*|https?:|data:", answer.headers["content-security-policy"])
    tag = answer.headers["etag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = client.get(path, headers={"If-None-Match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert client.get(path, headers={"If-None-Match": '"other"'}).content == answer.content
    head = client.head(path)
    assert (head.status_code, head.headers["content-length"]) == (200, str(len(answer.content)))


@pytest.mark.parametrize(
    "path", ["/web/", "/web/index.htm", "/web/../__init__.py", "/web/%2e%2e/__init__.py", "/web/js"]
)
def test_nothing_else_is_served(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


def test_every_file_is_served_and_asked_for() -> None:
    """Each file of the folder has a URL, and each but the page is named by another one."""
    files = {
        path.relative_to(STATIC).as_posix(): path.read_text() for path in STATIC.rglob("*") if path.is_file()
    }
    assert len(files) == len(WEB_FILES)
    texts = "\n".join(files.values())
    for name in files:
        assert name == "index.html" or name.rpartition("/")[2] in texts, name


def test_no_address_outside_and_no_way_to_make_markup() -> None:
    for path in STATIC.rglob("*"):
        if path.is_file():
            text = path.read_text().replace("http://www.w3.org/2000/svg", "")
            assert not re.search(r"https?://\w", text), path
            if path.suffix == ".js":
                assert not re.search(
                    r"(inner|outer)HTML|insertAdjacentHTML|document\.write|eval\(|Function\(", text
                ), path
                assert len(text.splitlines()) < 400, path


def test_the_page_has_no_inline_code() -> None:
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", page)
    assert not re.search(r'(src|href)="/', page), "an absolute path breaks under a prefix"

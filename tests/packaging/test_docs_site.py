"""`make docs` builds a site: every page is in it, it needs no other host, and what is broken fails the build."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from support.doc_blocks import ROOT, pages

TOOLS = ROOT / ".cache" / "docs"
_ELSEWHERE = re.compile(r"(?:[a-z][a-z0-9+.-]*:)?//|https?:", re.IGNORECASE)
_CSS = re.compile(r"""@import\s+(?:url\()?\s*["']?([^"')\s;]+)|url\(\s*["']?([^"')\s]+)""")
# What a page loads by itself; the href of an `a` is followed by its reader only.
_LOADED = {
    "script": ("src",),
    "link": ("href",),
    "img": ("src", "srcset"),
    "iframe": ("src",),
    "source": ("src", "srcset"),
    "video": ("src", "poster"),
    "audio": ("src",),
    "object": ("data",),
    "embed": ("src",),
    "use": ("href", "xlink:href"),
}
# Of the kinds of `link`, these only name an address.
_NAMED_ONLY = {"canonical", "prev", "next", "author", "license", "search", "index"}


def _built(root: Path, to: Path) -> subprocess.CompletedProcess[str]:
    assert TOOLS.is_dir(), "the tools of the documentation are missing: run `make docs`, which fetches them"
    command = [sys.executable, "-m", "sphinx", "-E", "--quiet", "--fail-on-warning", "--jobs", "2"]
    command += ["--conf-dir", str(root / "docs/site"), "--doctree-dir", str(to / "pages"), "--builder", "html"]
    environment = {**os.environ, "PYTHONPATH": str(TOOLS)}
    command += [str(root), str(to / "site")]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=root)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("docs")
    done = _built(ROOT, to)
    assert done.returncode == 0, done.stderr
    return to / "site"


class _Loads(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._is_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self._is_style = tag == "style"
        if tag == "link" and set(values.get("rel", "").split()) <= _NAMED_ONLY:
            return
        self.found += [values[name] for name in _LOADED.get(tag, ()) if name in values]
        self.found += _of_css(values.get("style", ""))

    def handle_data(self, data: str) -> None:
        if self._is_style:
            self.found += _of_css(data)


def _of_css(text: str) -> list[str]:
    return [imported or url for imported, url in _CSS.findall(text)]


def _from_other_hosts(site: Path) -> list[str]:
    """What the pages and style sheets of a site load from elsewhere."""
    found = []
    for path in sorted(site.rglob("*")):
        if path.suffix == ".html":
            reader = _Loads()
            reader.feed(path.read_text("utf-8"))
            loads = reader.found
        elif path.suffix == ".css":
            loads = _of_css(path.read_text("utf-8"))
        else:
            continue
        found += [f"{path.relative_to(site)}: {one}" for one in loads if _ELSEWHERE.match(one)]
    return found


def test_every_page_is_in_the_site_and_its_comments_are_not(site: Path) -> None:
    for page in pages():
        made = (site / page).with_suffix(".html")
        assert made.exists(), f"{page} is not in the site"
        text = made.read_text("utf-8")
        body = text[text.index("<article") : text.index("</article>")]
        assert re.findall(r"<!-- *(?:not run|wait|Made by).*", body) == []
    assert 'url=docs/index.html"' in (site / "index.html").read_text("utf-8")


def test_the_navigation_has_the_sections_of_the_index_in_their_order(site: Path) -> None:
    page = (site / "docs/tutorial.html").read_text("utf-8")
    captions = re.findall(r'<p class="caption"[^>]*><span class="caption-text">([^<]+)<', page)
    headings = re.findall(r"^## (.+)$", (ROOT / "docs/index.md").read_text("utf-8"), re.MULTILINE)
    assert captions == [*headings, "Repository"]


def test_the_site_loads_nothing_from_another_host(site: Path) -> None:
    assert _from_other_hosts(site) == []


def test_control_a_font_a_script_and_an_image_of_another_host_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<script src="https://cdn.example/a.js"></script><img src="//cdn.example/b.png"><img src="b.png">'
        '<a href="https://example.org">read</a><link rel="stylesheet" href="HTTPS://cdn.example/c.css">'
        "<style>@import 'https://cdn.example/d.css';</style>"
    )
    (tmp_path / "b.css").write_text('@font-face{src:url("https://cdn.example/e.woff2")} a{background:url(data:,x)}')
    found = _from_other_hosts(tmp_path)
    assert [one.rpartition("/")[2] for one in found] == ["a.js", "b.png", "c.css", "d.css", "e.woff2"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("", ""),
        ("\n[gone](gone.md)\n", "cross-reference target not found: 'gone.md'"),
        ("\n[gone](other.md#no-such-heading)\n", "local id not found in doc 'docs/other': 'no-such-heading'"),
        ("\n[gone](../conf/gone.yaml)\n", "cross-reference target not found: '../conf/gone.yaml'"),
        ("alone", "document isn't included in any toctree"),
    ],
    ids=["nothing", "page", "heading", "file", "navigation"],
)
def test_what_is_broken_fails_the_build_with_a_sentence(change: str, sentence: str, tmp_path: Path) -> None:
    """In a copy with two pages: a link without its page, heading or file, and a page that the index does not have."""
    docs = tmp_path / "docs"
    shutil.copytree(ROOT / "docs/site", docs / "site")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    docs.joinpath("index.md").write_text("# Home\n\n## Pages\n\n- [other](other.md)\n")
    docs.joinpath("other.md").write_text(f"# Other\n{change if change != 'alone' else ''}")
    if change == "alone":
        docs.joinpath("alone.md").write_text("# Alone\n")
    done = _built(tmp_path, tmp_path / "out")
    assert (done.returncode != 0) == bool(change), done.stderr
    assert sentence in done.stderr

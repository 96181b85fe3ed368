"""The documentation as a site: what Sphinx is told by `make docs`.

The pages are those of the repository, as they are: Markdown for a plain Git host, read with MyST. The source folder is
the root of the repository, so that a link from a page to ARCHITECTURE.md or to a file of conf/ means the same here as
there. The navigation is that of docs/index.md: its headings and their links. A page that it does not link to is in no
navigation, which is an error, as is a link to a page, heading or file that does not exist.

The site loads nothing from other hosts, and its pages can be opened from a disk: an edge box has no internet.
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HOME = "docs/index"

project = "headwater"
copyright = "the authors of headwater. Apache-2.0"  # noqa: A001 Sphinx reads this name
version = release = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]

extensions = ["myst_parser"]
root_doc = HOME
include_patterns = ["*.md", "docs/**", "deploy/**"]
# Folders that are large or are not ours to read; a pattern of a folder keeps Sphinx out of it.
exclude_patterns = [".*", "broker_edge", "dist", "data", "notebooks", "tests", "docs/site", "**/__pycache__"]
myst_heading_anchors = 6
# An address with a scheme is a plain link; nothing else is.
myst_url_schemes = ["http", "https", "mailto"]

# Quotes and dashes stay as they are written.
smartquotes = False

html_theme = "furo"
html_title = f"headwater {release}"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_use_index = False
# Light and dark by the reader's system, with a button for the other one.
pygments_style = "default"
pygments_dark_style = "github-dark"

_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s#]+\.md)[^)]*\)")
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_COMMENT = re.compile(r"^ *<!--.*?-->\n", re.DOTALL | re.MULTILINE)
_FENCED = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)
_TO_A_PLACE = re.compile(r"(?<!!)\[([^\]]*)\]\(([^):#\s]+)\)")
# A Git host shows a folder; here a page has the list of its files.
_FOLDERS = {Path("docs/adr"): "docs/index.md#decisions"}


def setup(app: Any) -> None:
    app.connect("source-read", _as_for_the_site)
    app.connect("build-finished", _begin_at_home)


def _as_for_the_site(app: Any, page: str, source: list[str]) -> None:
    text = _without_comments(source[0])
    text = _TO_A_PLACE.sub(lambda link: _without_folder(Path(app.srcdir), Path(page).parent, link), text)
    if page == HOME:
        others = sorted(one for one in app.env.found_docs if not one.startswith("docs/"))
        text += _navigation(text, others)
    source[0] = text


def _without_comments(text: str) -> str:
    """The text without the comments that speak to tests, except where they are an example in a block."""
    kept, at = [], 0
    for block in _FENCED.finditer(text):
        kept += [_COMMENT.sub("", text[at : block.start()]), block[0]]
        at = block.end()
    return "".join([*kept, _COMMENT.sub("", text[at:])])


def _without_folder(root: Path, here: Path, link: re.Match[str]) -> str:
    """A link, or its text when it leads to a folder that no page lists."""
    place = root / here / link[2]
    if not place.is_dir():
        return link[0]
    page = _FOLDERS.get(place.resolve().relative_to(root.resolve()))
    return link[1] if page is None else f"[{link[1]}](/{page})"


def _navigation(index: str, others: list[str]) -> str:
    """A list of pages for each heading of the index, in its order, and one of the others outside of docs/."""
    sections = _HEADING.split(index)
    seen: set[str] = set()
    written = ""
    for caption, text in zip(["", *sections[1::2]], sections[0::2], strict=True):
        # The head of the index links to the same pages as its sections.
        links = _LINK.findall(text) if caption else []
        pages = dict.fromkeys(posixpath.normpath(f"docs/{link}").removesuffix(".md") for link in links)
        fresh = [page for page in pages if page not in seen]
        seen.update(fresh)
        written += _toctree(caption, fresh) if fresh else ""
    left = [page for page in others if page not in seen]
    return written + (_toctree("Repository", left) if left else "")


def _toctree(caption: str, pages: list[str]) -> str:
    entries = "\n".join(f"/{page}" for page in pages)
    return f"\n\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{entries}\n```\n"


def _begin_at_home(app: Any, failure: Exception | None) -> None:
    """The address of the site itself leads to the index."""
    if failure is None:
        page = f'<!doctype html><meta charset="utf-8"><title>{project}</title>'
        page += f'<meta http-equiv="refresh" content="0; url={HOME}.html"><a href="{HOME}.html">{project}</a>\n'
        (Path(app.outdir) / "index.html").write_text(page, "utf-8")

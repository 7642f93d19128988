"""Configuration of the documentation site that `make docs` builds with Sphinx.

Pages are plain Markdown that also reads well on GitHub, so no page holds a toctree. A section's `index.md` links to its
pages instead. The site's navigation follows these links, in their order.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

project = "vkgateway"
copyright = "vkgateway contributors"  # noqa: A001 - Sphinx prescribes the name
extensions = ["myst_parser", "sphinxcontrib.mermaid"]
html_theme = "furo"
html_title = "vkgateway"
html_copy_source = False
html_show_sphinx = False
exclude_patterns = ["_build"]

myst_enable_extensions = ["alert", "tasklist"]
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]

_LINK = re.compile(r"\[([^\]]*)\]\(((?!#|[a-z]+:)[^)#\s]+)(?:#[^)\s]+)?\)")
_PAGE_LINK = re.compile(r"\]\((?!\.\.|[a-z]+:|/)([^)#\s]+)\.md\)")


def _unlink_outside(app: Any, docname: str, source: list[str]) -> None:
    """Replace links to pages and folders outside of docs/ by their text: the site doesn't have them."""
    folder = (Path(app.srcdir) / docname).parent

    def replaced(match: re.Match[str]) -> str:
        target = (folder / match[2]).resolve()
        outside = not target.is_relative_to(app.srcdir)
        return match[1] if outside and (target.is_dir() or target.suffix == ".md") else match[0]

    source[0] = _LINK.sub(replaced, source[0])


def _append_toctree(app: Any, docname: str, source: list[str]) -> None:
    """Append to a section's index a hidden toctree of the pages that it links to, each once."""
    folder, _, name = docname.rpartition("/")
    if name != "index":
        return
    pages = [page for page in dict.fromkeys(_PAGE_LINK.findall(source[0])) if _is_child(page)]
    missing = [page for page in pages if not (Path(app.srcdir) / folder / f"{page}.md").exists()]
    entries = "\n".join(page for page in pages if page not in missing)
    source[0] += f"\n\n```{{toctree}}\n:hidden:\n\n{entries}\n```\n"


def _is_child(page: str) -> bool:
    """Return whether the index lists a page: one in its folder, or the index of a subfolder."""
    return "/" not in page or page.endswith("/index")


def setup(app: Any) -> None:
    """Register the hooks with Sphinx."""
    app.connect("source-read", _unlink_outside)
    app.connect("source-read", _append_toctree)

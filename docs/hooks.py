"""Hooks of MkDocs: pages and files of the site that lie outside ``docs/``.

Links are written as the repository has them, so that they also work where the files are browsed.
The site gets the few files outside ``docs/`` that pages link to; each link is rewritten.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

REPOSITORY = Path(__file__).parent.parent
#: Pages that lie outside ``docs/``, and their names in the site.
PAGES = {
    "README.md": "overview.md",
    "config/README.md": "configuration.md",
    "scheduler-plugin/README.md": "scheduler-plugin.md",
    "CHANGELOG.md": "changelog.md",
}
#: Other files that pages link to; they are copied.
COPIES = (
    "CITATION.cff",
    "Dockerfile",
    "workflow/Snakefile",
    "config/config.yaml",
    "config/demo.yaml",
    "profiles/slurm/config.yaml",
    "profiles/hipergator/config.yaml",
)
_SOURCE = {page: path for path, page in PAGES.items()}
_PLACE = {**PAGES, **{path: f"repository/{path}" for path in COPIES}}
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)\s#]+)")


def place(path: str) -> str:
    """Return the path of a file of the repository in the site; above it, if it is not copied.

    >>> place("docs/images/gantt.png"), place("config/README.md"), place("Makefile")
    ('images/gantt.png', 'configuration.md', '../Makefile')
    """
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return _PLACE.get(path, f"../{path}")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what lies outside ``docs/``."""
    for path, there in _PLACE.items():
        files.append(File.generated(config, there, abs_src_path=str(REPOSITORY / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links between files of the repository to those of the site."""
    here = page.file.src_uri
    folder = posixpath.dirname(_SOURCE.get(here, f"docs/{here}"))

    def rewritten(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link[1]))
        return posixpath.relpath(place(path), posixpath.dirname(here) or ".")

    return _LINK.sub(rewritten, markdown)

"""Count the words of the documentation that are written by hand: ``python -m docs.words``.

What stands between the marks of ``make docs`` does not count.
"""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
_GENERATED = re.compile(r"<!-- ([^>]*?): written by make docs -->.*?<!-- end of \1 -->", re.DOTALL)


def by_hand(text: str) -> int:
    """Return how many words of a page are not generated.

    >>> by_hand("# Keys <!-- keys: written by make docs --> | a | b | <!-- end of keys --> end")
    3
    """
    return len(_GENERATED.sub("", text).split())


def pages() -> dict[str, int]:
    """Return the words by hand of every page but the repository's README and changelog."""
    paths = sorted((REPOSITORY / "docs").glob("*.md"))
    paths += [REPOSITORY / "config/README.md", REPOSITORY / "scheduler-plugin/README.md"]
    return {
        str(path.relative_to(REPOSITORY)): by_hand(path.read_text(encoding="utf-8"))
        for path in paths
    }


if __name__ == "__main__":
    for name, count in pages().items():
        print(f"{count:6d} {name}")
    print(f"{sum(pages().values()):6d} in all")

"""Numbers, names and text of others, in words."""

import difflib
from collections.abc import Iterable


def count(number: int, word: str) -> str:
    """Return a number with its noun.

    >>> count(1, "job"), count(2, "job")
    ('1 job', '2 jobs')
    """
    return f"{number} {word}{'' if number == 1 else 's'}"


def few(names: Iterable[object], most: int = 6) -> str:
    """Return the first names, and how many more there are.

    >>> few(["DAPI", "CD3"]), few(range(9))
    ('DAPI, CD3', '0, 1, 2, 3, 4, 5 and 3 more')
    """
    texts = [str(name) for name in names]
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def printable(text: object, most: int = 1000) -> str:
    r"""Return text of others as one line of at most so many printable characters.

    Any white space is a space; what no terminal, comment or table should hold is written as its
    escape.

    >>> printable("CD8\u2028\x1b[2J"), printable("a" * 9, 4)
    ('CD8 \\x1b[2J', 'aaa…')
    """
    line = "".join(
        c if c.isprintable() else " " if c.isspace() else c.encode("unicode_escape").decode()
        for c in str(text)[: most + 1]
    )
    return line if len(line) <= most else f"{line[: most - 1]}…"


def suggestion(name: str, known: Iterable[str], listed: Iterable[str] | None = None) -> str:
    """Return the most similar name as a question, else all names, or those to be ``listed``.

    >>> suggestion("stich", ["stitch", "edf"]), suggestion("x", ["stitch", "edf"])
    ("did you mean 'stitch'?", 'known are stitch, edf')
    """
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    shown = names if listed is None else listed
    return f"did you mean '{near[0]}'?" if near else f"known are {', '.join(shown)}"

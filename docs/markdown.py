"""Tables in Markdown."""

from collections.abc import Iterable


def table(*rows: Iterable[str]) -> str:
    """Return a table in Markdown; the first row is its head.

    >>> print(table(("a", "b"), ("1", "2")))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    head, *body = ([*row] for row in rows)
    text = [f"| {' | '.join(row)} |" for row in (head, *body)]
    return "\n".join([text[0], "|" + "---|" * len(head), *text[1:]])

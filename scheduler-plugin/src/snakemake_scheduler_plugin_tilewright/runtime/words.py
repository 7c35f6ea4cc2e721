"""Numbers, errors, and text of others, in words."""

import logging
import traceback


def count(number: int, word: str) -> str:
    """Return a number with its noun.

    >>> count(1, "job"), count(2, "job")
    ('1 job', '2 jobs')
    """
    return f"{number} {word}{'' if number == 1 else 's'}"


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


def printable_lines(text: object) -> str:
    """Return text of which each line is printable: a message that holds words of others."""
    return "\n".join(printable(line, 10_000) for line in str(text).split("\n"))


def printable_log(log: logging.Logger) -> logging.Logger:
    """Return a log that goes where another goes: each message one printable line."""
    own = log.getChild("tilewright")
    if not own.filters:
        own.addFilter(_in_one_line)
    return own


def _in_one_line(record: logging.LogRecord) -> bool:
    record.msg, record.args = printable(record.getMessage(), 10_000), None
    if record.exc_info:  # which formatters write below, where there is no text of it yet
        lines = traceback.format_exception(*record.exc_info)
        record.exc_text = printable_lines("".join(lines).rstrip())
    return True

"""Damages of valid samples, and what each reader of texts or headers must do with them."""

import os
import re
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

Words = tuple[bytes, bytes]
#: More by hand, to look for what is not known yet.
EXAMPLES = int(os.environ.get("TILEWRIGHT_FUZZ_EXAMPLES", "0"))
#: What takes the place of a value, or comes between two.
ODD = [
    b"", b"\0", b"\x1b[2J", b"9" * 5000, b"9" * 18, b"1e999", b"-1e308", b"1e308", b"1e-300",
    b"NaN", b"inf", b"-1", b"0", b"0.5", b"x" * 4000, b"\xff\xfe\xfd",
    "\u2028\u202e\u0085".encode(), "µ²٣".encode(), "é".encode("utf-16"), b"[" * 1000, b"{" * 3000,
    b"<a>" * 3000, b'{"a":' * 3000, b"=1+1", b"../../x", b"/", b"null", b"true", b"[]", b"{}",
    b"!!timestamp x", b"!!int x", b"*x", b"&x", b"? ", b"- ", b"(", b")", b'"', b"'", b"\\", b"\r",
    b"\n", b"\t", b",", b"=", b":", b"|", b"&#0;", b"&#27;", b"&a;", b"<!--", b"%s", b"{0}",
    b"\\u001b[2J", b"\\ud800", b'"\\e[2J"', b"[1]", b'{"x": [1]}', b"2" * 4300, b"2026-99-99",
    b"0x1f", b"1:60", b"N(1)",
]  # fmt: skip
#: What takes the place of as many bytes of a header.
INTEGERS = [bytes(k) for k in (1, 2, 4, 8)] + [b"\xff" * k for k in (1, 2, 4, 8)]
INTEGERS += [n.to_bytes(k, "little") for n in (1, 7, 16, 127) for k in (1, 2, 4)]
INTEGERS += [b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\0\x01\0\0", b"\0\0\x01\0"]
_VALUE = re.compile(rb"[^\s\"'<>=,;|:(){}\[\]]+")
_QUOTED = re.compile(rb'"[^"]*"')
_HOW = ("value", "value", "quoted", "insert", "flip", "cut", "repeat", "drop", "other")
_HOW_BYTES = ("write", "write", "write", "flip", "cut", "repeat", "drop")


@st.composite
def damages(draw: st.DrawFn, samples: Sequence[bytes], odd: Sequence[bytes] = ODD) -> bytes:
    """Draw a sample with one to three damages."""
    data = draw(st.sampled_from(samples))
    for _ in range(draw(st.sampled_from((1, 1, 1, 2, 3)))):
        how = draw(st.sampled_from(_HOW if odd is ODD else _HOW_BYTES))
        at = draw(st.integers(0, max(0, len(data) - 1)))
        end = at + draw(st.integers(1, 40))
        kind = {"value": _VALUE, "other": _VALUE, "quoted": _QUOTED}.get(how)
        spans = [one.span() for one in kind.finditer(data)] if kind else []
        if spans:
            at, end = spans[draw(st.integers(0, len(spans) - 1))]
        if how == "other" and spans:
            first, last = spans[draw(st.integers(0, len(spans) - 1))]
            data = data[:at] + data[first:last] + data[end:]
        elif how == "flip":
            data = data[:at] + bytes([draw(st.integers(0, 255))]) + data[at + 1 :]
        elif how in ("cut", "drop"):
            data = data[:at] + (b"" if how == "cut" else data[end:])
        elif how == "repeat":
            data = data[:end] + data[at:end] * draw(st.sampled_from((1, 2, 300))) + data[end:]
        else:
            new = draw(st.sampled_from(odd))
            end = {"insert": at, "write": at + len(new)}.get(how, end)
            data = data[:at] + new + data[end:]
    return data


class Reader(NamedTuple):
    """What reads a text: valid ones, its errors, and a name that these must say."""

    samples: Sequence[bytes]
    use: Callable[[bytes], object]
    errors: type[BaseException] | tuple[type[BaseException], ...]
    named: str = ""
    examples: int = 60
    odd: Sequence[bytes] = ODD


def check(reader: Reader, found: Sequence[Words], said: Callable[[], str]) -> None:
    """Check that damaged texts are read, or refused in printable words, within 2 s of CPU time.

    Parameters
    ----------
    found : sequence of (bytes, bytes)
        Words of a sample, or nothing for all of it, and what took their place when it was not so.
    said : callable
        Returns what was printed since it was last called.
    """

    def use(data: bytes) -> None:
        start_s = time.process_time()
        try:
            reader.use(data)
        except reader.errors as error:
            lines, args = str(error).split("\n"), str(error.args)
        else:
            lines, args = [reader.named], ""
        assert reader.named in lines[0] + args
        assert all(map(str.isprintable, lines))
        assert len(lines) < 3 or "problems:" in lines[0]
        assert len(lines[0]) < 5000
        assert time.process_time() - start_s < 2
        assert all(map(str.isprintable, said().split("\n")))

    for sample in reader.samples:
        reader.use(sample)
    said()
    test = given(damages(reader.samples, reader.odd))(use)
    for old, new in found:
        (data, *_) = [one.replace(old or one, new, 1) for one in reader.samples if old in one]
        test = example(data)(test)
    settings(
        max_examples=EXAMPLES or reader.examples,
        suppress_health_check=list(HealthCheck),
        derandomize=not EXAMPLES,
        database=None,
    )(test)()

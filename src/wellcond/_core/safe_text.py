"""Names and paths as text that is safe to show: what a terminal would act on becomes an escape that can be read."""

from __future__ import annotations

import re

LINE_BREAK = re.compile(r"\s*[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]\s*")


def visible(text: object, keep: str = "") -> str:
    r"""Escape control characters, bidirectional overrides and halves of surrogate pairs, as Python writes them.

    A module may have any name, and so may a folder; written raw, `\x1b]0;…` sets the title of a terminal, `\u202e`
    turns a line around, and half a surrogate pair cannot be written at all. Characters to `keep`, such as line breaks
    of a table, stay as they are.

    >>> print(visible("blocks.\x1b]0;title\x07.attn"), visible("a\nb"), visible("κ(J) ≤ 1"))
    blocks.\x1b]0;title\x07.attn a\nb κ(J) ≤ 1
    """
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in shown)


def one_line(text: object) -> str:
    r"""Escape a message as `visible` does; its line breaks become spaces.

    >>> print(one_line("expected two\n  got \x1bthree"))
    expected two got \x1bthree
    """
    return visible(LINE_BREAK.sub(" ", str(text).strip()))


def briefly(error: BaseException, longest: int) -> str:
    r"""Return an exception's class and text in one line of so many characters.

    >>> briefly(ValueError("two\nlines and more"), 20)
    'ValueError: two line…'
    """
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return text if len(text) <= longest else f"{text[:longest]}…"

"""Show the examples of docstrings as code on the API page: a griffe extension, see `mkdocs.yml`."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

# As doctest reads it: from a prompt to the next blank line.
EXAMPLE = re.compile(r"^(?P<indent> *)>>> .*(?:\n(?P=indent).*\S.*)*", re.MULTILINE)
FLAG = re.compile(r"\s*#\s*doctest:.*")


def fenced(text: str) -> str:
    """Put each doctest between fences; without them Markdown takes its prompts for quotations."""
    return EXAMPLE.sub(lambda m: f"{m['indent']}```pycon\n{FLAG.sub('', m[0])}\n{m['indent']}```", text)


class Doctests(Extension):
    """Fence the doctests of every object that griffe reads."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Change the docstring before it is parsed."""
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)

"""Show the arguments that `@same_arguments(other)` declares on the API page: a griffe extension, see `mkdocs.yml`."""

from __future__ import annotations

from typing import Any

from griffe import Extension, Function


class SameArguments(Extension):
    """Give a decorated function the parameters of the other one, which stands above it in its module."""

    def on_function(self, *, func: Function, **_: Any) -> None:
        """Replace `*args, **kwargs` before the docstring is parsed."""
        for decorator in func.decorators:
            name, _, rest = str(decorator.value).partition("(")
            if name == "same_arguments" and func.parent is not None:
                func.parameters = func.parent.members[rest.removesuffix(")")].parameters

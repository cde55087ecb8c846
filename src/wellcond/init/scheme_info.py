"""SchemeInfo: what `wc.schemes` tells of a scheme. Without torch, so that the command line can list schemes at once."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from wellcond._core.result_table import ResultTable, Tabular

REQUIRED = "(required)"  # shown as the default of an option that has none


@dataclass(frozen=True)
class SchemeInfo:
    """One scheme as `wc.schemes` lists it: its name, source, published settings and options.

    Args:
        name: what users write.
        summary: the first line of its documentation.
        citation: the paper.
        published: the settings the paper used, in words.
        options: name → default, `"(required)"` where there is none.

    >>> import wellcond as wc
    >>> info = wc.schemes("conditioned")[0]
    >>> info.name, info.options["query"]
    ('conditioned', 'orthogonal')
    >>> info.summary
    "Each head's W_Q and W_K semi-orthogonal, W_V a rectangular identity."
    """

    name: str
    summary: str
    citation: str
    published: str
    options: dict[str, Any] = field(hash=False)

    @property
    def options_text(self) -> str:
        """The options with their defaults in one line.

        >>> import wellcond as wc
        >>> wc.schemes("orthogonal")[0].options_text
        "gain=1.0, granularity='head'"
        """
        return ", ".join(
            f"{name}={value if value == REQUIRED else repr(value)}" for name, value in self.options.items()
        )


class SchemeInfos(Tabular, list[SchemeInfo]):
    """A list of schemes that prints as a table.

    >>> import wellcond as wc
    >>> print(wc.schemes("orth*"))
    scheme      what it does
    orthogonal  Q, K, V and O semi-orthogonal, each head by itself or each projection as one matrix.
    """

    def records(self) -> list[dict[str, Any]]:
        """One row per scheme; its options as text.

        >>> import wellcond as wc
        >>> [row["options"] for row in wc.schemes("small_init").records()]
        ['']
        """
        return [asdict(info) | {"options": info.options_text} for info in self]

    def _result_table(self) -> ResultTable:
        return ResultTable(["scheme", "what it does"], [[info.name, info.summary] for info in self])

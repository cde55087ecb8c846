"""Results that show as tables: text in a terminal, HTML in a notebook, rows for pandas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from wellcond._core.colours import colour_wanted, paint
from wellcond._core.safe_text import visible
from wellcond._core.terminal import filled
from wellcond._core.text_tables import table
from wellcond.errors import WellcondError

if TYPE_CHECKING:
    import pandas

STYLE = "text-align: left; vertical-align: top; white-space: pre-wrap"


class Graded(NamedTuple):
    """A line below a table, in the colour of a severity."""

    severity: str | None
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class ResultTable:
    """A table for people: a title, columns, and lines below; as wide as the terminal, and coloured if asked for.

    >>> print(ResultTable(["layer", "κ"], [["a<b", "1.5"]], title="one layer", notes=["all is well"]))
    one layer
    layer  κ
    a<b    1.5
    all is well
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    notes: Sequence[str | Graded] = ()
    severities: Sequence[str | None] = ()  # one a row, if rows have a colour

    def __str__(self) -> str:
        return self.text()

    def text(self, colour: bool = False) -> str:
        """Return the table as text, each row and line in the colour of its severity if wanted."""
        rows = table(self.header, self.rows, severities=self.severities if colour else ())
        notes = [
            paint(_fitted(note), note.severity if colour and isinstance(note, Graded) else None) for note in self.notes
        ]
        return "\n".join([*([_fitted(self.title)] if self.title else []), rows, *notes])

    def to_html(self) -> str:
        """Return the table as HTML: no script, no style sheet, every text escaped.

        >>> ResultTable(["layer"], [["a<b"]]).to_html().count("a&lt;b")
        1
        """
        head = "".join(f'<th style="{STYLE}">{escape(cell)}</th>' for cell in self.header)
        cells = ("".join(f'<td style="{STYLE}">{escape(cell)}</td>' for cell in row) for row in self.rows)
        notes = "\n".join(map(str, self.notes)).strip("\n")
        parts = [
            f"<p>{escape(self.title)}</p>" if self.title else "",
            f"<table><thead><tr>{head}</tr></thead>",
            f"<tbody>{''.join(f'<tr>{row}</tr>' for row in cells)}</tbody></table>",
            f'<p style="white-space: pre-wrap">{escape(notes)}</p>' if notes else "",
        ]
        return f"<div>{''.join(parts)}</div>"


def _fitted(line: str | Graded) -> str:
    return filled(visible(line, keep="\n"))


class Tabular:
    """A result that prints as a table, shows as one in a notebook, and goes to pandas.

    A subclass says what people read (`_result_table`, numbers rounded, equal layers together) and what programs read
    (`records`, every number as it is).
    """

    def _result_table(self) -> ResultTable:
        raise NotImplementedError(f"{type(self).__name__} has no table")

    def records(self) -> list[dict[str, Any]]:
        """The rows of `to_frame` as dictionaries of plain numbers and strings."""
        raise NotImplementedError(f"{type(self).__name__} has no records")

    def to_frame(self) -> pandas.DataFrame:
        """The result as a pandas frame, one observation a row, numbers as numbers.

        Raises:
            WellcondError: pandas is not installed; nothing else of wellcond needs it.

        >>> import torch, wellcond as wc
        >>> frame = wc.attention_layers(torch.nn.MultiheadAttention(8, 2)).to_frame()
        >>> frame[["kind", "heads", "head_dim", "width"]].to_dict("records")
        [{'kind': 'softmax', 'heads': 2, 'head_dim': 4, 'width': 8}]
        """
        try:
            import pandas
        except ImportError as error:
            raise WellcondError(
                f"to_frame needs pandas ({error}): pip install pandas; records() has the same rows without it"
            ) from error
        frame = pandas.DataFrame(self.records())
        unknown = [name for name in frame.columns if frame[name].isna().all()]
        return frame.astype(dict.fromkeys(unknown, float))  # numbers that were measured nowhere are numbers still

    def to_text(self, colour: bool | None = None) -> str:
        """The result as it prints.

        Args:
            colour: whether lines have the colour of their severity, if they have one; None for what suits the output.
        """
        return self._result_table().text(colour_wanted() if colour is None else colour)

    def __str__(self) -> str:
        return self.to_text(colour=False)

    def _repr_html_(self) -> str:
        """The table as notebooks show it."""
        return self._result_table().to_html()

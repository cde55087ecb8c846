"""SchemeInfo, what `wc.schemes` tells of a scheme; and the list of them from source files, at once: without torch."""

from __future__ import annotations

import ast
import fnmatch
import importlib.metadata
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib import resources
from typing import Any

from wellcond._core.result_table import ResultTable, Tabular

ENTRY_POINTS = "wellcond.schemes"
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


def scheme_entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    """Return other packages' schemes: entry points in the group `wellcond.schemes` whose value is a `wc.Scheme`."""
    return {entry.name: entry for entry in importlib.metadata.entry_points(group=ENTRY_POINTS)}


def list_schemes(pattern: str = "*") -> SchemeInfos:
    """Return what `wc.schemes` does, at once unless another package has schemes, which must be imported to be listed.

    >>> list_schemes("small*")[0].summary
    'Gaussian: attention std √(2/(5D)), MLP √(2/(D + D_ff)); biases zero.'
    """
    if scheme_entry_points():
        from wellcond.init.registry import schemes

        return schemes(pattern)
    room = resources.files("wellcond.init")
    bases = [room / "block_schemes.py", room / "control_schemes.py"]
    files = [*bases, *(file for file in (room / "schemes").iterdir() if file.name.endswith(".py"))]
    nodes = [node for file in files for node in ast.parse(file.read_text("utf-8")).body]
    classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
    found = [info for node in classes.values() for info in _registered(node, classes)]
    return SchemeInfos(sorted((i for i in found if fnmatch.fnmatchcase(i.name, pattern)), key=lambda info: info.name))


def _registered(node: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> Iterator[SchemeInfo]:
    """Yield what the `@register_scheme(...)` of a class says, with the class's first line and fields."""
    for call in node.decorator_list:
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "register_scheme":
            said = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
            summary = (ast.get_docstring(node) or "").partition("\n")[0]
            name, published = ast.literal_eval(call.args[0]), said.get("published", "")
            yield SchemeInfo(name, summary, said["citation"], published, _options(node, classes))


def _options(node: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> dict[str, Any]:
    """Return the fields of a dataclass with their defaults, those of its bases first."""
    options: dict[str, Any] = {}
    for base in map(ast.unparse, node.bases):
        options |= _options(classes[base], classes) if base in classes else {}
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and not ast.unparse(line.annotation).startswith("ClassVar"):
            options[ast.unparse(line.target)] = REQUIRED if line.value is None else ast.literal_eval(line.value)
    return options

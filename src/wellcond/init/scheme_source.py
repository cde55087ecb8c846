"""List the schemes from their source files: without importing them, and so without torch."""

from __future__ import annotations

import ast
import fnmatch
import importlib.metadata
from collections.abc import Iterator
from importlib import resources
from typing import Any

from wellcond.init.scheme_info import REQUIRED, SchemeInfo, SchemeInfos

ENTRY_POINTS = "wellcond.schemes"


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
    files = resources.files("wellcond.init").joinpath("schemes").iterdir()
    found = [info for file in files if file.name.endswith(".py") for info in _schemes_in(file.read_text("utf-8"))]
    return SchemeInfos(sorted((i for i in found if fnmatch.fnmatchcase(i.name, pattern)), key=lambda info: info.name))


def _schemes_in(source: str) -> Iterator[SchemeInfo]:
    """Yield what each `@register_scheme(...)` of a file says, with its class's first line and fields."""
    tree = ast.parse(source)
    for node in tree.body:
        for call in node.decorator_list if isinstance(node, ast.ClassDef) else ():
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "register_scheme":
                assert isinstance(node, ast.ClassDef)
                said = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
                summary = (ast.get_docstring(node) or "").partition("\n")[0]
                name, published = ast.literal_eval(call.args[0]), said.get("published", "")
                yield SchemeInfo(name, summary, said["citation"], published, _options(node, tree))


def _options(node: ast.ClassDef, tree: ast.Module) -> dict[str, Any]:
    """Return the fields of a dataclass with their defaults, those of its bases first."""
    options: dict[str, Any] = {}
    for base in node.bases:
        assert isinstance(base, ast.Name)
        options |= _options_of(base.id, tree)
    for field in node.body:
        if isinstance(field, ast.AnnAssign) and not ast.unparse(field.annotation).startswith("ClassVar"):
            assert isinstance(field.target, ast.Name)
            options[field.target.id] = REQUIRED if field.value is None else ast.literal_eval(field.value)
    return options


def _options_of(name: str, tree: ast.Module) -> dict[str, Any]:
    """Return the options of a class by the name it has in a file: one of its own, or imported from another of ours."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return _options(node, tree)
        imported = isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names)
        if imported and isinstance(node, ast.ImportFrom) and (node.module or "").startswith("wellcond."):
            path = f"{str(node.module).removeprefix('wellcond.').replace('.', '/')}.py"
            return _options_of(name, ast.parse(resources.files("wellcond").joinpath(path).read_text("utf-8")))
    return {}

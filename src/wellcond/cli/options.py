"""Options and arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Weights = Annotated[Path | None, typer.Option("--weights", "-w", help="A .safetensors file, or a directory of shards.")]
AllowPt = Annotated[
    bool, typer.Option("--allow-pt", help="Read a .pt, .pth, .ckpt or .bin file too: its tensors, no other code.")
]
Model = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="timm:NAME, hf:NAME, hf:path/to/config.json or path/to/file.py:function."),
]
SchemeName = Annotated[
    str, typer.Option("--scheme", "-s", help="A scheme's name, or one per role: qk=conditioned,vo=mimetic.")
]
SchemeSettings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="OPTION=VALUE", help="An option of the scheme; ROLES.OPTION=VALUE in a composition."),
]
Layers = Annotated[
    list[str] | None, typer.Option("--layers", metavar="PATTERN", help="Only layers whose name matches; repeatable.")
]
Skip = Annotated[bool, typer.Option("--skip-inapplicable", help="Pass over layers the scheme does not apply to.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print every layer.")]

# of the laboratory
RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A .toml file, or a name of `wellcond recipes`.")]
Out = Annotated[
    Path | None,
    typer.Option(help="Folder for the runs and the report.", metavar="DIR", show_default="runs/RECIPE"),
]
Jobs = Annotated[int, typer.Option("--jobs", "-j", help="Runs side by side, threads divided.", min=1)]
EngineName = Annotated[str, typer.Option(help="local, or ray: the nodes of a cluster.", metavar="local|ray")]
Address = Annotated[
    str | None, typer.Option(help="With ray: HOST:PORT of the cluster.", metavar="ADDRESS", show_default="auto")
]
Cpus = Annotated[int | None, typer.Option(help="With ray: processors of a run.", min=1, show_default="1")]
RecipeSettings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change the recipe, as in train.steps=100.")
]

"""Options and arguments that several commands share: single ones, and records of those that go together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

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
Layers = Annotated[
    list[str] | None, typer.Option("--layers", metavar="PATTERN", help="Only layers whose name matches; repeatable.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print every layer.")]
RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A .toml file, or a name of `wellcond recipes`.")]
Out = Annotated[
    Path | None,
    typer.Option(help="Folder for the runs and the report.", metavar="DIR", show_default="runs/RECIPE"),
]
Seeds = Annotated[int | None, typer.Option(help="So many seeds, from 0.", min=1, show_default="those of the recipe")]


@dataclass(frozen=True)
class SchemeOptions:
    """Which layers a scheme is for, and with which options."""

    layers: Layers = None
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="OPTION=VALUE", help="An option of the scheme; ROLES.OPTION=VALUE in a composition."
        ),
    ] = None
    skip_inapplicable: Annotated[
        bool, typer.Option("--skip-inapplicable", help="Pass over layers the scheme does not apply to.")
    ] = False

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `wc.init_` and `wc.audit` that these are."""
        return {"layers": self.layers, "on_inapplicable": "skip" if self.skip_inapplicable else "error"}


@dataclass(frozen=True)
class InputOptions:
    """Weights and inputs of a model that is run."""

    images: Annotated[
        str | None, typer.Option(help="A folder of images, or 'sample' for the photographs of scikit-learn.")
    ] = None
    text: Annotated[str | None, typer.Option(help="A text file, or the text itself.")] = None
    weights: Weights = None
    allow_pt: AllowPt = False
    batch: Annotated[int, typer.Option(help="Images or sequences.", min=1)] = 8
    tokens: Annotated[
        int | None,
        typer.Option(help="Tokens of a sequence.", min=1, show_default="128, or all the model has positions for"),
    ] = None
    seed: Annotated[int, typer.Option(help="Of fresh weights and random inputs.")] = 0
    layers: Layers = None

    def model_and_inputs(self, model: str) -> tuple[Any, Any]:
        """Build the model with its weights, and make what it is fed."""
        from wellcond.cli.arguments import model_and_inputs

        given = {"images": self.images, "text": self.text, "batch": self.batch, "tokens": self.tokens}
        return model_and_inputs(model, self.seed, self.weights, self.allow_pt, **given)


@dataclass(frozen=True)
class RunOptions:
    """How a recipe is changed, and what makes its runs."""

    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change the recipe, as in train.steps=100.")
    ] = None
    jobs: Annotated[int, typer.Option("--jobs", "-j", help="Runs side by side, threads divided.", min=1)] = 1
    engine: Annotated[str, typer.Option(help="local, or ray: the nodes of a cluster.", metavar="local|ray")] = "local"
    address: Annotated[
        str | None, typer.Option(help="With ray: HOST:PORT of the cluster.", metavar="ADDRESS", show_default="auto")
    ] = None
    cpus: Annotated[int | None, typer.Option(help="With ray: processors of a run.", min=1, show_default="1")] = None

    def engine_of(self, lab: Any) -> Any:
        """Return the engine of the laboratory that these name."""
        return lab.Engine(self.engine, self.jobs, self.address, self.cpus)

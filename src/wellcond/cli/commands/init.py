"""`wellcond init`: weights by a scheme, in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import wellcond as wc
from wellcond._core.json_safe import to_json
from wellcond._core.terminal import filled
from wellcond.cli.app import app
from wellcond.cli.echo import echo
from wellcond.cli.options import Json, Layers, Model, SchemeName, SchemeSettings, Skip, Verbose
from wellcond.cli.settings import scheme_given
from wellcond.cli.summaries import plan_data, plan_summary


@app.command("init")
def init_command(
    model: Model,
    scheme: SchemeName,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="FILE.safetensors, or a new directory for shards, block by block.")
    ],
    seed: Annotated[int, typer.Option(help="Of the scheme and of the model's own initialisation.")] = 0,
    layers: Layers = None,
    settings: SchemeSettings = None,
    skip_inapplicable: Skip = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Build a model, initialise its attention by a scheme, and write the weights."""
    from wellcond.checkpoint.writing import file_target
    from wellcond.init.streaming import directory_target

    chosen = scheme_given(scheme, settings)
    how: dict[str, Any] = {"seed": seed, "layers": layers, "on_inapplicable": "skip" if skip_inapplicable else "error"}
    if output.suffix == ".safetensors":
        file_target(output)  # before the work, not after it
        built = wc.build_model(model, seed=seed)
        plan = wc.init_(built, chosen, **how)
        wc.save_weights(built, output)
    else:
        directory_target(output)
        plan = wc.init_to_files(lambda: wc.build_model(model, seed=seed), chosen, output, **how)
    if json:
        about = {"model": model, "scheme": scheme, "seed": seed, "output": str(output)}
        echo(to_json(about | plan_data(plan)))
    else:
        echo(filled(f"{plan}" if verbose else plan_summary(plan)))
        echo(f"{model}, {scheme}, seed {seed}: written to {output}")

"""`wellcond audit`: saved weights against what a scheme says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import wellcond as wc
from wellcond._core.json_safe import to_json
from wellcond._core.terminal import filled
from wellcond.cli.app import app
from wellcond.cli.echo import echo
from wellcond.cli.models import load_weights_given, model_shapes
from wellcond.cli.options import AllowPt, Json, Layers, Model, SchemeName, SchemeSettings, Skip, Verbose
from wellcond.cli.settings import scheme_given
from wellcond.cli.summaries import audit_summary


@app.command("audit")
def audit_command(
    model: Model,
    weights: Annotated[Path, typer.Option("--weights", "-w", help="A .safetensors file, or a directory of shards.")],
    scheme: SchemeName,
    allow_pt: AllowPt = False,
    layers: Layers = None,
    settings: SchemeSettings = None,
    skip_inapplicable: Skip = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Check every head of saved weights against what a scheme says; exit code 1 if one fails."""
    chosen = scheme_given(scheme, settings)
    built = model_shapes(model)
    load_weights_given(built, weights, allow_pt)
    result = wc.audit(built, chosen, layers=layers, on_inapplicable="skip" if skip_inapplicable else "error")
    if json:
        echo(to_json({"model": model, "weights": str(weights)} | result.to_dict()))
    else:
        echo(filled(f"{result}" if verbose else audit_summary(result)))
    if not result.passed:
        raise typer.Exit(1)

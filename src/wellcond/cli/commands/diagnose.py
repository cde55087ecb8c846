"""`wellcond diagnose`: the conditioning of a model's attention, measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

import wellcond as wc
from wellcond.cli.app import app
from wellcond.cli.echo import echo
from wellcond.cli.models import check_folder_of, load_weights_given
from wellcond.cli.options import AllowPt, Json, Layers, Model, Weights
from wellcond.errors import BatchError, WellcondError


@app.command("diagnose")
def diagnose_command(
    model: Model,
    images: Annotated[
        str | None, typer.Option(help="A folder of images, or 'sample' for the photographs of scikit-learn.")
    ] = None,
    text: Annotated[str | None, typer.Option(help="A text file, or the text itself.")] = None,
    weights: Weights = None,
    allow_pt: AllowPt = False,
    batch: Annotated[int, typer.Option(help="Images or sequences.", min=1)] = 8,
    tokens: Annotated[
        int | None,
        typer.Option(help="Tokens of a sequence.", min=1, show_default="128, or all the model has positions for"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of fresh weights and random inputs.")] = 0,
    layers: Layers = None,
    jacobian: Annotated[
        str, typer.Option(help="auto (what a few seconds pay for), exact (all rows and heads, says how long), or off.")
    ] = "auto",
    vertical: Annotated[bool, typer.Option("--vertical", help="Measure the papers' vertical Jacobian too.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page to look at.", metavar="FILE")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a picture.", metavar="FILE")] = None,
    json: Json = False,
) -> None:
    """Measure the conditioning of a model's attention on images, text, or random inputs of its shape."""
    if jacobian not in ("auto", "exact", "off"):
        raise WellcondError(f"--jacobian is auto, exact or off, got '{jacobian}'")
    for target in (html, plot):
        if target is not None:
            check_folder_of(target)
    from wellcond.inputs.arguments import WAY_OUT
    from wellcond.inputs.example_inputs import inputs_for

    built = wc.build_model(model, seed=seed)
    load_weights_given(built, weights, allow_pt)
    fed = inputs_for(built, images=images, text=text, batch=batch, tokens=tokens, seed=seed)
    measured = False if jacobian == "off" else jacobian
    options: dict[str, Any] = {"layers": layers, "jacobian": measured, "vertical": vertical}
    try:
        found = wc.diagnose(built, fed.batch, description=fed.description, **options)
    except BatchError as error:
        cause = error.__cause__ or error
        raise WellcondError(
            f"{model} failed on {fed.description}: {type(cause).__name__}: {cause}; {WAY_OUT}"
        ) from error
    found = replace(found, model=model)
    if html is not None:
        found.to_html(html)
    if plot is not None:
        found.plot(plot)
    echo(found.to_json() if json else found.to_text())
    for target in (html, plot):
        if target is not None and not json:
            echo(f"written to {target}")

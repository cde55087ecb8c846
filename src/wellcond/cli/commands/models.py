"""`wellcond inspect`, `diagnose` and `diagram`: a model's attention, its conditioning, whether it can be trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

import wellcond as wc
from wellcond._core.json_safe import to_json
from wellcond._core.terminal import filled
from wellcond.cli.app import command, echo
from wellcond.cli.arguments import check_folder_of, model_and_inputs, model_shapes, setting
from wellcond.cli.options import AllowPt, InputOptions, Json, Model
from wellcond.cli.summaries import layers_data
from wellcond.errors import BatchError, WellcondError


@command
def inspect_command(
    model: Model,
    inputs: Annotated[
        str | None, typer.Option(help="'random': run the model on a small batch, and verify or find each layer by it.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of fresh weights and random inputs.")] = 0,
    json: Json = False,
) -> None:
    """List the attention layers of a model: heads, widths, storage, how far each is known, and what has no view."""
    if inputs not in (None, "random"):
        raise WellcondError(f"--inputs is random, got '{inputs}'; wellcond diagnose takes images and text")
    if inputs is None:
        layers = wc.attention_layers(model_shapes(model))
    else:
        built, fed = model_and_inputs(model, seed, None, False, images=None, text=None, batch=2, tokens=None)
        layers = wc.attention_layers(built, fed.batch)
    echo(to_json({"model": model} | layers_data(layers)) if json else filled(str(layers)))


@command
def diagnose_command(
    model: Model,
    inputs: InputOptions = InputOptions(),
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
    targets = [target for target in (html, plot) if target is not None]
    for target in targets:
        check_folder_of(target)
    built, fed = inputs.model_and_inputs(model)
    options: dict[str, Any] = {"jacobian": jacobian != "off" and jacobian, "vertical": vertical}
    try:
        found = wc.diagnose(built, fed.batch, layers=inputs.layers, description=fed.description, **options)
    except BatchError as error:
        from wellcond.inputs.arguments import WAY_OUT

        cause = error.__cause__ or error
        raise WellcondError(
            f"{model} failed on {fed.description}: {type(cause).__name__}: {cause}; {WAY_OUT}"
        ) from error
    found = replace(found, model=model)
    if html is not None:
        found.to_html(html)
    if plot is not None:
        found.plot(plot)
    echo(found.to_json() if json else "\n".join([found.to_text(), *(f"written to {target}" for target in targets)]))


@command
def diagram_command(
    x: Annotated[str, typer.Option(help="Horizontal axis, NAME:LOW:HIGH, also NAME:LOW:HIGH:log.")] = "beta:0.05:4",
    y: Annotated[str | None, typer.Option(help="Vertical axis.", show_default="residual_attention:0.1:2")] = None,
    depth: Annotated[int, typer.Option(help="Number of blocks.")] = 24,
    tokens: Annotated[int, typer.Option(help="Number of tokens.")] = 256,
    norm: Annotated[str, typer.Option(help="pre, post or none.")] = "pre",
    activation: Annotated[str, typer.Option(help="gelu, relu, tanh or erf.")] = "gelu",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any other parameter of wc.propagate.")
    ] = None,
    resolution: Annotated[int, typer.Option(help="Cells along an axis.")] = 200,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Mark this model on its own diagram; as for diagnose.")
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option("--weights", "-w", help="With --model: a .safetensors file, or shards."),
    ] = None,
    allow_pt: AllowPt = False,
    images: Annotated[str | None, typer.Option(help="With --model: a folder of images, or 'sample'.")] = None,
    text: Annotated[str | None, typer.Option(help="With --model: a text file, or the text itself.")] = None,
    batch: Annotated[int, typer.Option(help="With --model: images or sequences.", min=1)] = 2,
    seed: Annotated[int, typer.Option(help="With --model: of fresh weights and random inputs.")] = 0,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The picture.")] = Path("diagram.png"),
    json: Json = False,
) -> None:
    """Draw which Transformers can be trained, or where a model stands among them."""
    check_folder_of(output)
    about_a_model = {"--weights": weights, "--images": images, "--text": text}
    given = [name for name, value in about_a_model.items() if value is not None]
    if model is None and given:
        raise WellcondError(f"{given[0]} is for a model's own diagram: add --model")
    if model is not None:
        built, fed = model_and_inputs(model, seed, weights, allow_pt, images=images, text=text, batch=batch)
        placed = wc.locate(built, fed.batch)
        placed.plot(output)
        about = {"model": model, "input": fed.description}
        echo(to_json(about | placed.to_dict()) if json else placed.to_text())
    else:
        axes = {"x": _axis(x), "y": _axis(y or "residual_attention:0.1:2")}
        fixed: dict[str, Any] = {"depth": depth, "tokens": tokens, "norm": norm, "activation": activation}
        fixed |= {name: tuple(v) if isinstance(v, list) else v for name, v in map(setting, settings or [])}
        named = {axis[0] for axis in axes.values()}
        found = wc.trainability(
            **axes, resolution=resolution, **{name: value for name, value in fixed.items() if name not in named}
        )
        found.plot(output)
        echo(to_json(found.to_dict()) if json else filled(f"{found}"))
    if not json:
        echo(f"written to {output}")


def _axis(text: str) -> Any:
    """`beta:0.05:4`, or `beta:0.05:4:log`."""
    name, *ends = text.split(":")
    try:
        if len(ends) not in (2, 3):
            raise ValueError
        return (name, *map(float, ends[:2]), *ends[2:])
    except ValueError:
        raise WellcondError(f"an axis is written NAME:LOW:HIGH, as in beta:0.05:4; got '{text}'") from None

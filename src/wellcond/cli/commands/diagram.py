"""`wellcond diagram`: which Transformers can be trained, and where a model stands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import wellcond as wc
from wellcond._core.json_safe import to_json
from wellcond._core.terminal import filled
from wellcond.cli.app import app
from wellcond.cli.echo import echo
from wellcond.cli.models import check_folder_of, load_weights_given
from wellcond.cli.options import AllowPt, Json
from wellcond.cli.settings import setting
from wellcond.errors import WellcondError


@app.command("diagram")
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
        from wellcond.inputs.example_inputs import inputs_for

        built = wc.build_model(model, seed=seed)
        load_weights_given(built, weights, allow_pt)
        fed = inputs_for(built, images=images, text=text, batch=batch, tokens=None, seed=seed)
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

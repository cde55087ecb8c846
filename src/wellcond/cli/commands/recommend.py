"""`wellcond recommend`: which initialisation for a model on one's own data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import wellcond as wc
from wellcond._core.json_safe import to_json
from wellcond.cli.app import command, echo
from wellcond.cli.arguments import nested
from wellcond.cli.laboratory import laboratory, laboratory_module
from wellcond.cli.options import InputOptions, Json, RunOptions, Seeds
from wellcond.errors import BatchError, NotFiniteError, WellcondError


@command
def recommend_command(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="timm:NAME, hf:NAME, hf:path/to/config.json or path/to/file.py:function."),
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="FILE:FUNCTION", help="path/to/file.py:function that returns batches.")
    ] = None,
    loss: Annotated[
        str | None, typer.Option(metavar="FILE:FUNCTION", help="path/to/file.py:function of output and target.")
    ] = None,
    optimizer: Annotated[str, typer.Option(metavar="adamw|sgd|muon", help="What trains.")] = "adamw",
    lr: Annotated[float, typer.Option(help="Its learning rate.")] = 1e-3,
    seconds: Annotated[float, typer.Option(help="That the probe may take; 0 for predictions alone.")] = 120.0,
    scheme: Annotated[list[str] | None, typer.Option("--scheme", "-s", help="Only these schemes; repeatable.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep every trial there, and go on from it.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="FILE.safetensors for the advised weights.")
    ] = None,
    inputs: InputOptions = InputOptions(),
    calibration: Annotated[
        bool,
        typer.Option(
            "--calibration",
            help="Instead, how well each stage foretells full trainings: of all recipes, or of the one named as MODEL.",
        ),
    ] = False,
    seeds: Seeds = None,
    runs: RunOptions = RunOptions(),
    json: Json = False,
) -> None:
    """Say which initialisation a model should begin with on your data, or that it does not matter."""
    if calibration:
        _calibration(model, seconds, tuple(scheme or ()), out, seeds, runs, json)
        return
    if model is None:
        raise WellcondError("name a model: timm:NAME, hf:NAME, hf:path/to/config.json or path/to/file.py:function")
    from wellcond.checkpoint.safetensors_files import file_target
    from wellcond.cli.arguments import check_folder_of, load_weights_given

    if output is not None and output.suffix != ".safetensors":
        raise WellcondError(f"--output is a .safetensors file, got '{output}'")
    if output is not None:
        file_target(output)
    if html is not None:
        check_folder_of(html)
    built = wc.build_model(model, seed=inputs.seed)
    load_weights_given(built, inputs.weights, inputs.allow_pt)
    batches, own_loss, described = _batches(built, data, loss, inputs)
    options: dict[str, Any] = {"optimizer": optimizer, "lr": lr, "seconds": seconds, "schemes": scheme or None}
    try:
        found = wc.recommend(built, batches, loss=own_loss, out=out, **options)
    except (BatchError, NotFiniteError) as error:
        raise type(error)(f"{described}: {error}") from error
    if not json:
        echo(f"{model} on {described}", err=True)  # not before: a refusal is one line
    if html is not None:
        found.to_html(html)
    if output is not None:
        found.best.apply_(built, seed=inputs.seed)
        wc.save_weights(built, output)
    written = "".join(f"\nwritten to {path}" for path in (html, output) if path is not None)
    echo(found.to_json() if json else f"{found.to_text()}{written}")


def _calibration(
    name: str | None,
    seconds: float,
    schemes: tuple[str, ...],
    out: Path | None,
    seeds: int | None,
    runs: RunOptions,
    json: bool,
) -> None:
    """Print the evidence of each recipe, and of all together; what was trained before is not trained again."""
    lab, evidence = laboratory(), laboratory_module("wellcond.lab.evidence.api")
    chosen: dict[str, Any] = {"schemes": schemes} if schemes else {}
    if seeds is not None:
        chosen["seeds"] = tuple(range(seeds))
    found = []
    for recipe in [name] if name else evidence.RECIPES:
        loaded = lab.load_recipe(recipe, **nested(runs.settings))
        folder = (out or Path("runs") / "calibration") / Path(recipe).stem
        engine = runs.engine_of(lab)
        found.append(evidence.gather_evidence(loaded, recipe, folder, engine, seconds=seconds, **chosen))
        if not json:
            echo(f"{found[-1]}\n")
    if json:
        echo(to_json([one.to_dict() for one in found]))
    elif len(found) > 1:
        echo(str(evidence.together(found)))


def _batches(built: Any, data: str | None, loss: str | None, inputs: InputOptions) -> tuple[Any, Any, str]:
    """Batches, their loss and what they are in words: of the user's own functions, of images or of a text."""
    from wellcond.advice.own_batches import OwnBatches
    from wellcond.inputs.labelled_batches import image_batches, text_batches
    from wellcond.inputs.own_functions import call_own, own_function

    given = [name for name, value in (("--data", data), ("--images", inputs.images), ("--text", inputs.text)) if value]
    if len(given) != 1:
        got = f", not {' and '.join(given)}" if given else ""
        raise WellcondError(f"give one of --data, --images and --text{got}: what to learn decides what to begin with")
    own = None if loss is None else own_function(loss, BatchError)
    if data is not None:
        given = call_own(data, {"batch": inputs.batch, "seed": inputs.seed}, BatchError)
        try:
            return OwnBatches(given).every, own, f"batches of {data}"
        except BatchError as error:
            raise BatchError(f"{data}: {error}") from error
    if inputs.images is not None:
        found = image_batches(built, Path(inputs.images), batch=inputs.batch, seed=inputs.seed)
    else:
        assert inputs.text is not None
        found = text_batches(built, inputs.text, batch=inputs.batch, tokens=inputs.tokens, seed=inputs.seed)
    return found.batches, own or found.loss, found.description

"""`wellcond balance` and `calibrate`: weights in better coordinates, or at a chosen sharpness and gain."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import wellcond as wc
from wellcond._core.json_safe import to_json
from wellcond.cli.app import command, echo
from wellcond.cli.options import InputOptions, Json, Model
from wellcond.errors import WellcondError
from wellcond.scale.calibration_targets import BETA, BRANCH, BY_DEPTH

Output = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="FILE.safetensors for the new weights.")]


@command
def balance_command(
    model: Model,
    output: Output,
    part: Annotated[str, typer.Option(help="qk, vo or both.")] = "both",
    group: Annotated[str, typer.Option(help="full, or scalar: numbers only.")] = "full",
    to: Annotated[str, typer.Option(help="balanced, or 'orthogonal query'.")] = "balanced",
    inputs: InputOptions = InputOptions(),
    json: Json = False,
) -> None:
    """Write a model's weights in coordinates in which its factors are well conditioned: the same function."""
    built, fed = _built(model, output, inputs)
    options: Any = {"part": part, "group": group, "to": to, "layers": inputs.layers}
    found = wc.balance_(built, fed.batch, **options)
    wc.save_weights(built, output)
    left = [{"layer": layer, "part": each, "reason": reason} for layer, each, reason in found.skipped]
    about = {"model": model, "output": str(output), "change": found.change, "heads": found.records(), "skipped": left}
    echo(to_json(about) if json else f"{found.to_text()}\nwritten to {output}")


@command
def calibrate_command(
    model: Model,
    output: Output,
    beta: Annotated[float, typer.Option(help="Sharpness of every head.")] = BETA,
    branch: Annotated[str, typer.Option(help=f"Gain of every branch, a number or {BY_DEPTH}.")] = f"{BRANCH}",
    inputs: InputOptions = InputOptions(),
    json: Json = False,
) -> None:
    """Scale a model's Q, K and O to a sharpness of heads and a gain of branches on a batch, and write the weights."""
    built, fed = _built(model, output, inputs)
    try:
        gain: float | str = float(branch)
    except ValueError:
        gain = branch
    found = wc.calibrate_(built, fed.batch, beta=beta, branch=gain, layers=inputs.layers)
    wc.save_weights(built, output)
    left = [{"layer": layer, "what": what, "reason": reason} for layer, what, reason in found.skipped]
    about = {"model": model, "output": str(output), "layers": found.records(), "skipped": left}
    echo(to_json(about) if json else f"{found.to_text()}\nwritten to {output}")


def _built(model: str, output: Path, inputs: InputOptions) -> tuple[Any, Any]:
    """Build a model and what it is fed, once it is known that the weights can be written."""
    from wellcond.checkpoint.safetensors_files import file_target

    if output.suffix != ".safetensors":
        raise WellcondError(f"--output is a .safetensors file, got '{output}'")
    file_target(output)
    return inputs.model_and_inputs(model)

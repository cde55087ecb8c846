"""`wellcond schemes`, `init` and `audit`: the initialisations by name, weights by one of them, weights against one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import wellcond as wc
from wellcond._core.json_safe import to_json
from wellcond._core.terminal import filled
from wellcond.cli.app import command, echo
from wellcond.cli.arguments import load_weights_given, model_shapes, setting
from wellcond.cli.options import AllowPt, Json, Model, SchemeName, SchemeOptions, Verbose
from wellcond.cli.summaries import audit_summary, plan_data, plan_summary, scheme_list
from wellcond.errors import SchemeError
from wellcond.init.scheme_info import list_schemes

if TYPE_CHECKING:
    from wellcond.init.scheme import Scheme


@command
def schemes_command(
    pattern: Annotated[str, typer.Argument(help="Shell pattern on the name; shows details.")] = "",
    models: Annotated[
        list[str] | None, typer.Option("--for", metavar="MODEL", help="Show where each scheme applies; repeatable.")
    ] = None,
    json: Json = False,
) -> None:
    """List the schemes, or the table of schemes × models with the reasons for what does not apply."""
    infos = list_schemes(pattern or "*")
    if not infos:
        raise SchemeError(f"no scheme matches '{pattern}'; there are: {', '.join(i.name for i in list_schemes())}")
    matrix: dict[str, Any] = {}
    if models:
        from wellcond.init.applicability import applicability, matrix_text

        matrix = {name: applicability(model_shapes(name), [info.name for info in infos]) for name in models}
    if json:
        rows = [
            vars(info) | {"applies": {model: vars(found[info.name]) for model, found in matrix.items()}}
            for info in infos
        ]
        echo(to_json({"schemes": rows}))
    else:
        echo(filled(matrix_text(matrix)) if matrix else scheme_list(infos, details=bool(pattern)))


@command
def init_command(
    model: Model,
    scheme: SchemeName,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="FILE.safetensors, or a new directory for shards, block by block.")
    ],
    seed: Annotated[int, typer.Option(help="Of the scheme and of the model's own initialisation.")] = 0,
    options: SchemeOptions = SchemeOptions(),
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Build a model, initialise its attention by a scheme, and write the weights."""
    from wellcond.checkpoint.safetensors_files import file_target
    from wellcond.init.streaming import directory_target

    chosen, how = _scheme(scheme, options.settings), {"seed": seed, **options.arguments()}
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


@command
def audit_command(
    model: Model,
    weights: Annotated[Path, typer.Option("--weights", "-w", help="A .safetensors file, or a directory of shards.")],
    scheme: SchemeName,
    allow_pt: AllowPt = False,
    options: SchemeOptions = SchemeOptions(),
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Check every head of saved weights against what a scheme says; exit code 1 if one fails."""
    chosen = _scheme(scheme, options.settings)
    built = model_shapes(model)
    load_weights_given(built, weights, allow_pt)
    result = wc.audit(built, chosen, **options.arguments())
    if json:
        echo(to_json({"model": model, "weights": str(weights)} | result.to_dict()))
    else:
        echo(filled(f"{result}" if verbose else audit_summary(result)))
    if not result.passed:
        raise typer.Exit(1)


def _scheme(text: str, settings: list[str] | None) -> Scheme:
    """Return the scheme of a name or of `qk=conditioned,vo=mimetic`, with `--set alpha=0.4` or `--set vo.alpha=0.4`."""
    from wellcond.init.compose import as_scheme

    options = dict(map(setting, settings or []))
    if "=" not in text:
        return as_scheme(text, options)
    parts: dict[str, tuple[str, dict[str, Any]]] = {}
    for part in text.split(","):
        roles, _, name = (piece.strip() for piece in part.partition("="))
        if not roles or not name or roles in parts:
            raise SchemeError(f"'{text}' is not a composition: write each role once, as in qk=conditioned,vo=mimetic")
        parts[roles] = (name, {})
    for key, value in options.items():
        roles, _, option = key.partition(".")
        if roles not in parts or not option:
            raise SchemeError(f"--set {key}: in a composition an option is written {next(iter(parts))}.OPTION=VALUE")
        parts[roles][1][option] = value
    return as_scheme(parts)

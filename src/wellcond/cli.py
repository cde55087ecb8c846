"""The command line: arguments to public functions. Exit code 0, 1 (a check failed), 2 (bad input) or 128 + a signal."""

from __future__ import annotations

import shlex
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import wellcond as wc
from wellcond import cli_laboratory as laboratory
from wellcond import stopping
from wellcond.applicability import applicability, matrix_text
from wellcond.checkpoint import PICKLES
from wellcond.cli_echo import echo
from wellcond.cli_settings import setting
from wellcond.diagnose.arguments import WAY_OUT
from wellcond.diagnose.inputs import inputs_for
from wellcond.errors import BatchError, CheckpointError, SchemeError, WellcondError
from wellcond.file_names import check_path
from wellcond.files import file_target
from wellcond.plain import to_json
from wellcond.report.figures import draw_figures
from wellcond.schemes.compose import as_scheme
from wellcond.streaming import directory_target
from wellcond.summaries import audit_summary, layers_data, plan_data, plan_summary, scheme_list
from wellcond.terminal import filled

GIVEN: ContextVar[tuple[str, ...]] = ContextVar("arguments of the command line")


class _Commands(TyperGroup):
    """Commands whose refusals are one line on stderr and exit code 2."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Keep the arguments, for refusals that say how to go on."""
        GIVEN.set(tuple(args))
        return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        with stopping.told():
            try:
                return super().invoke(ctx)
            except WellcondError as error:
                if stopping.asked():
                    raise
                echo(f"error: {' '.join(str(error).split())}", err=True)
                raise typer.Exit(2) from None


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Know whether a Transformer's attention is well conditioned, and make it so.",
)

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
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="OPTION=VALUE", help="An option of the scheme; ROLES.OPTION=VALUE in a composition."),
]
Layers = Annotated[
    list[str] | None, typer.Option("--layers", metavar="PATTERN", help="Only layers whose name matches; repeatable.")
]
Skip = Annotated[bool, typer.Option("--skip-inapplicable", help="Pass over layers the scheme does not apply to.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print every layer.")]


def _version(wanted: bool) -> None:
    if wanted:
        echo(f"wellcond {wc.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options before the command."""


@app.command()
def inspect(model: Model, json: Json = False) -> None:
    """List the attention layers of a model: heads, widths, storage, and what was not recognised."""
    layers = wc.attention_layers(_shapes(model))
    echo(to_json({"model": model} | layers_data(layers)) if json else filled(str(layers)))


@app.command()
def schemes(
    pattern: Annotated[str, typer.Argument(help="Shell pattern on the name; shows details.")] = "",
    models: Annotated[
        list[str] | None, typer.Option("--for", metavar="MODEL", help="Show where each scheme applies; repeatable.")
    ] = None,
    json: Json = False,
) -> None:
    """List the schemes, or the table of schemes × models with the reasons for what does not apply."""
    infos = wc.schemes(pattern or "*")
    if not infos:
        raise SchemeError(f"no scheme matches '{pattern}'; there are: {', '.join(i.name for i in wc.schemes())}")
    matrix = {name: applicability(_shapes(name), [info.name for info in infos]) for name in models or []}
    if json:
        rows = [
            vars(info) | {"applies": {model: vars(found[info.name]) for model, found in matrix.items()}}
            for info in infos
        ]
        echo(to_json({"schemes": rows}))
    else:
        echo(filled(matrix_text(matrix)) if matrix else scheme_list(infos, details=bool(pattern)))


@app.command()
def init(
    model: Model,
    scheme: SchemeName,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="FILE.safetensors, or a new directory for shards, block by block.")
    ],
    seed: Annotated[int, typer.Option(help="Of the scheme and of the model's own initialisation.")] = 0,
    layers: Layers = None,
    settings: Settings = None,
    skip_inapplicable: Skip = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Build a model, initialise its attention by a scheme, and write the weights."""
    chosen = _scheme(scheme, settings)
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


@app.command()
def audit(
    model: Model,
    weights: Annotated[Path, typer.Option("--weights", "-w", help="A .safetensors file, or a directory of shards.")],
    scheme: SchemeName,
    allow_pt: AllowPt = False,
    layers: Layers = None,
    settings: Settings = None,
    skip_inapplicable: Skip = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Check every head of saved weights against what a scheme says; exit code 1 if one fails."""
    chosen = _scheme(scheme, settings)
    built = _shapes(model)
    _load(built, weights, allow_pt)
    result = wc.audit(built, chosen, layers=layers, on_inapplicable="skip" if skip_inapplicable else "error")
    if json:
        echo(to_json({"model": model, "weights": str(weights)} | result.to_dict()))
    else:
        echo(filled(f"{result}" if verbose else audit_summary(result)))
    if not result.passed:
        raise typer.Exit(1)


@app.command()
def diagnose(
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
        if target is not None and not check_path(target).parent.is_dir():
            raise WellcondError(f"there is no directory '{target.parent}' to write '{target.name}' into; make it first")
    built = wc.build_model(model, seed=seed)
    _load(built, weights, allow_pt)
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


@app.command()
def figures(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders that a monitor or a comparison wrote.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder for the pictures and figures.json.")
    ] = Path("figures"),
    json: Json = False,
) -> None:
    """Draw the papers' figures: σ and κ of W and W + C, κ(J) and its bound, entropy, loss, epochs to the baseline."""
    written = draw_figures(runs, output)
    if json:
        echo(to_json({"runs": runs, "written": written}))
    else:
        echo("\n".join(f"wrote {path}" for path in written))


@app.command()
def diagram(
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
    if not check_path(output).parent.is_dir():
        raise WellcondError(f"there is no directory '{output.parent}' to write '{output.name}' into; make it first")
    about_a_model = {"--weights": weights, "--images": images, "--text": text}
    given = [name for name, value in about_a_model.items() if value is not None]
    if model is None and given:
        raise WellcondError(f"{given[0]} is for a model's own diagram: add --model")
    if model is not None:
        built = wc.build_model(model, seed=seed)
        _load(built, weights, allow_pt)
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


def _shapes(model: str) -> Any:
    """A model without weights; a user's own function may need real ones, so it is called as it is."""
    return wc.build_model(model, device="meta" if model.startswith(("timm:", "hf:")) else None)


def _load(model: Any, weights: Path | None, allow_pt: bool) -> None:
    """Load weights, if there are any; the refusal of a pickle names the command that reads it."""
    if weights is None:
        return
    if weights.suffix in PICKLES and not allow_pt:
        again = shlex.join(["wellcond", *GIVEN.get(), "--allow-pt"])
        raise CheckpointError(
            f"'{weights}' is named like a pickle, which can run code when it is loaded. To read "
            f"nothing but its tensors: {again}"
        )
    wc.load_weights_(model, weights, allow_pt=allow_pt)


def _scheme(text: str, settings: list[str] | None) -> wc.Scheme:
    """A name, or `qk=conditioned,vo=mimetic`, with its `--set alpha=0.4` (`--set vo.alpha=0.4`)."""
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


for command in (laboratory.compare, laboratory.tune, laboratory.report, laboratory.recipes, laboratory.reproduce):
    app.command()(command)


def main() -> None:
    """Entry point of the command `wellcond`."""
    stopping.listen()
    app(prog_name="wellcond")

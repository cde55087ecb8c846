"""`wellcond inspect`: the attention layers of a model."""

from __future__ import annotations

import wellcond as wc
from wellcond._core.json_safe import to_json
from wellcond._core.terminal import filled
from wellcond.cli.app import app
from wellcond.cli.echo import echo
from wellcond.cli.models import model_shapes
from wellcond.cli.options import Json, Model
from wellcond.cli.summaries import layers_data


@app.command("inspect")
def inspect_command(model: Model, json: Json = False) -> None:
    """List the attention layers of a model: heads, widths, storage, and what was not recognised."""
    layers = wc.attention_layers(model_shapes(model))
    echo(to_json({"model": model} | layers_data(layers)) if json else filled(str(layers)))

"""Weights handed from one stage to the next: kept when a run ends, loaded or selected when another begins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

import wellcond as wc
from wellcond._core.atomic import write_bytes
from wellcond.attention.storage import full
from wellcond.conditioning.handle import Conditioning
from wellcond.errors import WellcondError
from wellcond.lab.recipe.arms import Arm
from wellcond.lab.recipe.settings import Weights
from wellcond.lab.training.run_folder import read_description

FILE_NAME = "weights.safetensors"


def whole_state(model: nn.Module) -> dict[str, Tensor]:
    """Return a model's state on the CPU, gathered if it is sharded (then every process calls)."""
    # Tied weights are one tensor under two names, which safetensors refuses.
    return {name: full(tensor).cpu().contiguous().clone() for name, tensor in model.state_dict().items()}


def keep_weights(folder: Path, state: Mapping[str, Tensor]) -> None:
    """Write the last weights of a run into its folder."""
    write_bytes(folder / FILE_NAME, save(dict(state)))


def kept_weights(weights: Weights, arm: Arm, seed: int) -> Path:
    """Return the weights file of the same arm and seed in an earlier comparison."""
    runs = sorted(Path(weights.runs).glob(f"runs/*-{arm.folder}/seed-{seed}"))
    for run in runs:
        if (run / FILE_NAME).exists():
            return run / FILE_NAME
    status = read_description(runs[0]).get("status") if runs else None
    way = "run it with keep = true in [train], with the same arms and seeds"
    why = f"its run there {status}" if status in ("diverged", "crashed") else way
    raise WellcondError(f"'{weights.runs}' keeps no weights of the arm '{arm.name}' with seed {seed}: {why}")


def selected_weights(model: nn.Module, path: Path) -> dict[str, Tensor]:
    """Select a small model's weights from those of a larger one (Xu et al. 2024); the rest is as it was."""
    wc.init_(model, "weight_selection", teacher=str(path))
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def fitting_weights(model: nn.Module, path: Path, under: str) -> dict[str, Tensor]:
    """Return the tensors of a file that have the same name and shape in the model; its others stay fresh.

    They are for the part of the model that is called `under`, all of whose attention must be there.
    """
    try:
        found = load(path.read_bytes())
    except (OSError, SafetensorError) as error:
        raise WellcondError(f"the weights '{path}' cannot be read: {error}") from None
    prefix, own = f"{under}." if under else "", model.state_dict()
    named = {prefix + name: tensor for name, tensor in found.items()}
    fit = {name: tensor for name, tensor in named.items() if name in own and own[name].shape == tensor.shape}
    for layer in wc.attention_layers(model):
        if layer.name.startswith(prefix) and not any(name.startswith(f"{layer.name}.") for name in fit):
            other = next((f"{name} {tuple(t.shape)}" for name, t in named.items() if layer.name in name), "nothing")
            raise WellcondError(
                f"no weights for '{layer.name}' are in '{path}', which has {other} there: a model of another width "
                "takes them with take = 'select', a part of a larger one by `under`"
            )
    return fit


def put_weights_(model: nn.Module, conditioning: Conditioning | None, found: Mapping[str, Tensor]) -> None:
    """Have a model compute with these weights, also if it is conditioned: W is then what is left without C."""
    whole = {**model.state_dict(), **found}
    if conditioning is None or type(conditioning).load_weights_ is Conditioning.load_weights_:
        model.load_state_dict(whole)  # such a method corrects no stored weight
    else:
        conditioning.load_weights_(whole)

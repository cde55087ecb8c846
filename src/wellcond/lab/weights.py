"""Weights from one comparison to the next: kept at the end of a run, loaded or selected at the start of another."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

import wellcond as wc
from wellcond.attention.storage import full
from wellcond.errors import WellcondError
from wellcond.lab.arms import Scheme
from wellcond.lab.folder import describe
from wellcond.lab.settings import Weights
from wellcond.report.atomic import write_bytes
from wellcond.spectral.handle import Conditioning

NAME = "weights.safetensors"


def whole_state(model: nn.Module) -> dict[str, Tensor]:
    """What a model computes with, on the CPU, gathered if it is sharded (then every process calls)."""
    # Tied weights are one tensor under two names, which safetensors refuses.
    return {name: full(tensor).cpu().contiguous().clone() for name, tensor in model.state_dict().items()}


def keep_weights(folder: Path, state: Mapping[str, Tensor]) -> None:
    """Write them into a run's folder."""
    write_bytes(folder / NAME, save(dict(state)))


def kept_weights(weights: Weights, scheme: Scheme, seed: int) -> Path:
    """The file of the same scheme and seed in another comparison."""
    runs = sorted(Path(weights.runs).glob(f"runs/*-{scheme.folder}/seed-{seed}"))
    for run in runs:
        if (run / NAME).exists():
            return run / NAME
    status = describe(runs[0]).get("status") if runs else None
    way = "run it with keep = true in [train], with the same schemes and seeds"
    why = f"its run there {status}" if status in ("diverged", "crashed") else way
    raise WellcondError(f"'{weights.runs}' keeps no weights of the scheme '{scheme.name}' with seed {seed}: {why}")


def selected(model: nn.Module, path: Path) -> dict[str, Tensor]:
    """A small model's weights from those of a larger one (Xu et al. 2024); the rest is as it was."""
    wc.init_(model, "weight_selection", teacher=str(path))
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def fitting(model: nn.Module, path: Path, under: str) -> dict[str, Tensor]:
    """The tensors of a file that have the same name and shape in the model; what it has beside them stays fresh.

    Args:
        model: to be loaded into.
        path: the file.
        under: the part of the model that they are for; all of its attention must be there.
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


def put_(model: nn.Module, conditioning: Conditioning | None, found: Mapping[str, Tensor]) -> None:
    """Have a model compute with these weights, also if it is conditioned: W is then what is left without C."""
    whole = {**model.state_dict(), **found}
    if conditioning is None or type(conditioning).load_weights_ is Conditioning.load_weights_:
        model.load_state_dict(whole)  # such a method corrects no stored weight
    else:
        conditioning.load_weights_(whole)

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
    found = sorted(Path(weights.runs).glob(f"runs/*-{scheme.folder}/seed-{seed}/{NAME}"))
    if not found:
        raise WellcondError(
            f"'{weights.runs}' keeps no weights of the scheme '{scheme.name}' with seed {seed}: run it with "
            "keep = true in [train], with the same schemes and seeds"
        )
    return found[0]


def select_(model: nn.Module, path: Path) -> None:
    """Take a small model's weights from those of a larger one (Xu et al. 2024)."""
    wc.init_(model, "weight_selection", teacher=str(path))


def load_(model: nn.Module, conditioning: Conditioning | None, path: Path, under: str) -> int:
    """Load the tensors of the same name and shape, and say how many; the rest of the model stays fresh.

    Args:
        model: to load into.
        conditioning: its handle; what was kept is what the other model computed with, so W is that without C.
        path: the file.
        under: the part of the model that they are for.
    """
    try:
        found = load(path.read_bytes())
    except (OSError, SafetensorError) as error:
        raise WellcondError(f"the weights '{path}' cannot be read: {error}") from None
    prefix, own = f"{under}." if under else "", model.state_dict()
    fitting = {
        prefix + name: tensor
        for name, tensor in found.items()
        if prefix + name in own and own[prefix + name].shape == tensor.shape
    }
    if not fitting:
        raise WellcondError(
            f"no tensor of '{path}' ({next(iter(found), 'empty')}, …) fits this model ({next(iter(own), 'empty')}, …): "
            "say which part of it they are for with `under`"
        )
    if conditioning is None:
        model.load_state_dict({**own, **fitting})
    else:
        conditioning.load_weights_({**own, **fitting})
    return len(fitting)

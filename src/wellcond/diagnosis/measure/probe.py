"""One look at a model on a batch that leaves no trace: modes, random numbers, buffers and gradients stay the same."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.attention.capture import capture, evaluating, run_model
from wellcond.attention.layers import AttentionLayers
from wellcond.attention.paths import resolve
from wellcond.attention.projection import Projection
from wellcond.attention.replay import Call
from wellcond.attention.storage import full, split_path
from wellcond.attention.view import AttentionLayer
from wellcond.conditioning.storage.live_parameter import parameter_of
from wellcond.errors import WellcondError

Loss = Callable[[Any], Tensor]


@dataclass(frozen=True)
class Seen:
    """One layer as a pass showed it: its call, and the norm whose output it reads, if there is one."""

    layer: AttentionLayer
    call: Call | None
    norm: nn.Module | None


@contextmanager
def undisturbed(root: nn.Module) -> Iterator[None]:
    """Run code of the model's eagerly, compiled or not, and put generators and buffers back afterwards."""
    buffers = [(module, name, b) for module in root.modules() for name, b in module._buffers.items() if b is not None]
    before = [(b, b._version, b.detach().clone()) for _, _, b in buffers]
    devices = sorted({p.device.index or 0 for p in root.parameters() if p.device.type == "cuda"})
    # The compiler takes seconds to import; where nobody has, nothing is compiled.
    eager = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
    with torch.random.fork_rng(devices=devices), eager:
        try:
            yield
        finally:
            for module, name, b in buffers:
                module._buffers[name] = b
            with torch.no_grad():
                for b, version, value in before:
                    if b._version != version:
                        b.copy_(value)


def look_at_layers(layers: AttentionLayers, batch: Any, *, norms: bool = True) -> list[Seen]:
    """Run the model once in evaluation mode, without gradients, and return what each layer saw.

    Whoever does not need the norms saves their outputs' memory.
    """
    root = layers[0].root
    assert root is not None
    outputs: dict[str, Tensor] = {}
    paths = {path for layer in layers if norms and layer.block for path in layer.block.norms}
    found = {path: resolve(root, path) for path in sorted(paths)}
    handles = [norm.register_forward_hook(partial(_keep, outputs, path)) for path, norm in found.items()]
    try:
        with undisturbed(root):
            calls = capture(list(layers), batch)
    finally:
        for handle in handles:
            handle.remove()
    return [
        Seen(layer, call, _norm_before(layer, call, found, outputs)) for layer, call in zip(layers, calls, strict=True)
    ]


def _keep(outputs: dict[str, Tensor], path: str, module: nn.Module, args: Any, output: Any) -> None:
    if isinstance(output, Tensor):
        outputs.setdefault(path, output)


def _norm_before(
    layer: AttentionLayer, call: Call | None, norms: dict[str, nn.Module], outputs: dict[str, Tensor]
) -> nn.Module | None:
    """The norm whose output is what the layer was given, the very tensor."""
    if call is None or layer.block is None:
        return None
    given = {x.data_ptr() for x in (*call.given[0], *call.given[1].values()) if isinstance(x, Tensor)}
    own = (path for path in layer.block.norms if path in outputs)
    return next((norms[path] for path in own if outputs[path].data_ptr() in given), None)


def gradients(layers: AttentionLayers, batch: Any, loss: Loss | bool) -> dict[tuple[str, str], Tensor]:
    """The gradient of a loss with respect to each role's weights, `(heads, D, d)`, by layer and role.

    `.grad` of no parameter is touched; a weight without a gradient (frozen, or not used) is left out.
    """
    root = layers[0].root
    assert root is not None
    places = {(layer.name, role): projection for layer in layers for role, projection in layer.projections()}
    stored = {key: p for key, projection in places.items() if (p := _stored(root, projection)) is not None}
    wanted = list({id(p): p for p in stored.values() if p.requires_grad}.values())
    with undisturbed(root), evaluating(root), torch.enable_grad():
        value = _loss(run_model(root, batch), loss)
        found = torch.autograd.grad(value, wanted, allow_unused=True)
    by_id = {id(p): g for p, g in zip(wanted, found, strict=True) if g is not None}
    return {
        key: projection.weight.layout.read(full(by_id[id(stored[key])]))
        for key, projection in places.items()
        if key in stored and id(stored[key]) in by_id
    }


def _stored(root: nn.Module, projection: Projection) -> Tensor | None:
    """The parameter of a projection; None where its weight is computed from others, or a buffer."""
    path, name = split_path(projection.weight.path)
    owner = resolve(root, path)
    return parameter_of(owner, name) if name in owner._parameters else None


def _loss(output: Any, loss: Loss | bool) -> Tensor:
    value = getattr(output, "loss", None) if loss is True else loss(output) if callable(loss) else None
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
        raise WellcondError(
            "loss is a function of the model's output that returns one number with a gradient, or True for a model "
            f"whose output has a .loss (give labels in the batch); got {type(value).__name__}"
        )
    return value

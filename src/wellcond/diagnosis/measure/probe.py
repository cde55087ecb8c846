"""One look at a model on a batch that leaves no trace: modes, random numbers, buffers and gradients stay the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.attention.capture import evaluating, run_model
from wellcond.attention.find import from_structure, require_layers
from wellcond.attention.layers import AttentionLayers, LayerFilter
from wellcond.attention.observe import observe
from wellcond.attention.ordinary import with_gradients
from wellcond.attention.paths import resolve, unwrap
from wellcond.attention.projection import Projection
from wellcond.attention.replay import Call
from wellcond.attention.storage import full, split_path
from wellcond.attention.undisturbed import undisturbed
from wellcond.attention.view import AttentionLayer
from wellcond.conditioning.storage.live_parameter import parameter_of
from wellcond.errors import WellcondError
from wellcond.scale.residual_sums import ResidualSum, residual_sums

Loss = Callable[[Any], Tensor]


@dataclass(frozen=True)
class Seen:
    """One layer as a pass showed it: its call, the norm whose output it reads, and where it joins the stream."""

    layer: AttentionLayer
    call: Call | None
    norm: nn.Module | None  # None if there is none
    joins: ResidualSum | None = None  # None if it was not seen to


@dataclass(frozen=True)
class Look:
    """Layers of a model as one batch showed them, each verified or refused, and what no view was found of."""

    layers: AttentionLayers
    seen: list[Seen]

    def of(self, layers: LayerFilter) -> Look:
        """Return the part of it that a filter picks."""
        chosen = self.layers.select(layers)
        names = {layer.name for layer in chosen}
        return Look(chosen, [seen for seen in self.seen if seen.layer.name in names])


def look_at_model(model: nn.Module, batch: Any) -> Look:
    """Run a model in evaluation mode, without gradients, and return what each of its attention layers saw."""
    root, layers = unwrap(model), from_structure(model)
    outputs: dict[str, Tensor] = {}
    paths = sorted({path for layer in layers if layer.block for path in layer.block.norms})
    norms = {path: resolve(root, path) for path in paths}
    sums: dict[str, ResidualSum] = {}
    observed = observe(root, layers, batch, watching=_keeping(norms, outputs, layers, sums))
    found = require_layers(root, observed.layers)
    known = {layer.name for layer in layers}
    new = [layer for layer in found if layer.name not in known]
    if new:  # that only this pass has shown
        with torch.no_grad(), undisturbed(root), evaluating(root), residual_sums(new) as others:
            run_model(root, batch)
        sums |= others
    seen = [
        Seen(layer, call, _norm_before(layer, call, norms, outputs), sums.get(layer.name))
        for layer, call in zip(found, observed.calls, strict=True)
    ]
    return Look(observed.layers, seen)


def look_at_layers(
    layers: AttentionLayers, batch: Any, watching: AbstractContextManager[Any] | None = None
) -> list[Seen]:
    """Run the model in evaluation mode, without gradients, and return what each layer saw; norms are not looked for."""
    root = layers[0].root
    assert root is not None
    sums: dict[str, ResidualSum] = {}
    observed = observe(root, layers, batch, complete=False, watching=_keeping({}, {}, layers, sums, watching))
    seen = zip(observed.layers, observed.calls, strict=True)
    return [Seen(layer, call, None, sums.get(layer.name)) for layer, call in seen]


@contextmanager
def _keeping(
    modules: dict[str, nn.Module],
    outputs: dict[str, Tensor],
    layers: AttentionLayers,
    sums: dict[str, ResidualSum],
    watching: AbstractContextManager[Any] | None = None,
) -> Iterator[None]:
    """Keep the first output of each module, and where each layer joins the stream; a caller may watch too."""

    def keep(path: str, module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            outputs.setdefault(path, output)

    handles = [module.register_forward_hook(partial(keep, path)) for path, module in modules.items()]
    try:
        with watching or nullcontext(), residual_sums(layers) as found:
            yield
        sums.update(found)
    finally:
        for handle in handles:
            handle.remove()


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
    with undisturbed(root), evaluating(root), with_gradients():
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

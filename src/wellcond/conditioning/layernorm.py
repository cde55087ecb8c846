"""`wc.without_layernorm`: the ablation of Tables 6 and 12 of Spectral Conditioning of Attention."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from wellcond._core.checked import checked
from wellcond._core.result_table import ResultTable, Tabular
from wellcond.attention.find import chosen_layers
from wellcond.attention.layers import AttentionLayers, LayerFilter
from wellcond.attention.paths import join, resolve, unwrap, walk
from wellcond.attention.storage import split_path
from wellcond.attention.view import AttentionLayer
from wellcond.conditioning.model_checks import check_unwrapped
from wellcond.errors import InapplicableError

_NORM = re.compile(r"(Layer|R[Mm][Ss])_?Norm(2d)?$")
_EMBEDDING = re.compile(r"emb|pre|patch|stem")  # in the name of a norm before the blocks


class Unnormalised(nn.Module):
    """The identity, called as the norm it stands for: what it is given first is returned.

    Code that asks a norm's weight for its device or dtype (timm's Swin) finds one, outside the state dictionary and the
    parameters. `eps` is NaN, which equals no other eps: `nn.TransformerEncoderLayer` then leaves its fused path, which
    would normalise whatever the modules are.
    """

    eps = math.nan

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        for name, value in (("weight", 1.0), ("bias", 0.0)):
            found = getattr(norm, name, None)
            like = torch.full_like(found.detach(), value) if isinstance(found, Tensor) else None
            self.register_buffer(name, like, persistent=False)
        self.train(norm.training)

    def forward(self, x: Tensor, *rest: Any, **named: Any) -> Tensor:
        """Return the first argument."""
        return x


class WithoutLayerNorm(Tabular):
    """The norms that `wc.without_layernorm` has replaced; prints as a table.

    Attributes:
        replaced: `(path, class)` of each norm that is not applied now.

    >>> import torch, wellcond as wc
    >>> model = torch.nn.TransformerDecoderLayer(8, 2)
    >>> norms = wc.without_layernorm(model)
    >>> norms.replaced
    (('norm1', 'LayerNorm'), ('norm2', 'LayerNorm'), ('norm3', 'LayerNorm'))
    >>> norms.undo_()
    >>> norms
    <WithoutLayerNorm: 3 norms, undone>
    """

    def __init__(self, model: nn.Module, norms: dict[str, nn.Module]) -> None:
        self.model = model
        self.replaced = tuple((path, type(norm).__name__) for path, norm in norms.items())
        self._places: list[tuple[nn.Module, str, nn.Module, Unnormalised]] = []
        chosen = {id(norm): Unnormalised(norm) for norm in norms.values()}
        # By module, not by path: a norm that is shared has several places.
        for parent in list(model.modules()):
            for name, child in list(parent._modules.items()):
                if child is not None and id(unwrap(child)) in chosen:
                    self._places.append((parent, name, child, chosen[id(unwrap(child))]))
                    parent._modules[name] = chosen[id(unwrap(child))]
        self.active = True

    def undo_(self) -> None:
        """Put the very same modules back, on the device and in the dtype and mode that the model has now."""
        if not self.active:
            raise InapplicableError("the norms are back already")
        for parent, name, norm, stand_in in self._places:
            parent._modules[name] = norm.train(stand_in.training)
            if isinstance(stand_in.weight, Tensor):
                norm.to(device=stand_in.weight.device, dtype=stand_in.weight.dtype)
        self.active = False

    def records(self) -> list[dict[str, Any]]:
        """Return one row per norm.

        >>> import torch, wellcond as wc
        >>> wc.without_layernorm(torch.nn.TransformerEncoderLayer(8, 2)).records()[0]
        {'name': 'norm1', 'class': 'LayerNorm'}
        """
        return [{"name": path, "class": cls} for path, cls in self.replaced]

    def _result_table(self) -> ResultTable:
        state = "replaced by the identity" if self.active else "back in place"
        return ResultTable(["name", "class"], self.replaced, f"{len(self.replaced)} norms {state}")

    def __repr__(self) -> str:
        return f"<WithoutLayerNorm: {len(self.replaced)} norms{'' if self.active else ', undone'}>"


@checked
def without_layernorm(model: nn.Module, layers: LayerFilter = None, *, final: bool = False) -> WithoutLayerNorm:
    """Replace the layer norms of every attention block by the identity, in place.

    Spectral Conditioning of Attention, Tables 6 and 12: conditioning does not stand in for layer normalisation, weights
    grow too large without it. The papers do not say whether the norm after the last block went too; here it stays
    unless asked for. What stays always: batch norms, norms of embeddings and of downsampling, and norms inside an
    attention module (QK-norm). Call it before the model is wrapped and the optimizer built: parameters go away.

    Args:
        model: any model; its attention layers must lie in residual blocks.
        layers: shell pattern on the layer name, a list of them, or a predicate; the blocks of these layers.
        final: also the norms after a stack of blocks, and the one that starts the head.

    >>> import torch, wellcond as wc
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> norms = wc.without_layernorm(model)
    >>> print(norms)
    2 norms replaced by the identity
    name   class
    norm1  LayerNorm
    norm2  LayerNorm
    >>> norms.undo_()
    """
    found = chosen_layers(model, layers)
    check_unwrapped(model, "without_layernorm")
    for layer in found:
        if layer.block is None:
            raise InapplicableError(
                f"'{layer.name}' ({type(layer.module).__name__}) lies in no residual block that wellcond recognises, "
                "so its norms are not known; replace them by hand, or leave the layer out with layers=…"
            )
    root = unwrap(model)
    paths = dict.fromkeys(path for layer in found for path in _block_norms(layer))
    if final:
        paths |= dict.fromkeys(_final_norms(root, found))
    norms = {path: module for path in paths if is_layer_norm(module := resolve(root, path))}
    if found and not norms:
        raise InapplicableError(f"the blocks of this {type(root).__name__} have no LayerNorm or RMSNorm to replace")
    return WithoutLayerNorm(root, norms)


def is_layer_norm(module: nn.Module) -> bool:
    """Return whether a module is a LayerNorm or an RMSNorm, by the name of its class or of one it is derived from.

    >>> is_layer_norm(nn.RMSNorm(4)), is_layer_norm(nn.BatchNorm2d(4))
    (True, False)
    """
    return any(_NORM.search(cls.__name__) for cls in type(module).__mro__)


def _block_norms(layer: AttentionLayer) -> Iterator[str]:
    """Yield the norms of a layer's block, also one that its module holds beside the output projection (BERT)."""
    if layer.block is not None:
        yield from layer.block.norms
    if layer.output is not None and layer.root is not None:
        beside = split_path(split_path(layer.output.weight.path)[0])[0]
        if beside.startswith(layer.name + "."):  # in a module of its own, after the attention: not a QK-norm
            yield from (join(beside, name) for name in resolve(layer.root, beside)._modules)


def _final_norms(root: nn.Module, layers: AttentionLayers) -> Iterator[str]:
    """Yield norms beside a stack of blocks or above it, or at the start of the head; not those of the embedding."""
    above: set[str] = set()
    for layer in layers:
        path = layer.block.name if layer.block else ""
        while path:
            path = split_path(path)[0]
            above.add(path)
    for path, module in walk(root):
        parent, name = split_path(path)
        place = split_path(parent)[0] if split_path(parent)[1] == "head" else parent
        if path and place in above and is_layer_norm(module) and not _EMBEDDING.search(name):
            yield path

"""Find the attention layers of a model, and what looks like attention but nobody claims, with the reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from wellcond._core.checked import checked
from wellcond.attention.adapters.generic import looks_like_attention, why_not
from wellcond.attention.adapters.registry import Describe, adapters
from wellcond.attention.blocks import find_blocks
from wellcond.attention.layers import AttentionLayers, LayerFilter, Unclaimed, unclaimed_rows
from wellcond.attention.observe import observe
from wellcond.attention.own_code import as_guess, runs_own_code
from wellcond.attention.paths import inside, unwrap, walk
from wellcond.attention.storage import unmoved
from wellcond.attention.view import AttentionLayer
from wellcond.errors import LayerFilterError, NoAttentionError, WellcondError

_REGISTERED: dict[type[nn.Module], Describe] = {}


@checked
def attention_layers(model: nn.Module, inputs: Any = None) -> AttentionLayers:
    """Return a view of every attention layer of a model, in the one convention `(heads, D, d)`.

    Registered classes are asked first, then the adapters for torch, timm and transformers (recognised by class
    origin, never imported), then the structural adapter. Wrapping, sharding or compiling the model later keeps the
    views valid.

    Without `inputs` a layer's `standing` is `"described"` (its class is known) or `"guessed"` (from names and sizes).
    With a batch the model runs: a view that rebuilds what its module computed is `"verified"`, one that does not is
    replaced by what the pass shows, or `"refused"` with the reason; attention that no adapter knows is found by what
    it does. The model stays as it was.

    Args:
        model: any model, wrapped or not.
        inputs: a batch for it: a tensor, a tuple of positional or a dict of keyword arguments.

    >>> import torch, wellcond as wc
    >>> layers = wc.attention_layers(torch.nn.TransformerDecoderLayer(12, 3))
    >>> [(layer.name, layer.cross, layer.query.shape) for layer in layers]
    [('self_attn', False, (3, 12, 4)), ('multihead_attn', True, (3, 12, 4))]
    >>> model = torch.nn.TransformerEncoderLayer(12, 3, batch_first=True)
    >>> wc.attention_layers(model)[0].standing, wc.attention_layers(model, torch.randn(1, 5, 12))[0].standing
    ('described', 'verified')
    """
    root = unwrap(model)
    layers = from_structure(model) if inputs is None else observe(root, from_structure(model), inputs).layers
    return require_layers(root, layers)


def require_layers(root: nn.Module, layers: AttentionLayers) -> AttentionLayers:
    """Return the layers of a model, or raise with what was looked for if there are none."""
    if not len(layers):
        raise NoAttentionError(_nothing_found(root, layers.unclaimed))
    return layers


def chosen_layers(model: nn.Module, layers: LayerFilter) -> AttentionLayers:
    """Return the layers of a model that a filter picks; views that a pass has shown are given as they are.

    >>> import torch, wellcond as wc
    >>> model = torch.nn.TransformerEncoderLayer(12, 3, batch_first=True)
    >>> chosen_layers(model, wc.attention_layers(model, torch.randn(1, 5, 12)))[0].standing
    'verified'
    """
    if isinstance(layers, Sequence) and layers and all(isinstance(one, AttentionLayer) for one in layers):
        views = [one for one in layers if isinstance(one, AttentionLayer)]
        other = next((one.name for one in views if one.root is not unwrap(model)), None)
        if other is not None:
            raise LayerFilterError(
                f"'{other}' is a layer of another model; give those of wc.attention_layers(model, …)"
            )
        return AttentionLayers(views, filtered=True)
    return attention_layers(model).select(layers)


def from_structure(model: nn.Module) -> AttentionLayers:
    """Return the views that registered classes and adapters have of a model, none if there are none."""
    with unmoved(model.modules()):
        return _found(unwrap(model))


def _found(root: nn.Module) -> AttentionLayers:
    layers: list[AttentionLayer] = []
    lookalikes: list[Unclaimed] = []
    for name, module in walk(root):
        if any(inside(name, layer.name) for layer in layers):
            continue
        found = describe_module(module, name)
        if isinstance(found, AttentionLayer):
            layers.append(found.bind(root))
        elif found is not None or looks_like_attention(module):
            lookalikes.append(Unclaimed(name, type(module).__name__, found or why_not(module)))
    bound = [layer.bind(root, block) for layer, block in zip(layers, find_blocks(root, layers), strict=True)]
    # What merely contains a layer, or a closer look-alike, is not missed itself.
    inner = [layer.name for layer in layers] + [item.name for item in lookalikes]
    unclaimed = [
        item for item in lookalikes if not any(name != item.name and inside(name, item.name) for name in inner)
    ]
    return AttentionLayers(bound, unclaimed)


def describe_module(module: nn.Module, name: str) -> AttentionLayer | str | None:
    """Ask the registered classes, then each adapter; the first answer wins."""
    for cls in type(module).__mro__:
        if cls in _REGISTERED:
            found = _REGISTERED[cls](module, name)
            if found is not None and not isinstance(found, (AttentionLayer, str)):
                raise WellcondError(
                    f"describe of {cls.__name__} returned {type(found).__name__} for '{name}'; it returns an "
                    "AttentionLayer, a reason (a string), or None"
                )
            return found
    found = next((found for adapter in adapters() if (found := adapter(module, name)) is not None), None)
    if isinstance(found, AttentionLayer) and runs_own_code(module):
        return replace(as_guess(found), standing="guessed")
    return found


@checked
def register_attention(cls: type[nn.Module], describe: Describe) -> None:
    """Teach wellcond your own attention class.

    Args:
        cls: the class; sub-classes count.
        describe: `describe(module, name) -> AttentionLayer | str | None`; None leaves the module unclaimed, a string
            does so for that reason. The helpers of `wellcond.attention.adapters.build` make the projections.

    >>> import torch, wellcond as wc
    >>> from wellcond.attention.adapters import build
    >>> class Mine(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.mix = torch.nn.Linear(8, 24)                          # q, k, v of 2 heads of 4
    >>> def describe(module, name):
    ...     q, k, v = build.fused(module, name, "mix", heads=2, width=4)
    ...     return wc.AttentionLayer(name, "softmax", q, k, v, scale=0.5)
    >>> wc.register_attention(Mine, describe)
    >>> wc.attention_layers(Mine())[0].query.shape
    (2, 8, 4)
    """
    _REGISTERED[cls] = describe


def _nothing_found(root: nn.Module, unclaimed: Iterable[Unclaimed]) -> str:
    text = (
        f"{type(root).__name__} has no attention layer. Looked for: torch, timm and transformers attention classes; a "
        "fused qkv / in_proj / c_attn / query_key_value, q with kv, or q, k, v (q_proj, to_q, query, wq…) projection "
        "with a head count. wc.attention_layers(model, batch) finds attention by what it does; for a class of your "
        "own: wc.register_attention(Class, describe)."
    )
    if unclaimed:
        alike = (f"'{names}' ({cls}): {reason}" for names, cls, reason in unclaimed_rows(unclaimed)[:5])
        text += " Looked alike: " + "; ".join(alike)
    return text

"""`init_`: draw a scheme's weights and write them, all or nothing."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn

from wellcond.planning import LayerFilter, Plan, plan
from wellcond.schemes.compose import SchemeLike


def init_(
    model: nn.Module,
    scheme: SchemeLike,
    *,
    seed: int = 0,
    generator: torch.Generator | None = None,
    layers: LayerFilter = None,
    on_inapplicable: Literal["error", "skip"] = "error",
    **options: Any,
) -> Plan:
    """Initialise the attention of a model in place, all or nothing; return what was written where.

    Every draw is keyed by (seed, layer name, role, head) and made on the CPU in float32 or wider, so with one build of
    torch the same seed gives the same weights on any device, for any subset of layers and any number of processes and
    threads. The global generator is not touched, and everything the scheme does not own keeps its bits. On the meta
    device the plan is returned unapplied.

    Args:
        model: any model, wrapped, compiled or sharded.
        scheme: a name (`wc.schemes()` lists them), a function `(layer, draw) -> {role: (heads, D, d)}`, or a
            composition per role such as `{"qk": "conditioned", "vo": "mimetic"}`.
        seed: the key's first part.
        generator: a seed is drawn from it instead.
        layers: shell pattern on the layer name, a list of them, or a predicate; None for all.
        on_inapplicable: what to do with a layer the scheme does not apply to.
        options: the scheme's own.

    >>> import torch, wellcond as wc
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> print(wc.init_(model, "conditioned", seed=0).entries[0])
    Entry(layer='self_attn', role='query', scheme='conditioned', law='semi-orthogonal')
    """
    made = plan(
        model, scheme, seed=seed, generator=generator, layers=layers, on_inapplicable=on_inapplicable, **options
    )
    return made if made.on_meta else made.apply_()

"""Every attention of a model by what it does: one recorded pass, without a name of any class or attribute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from wellcond.attention.capture import evaluating, run_model
from wellcond.attention.recorded.columns import Undescribed
from wellcond.attention.recorded.describe import Described, describe_site
from wellcond.attention.recorded.leftover import with_left_over
from wellcond.attention.recorded.linear_sites import linear_mixtures, linear_site
from wellcond.attention.recorded.origins import Origins
from wellcond.attention.recorded.sites import Site, softmax_module
from wellcond.attention.recorded.softmax_sites import softmax_site
from wellcond.attention.recorded.sources import Source
from wellcond.attention.recorded.tape import recording
from wellcond.attention.undisturbed import undisturbed

LATER = "exponentials of its scores multiply something, and are normalised elsewhere, if at all"


@dataclass(frozen=True)
class Undescribable:
    """A site that no view can be given of: the module that was running, and the reason."""

    module: str
    reason: str


@dataclass(frozen=True)
class Discovery:
    """The sites of a pass: those with a view, and those without."""

    described: list[Described]
    undescribable: list[Undescribable]


@torch.no_grad()
def discover(root: nn.Module, inputs: Any) -> Discovery:
    """Run a model once, without a trace in it, and return every site of attention.

    >>> found = discover(nn.TransformerEncoderLayer(8, 2, batch_first=True), torch.randn(1, 5, 8))
    >>> [(site.layer.name, site.layer.query.heads) for site in found.described]
    [('self_attn', 2)]
    """
    with undisturbed(root), evaluating(root), recording(root) as tape:
        run_model(root, inputs)
    origins = Origins(tape)
    described: list[Described] = []
    undescribable: list[Undescribable] = []
    linear = dict(linear_mixtures(origins))
    inner = [o.source for mixture, place in linear.items() if (o := mixture.origins[place]) is not None]
    for mixture in [s for s in origins.sources if (s.kind == "mixture" and s not in inner) or s in linear]:
        try:
            described.append(describe_site(_site(mixture, linear.get(mixture), origins)))
        except Undescribed as reason:
            undescribable.append(Undescribable(softmax_module(mixture), str(reason)))
    written_out = [source.step.module for source in origins.sources if _averages_later(source)]
    undescribable += [Undescribable(path, LATER) for path in dict.fromkeys(written_out)]
    return Discovery(with_left_over(described), undescribable)


def _averages_later(source: Source) -> bool:
    """Whether exponentials of scores multiply something before anything has normalised them, as in a flash kernel."""
    factors = [o for o in source.origins if o is not None and o.source is not None and o.exponential]
    return source.kind == "scores" and any(o.source.kind == "scores" for o in factors if o.source is not None)


def _site(mixture: Source, place: int | None, origins: Origins) -> Site:
    if not mixture.result.numel():
        raise Undescribed("nothing goes through it in this pass")
    return softmax_site(mixture, origins) if place is None else linear_site(mixture, place, origins)

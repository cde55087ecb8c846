"""The output projection of a site: the linear map that first reads what was mixed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wellcond.attention.projection import Projection, Slot
from wellcond.attention.recorded.columns import Undescribed
from wellcond.attention.recorded.layout_of import matrix_layout
from wellcond.attention.recorded.sites import Site
from wellcond.attention.recorded.sources import Origin


@dataclass(frozen=True)
class Output:
    """An output projection, and the module that multiplies by it."""

    projection: Projection
    module: str


def find_output(site: Site, positions: Tensor) -> Output | None:
    """Return the linear map that first reads what was mixed; None where it does not read all of it, or reads more.

    Args:
        site: the attention.
        positions: of the view's columns in what is mixed, `(d,)`.
    """
    for index, source in enumerate(site.origins.sources):
        given = next((o for o in source.origins if o is not None and o.source is site.mixture), None)
        if source.kind == "linear" and given is not None:
            if given.plus or given.added or given.second is not None:
                return None
            try:
                return _read_by(site, index, given, positions)
            except Undescribed:  # a convolution, or a weight that no layout describes: the rest of the view stands
                return None
    return None


def _read_by(site: Site, index: int, given: Origin, positions: Tensor) -> Output | None:
    source, found, mixture = site.origins.sources[index], site.map(index), site.mixture
    numbers = given.first.movedim(1, -1) if source.step.name == "convolution" else given.first
    numbers = numbers if source.origins[0] is given else numbers.mT
    local = numbers.flatten(0, -2)[0] - mixture.first
    rows, columns = mixture.result.shape[-2:]
    heads, width = len(site.query.columns), len(site.value.columns[0])
    known = sum(index >= 0 for index, _ in site.value.columns[0])
    if len(local) != heads * known or int(local.min()) < 0 or int(local.max()) >= mixture.result.numel():
        return None
    inner = local // columns % rows if site.transposed else local % columns
    order = torch.full((heads, width), -1)
    order[site.head[local // mixture.area], inner] = torch.arange(len(local))
    if bool((order[:, positions] < 0).any()):
        return None
    path, layout = matrix_layout(found.weight[order[:, positions]].movedim(1, 2), site.origins.tape)
    added = found.bias is not None and int(found.bias.min()) >= 0
    bias = site.origins.tape.parameter(int(found.bias[0]))[0] if found.bias is not None and added else None
    return Output(Projection(Slot(path, layout), bias), source.step.module)

"""A view of a site: which elements of which parameters are each head's query, key, value and output projection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from torch import Tensor

from wellcond.attention.projection import Projection, Slot
from wellcond.attention.recorded.columns import LinearMap, Undescribed
from wellcond.attention.recorded.layout_of import matrix_layout, vector_layout
from wellcond.attention.recorded.output import find_output
from wellcond.attention.recorded.sites import Site
from wellcond.attention.roles import QKV
from wellcond.attention.view import AttentionLayer


@dataclass(frozen=True, eq=False)
class Part:
    """One role of a site in the parameters.

    Args:
        projection: the view.
        map: index of the linear map among the sources.
        columns: of each head, `(heads, d)`.
        positions: where these columns are in the operand, `(d,)`.
    """

    projection: Projection
    map: int
    columns: Tensor
    positions: Tensor


@dataclass(frozen=True, eq=False)
class Described:
    """A site and its view.

    Args:
        site: the attention in the pass.
        layer: its view, not yet bound to the model.
        parts: the roles in the parameters.
        shared: paths of parameters that all heads of a role share, which are in no view: of a latent, or of a part of
            the keys that is one for all heads.
        left_over: what else there is in the parameters of the view, or in the scores, in words.
    """

    site: Site
    layer: AttentionLayer
    parts: dict[str, Part]
    shared: tuple[str, ...] = ()
    left_over: tuple[str, ...] = ()

    def shares_queries(self, other: Described) -> bool:
        """Return whether both read the same queries of one call, as the parts of a chunked attention do."""
        mine, theirs = self.parts["query"], other.parts["query"]
        return mine.map == theirs.map and bool(torch.isin(mine.columns, theirs.columns).any())

    def is_one_with(self, other: Described) -> bool:
        """Return whether both are products of the same queries, keys and values of one call."""
        pairs = [(self.parts[role], other.parts[role]) for role in QKV]
        return all(a.map == b.map and torch.equal(a.columns, b.columns) for a, b in pairs)


def repeat_queries(sites: Sequence[Described]) -> bool:
    """Return whether several products read the same query of the same token, so that it has several averages."""
    read = [set(site.site.query.numbers[site.site.query.numbers >= 0].tolist()) for site in sites]
    return sum(map(len, read)) > len(set().union(*read))


def describe_site(site: Site) -> Described:
    """Return the view of a site, or raise `Undescribed` with the reason."""
    parts = {role: _part(site, role) for role in QKV}
    if len(site.key.columns) != len(site.value.columns):
        raise Undescribed(f"it has {len(site.key.columns)} key heads and {len(site.value.columns)} value heads")
    _check_apart(site, parts)
    output = find_output(site, parts["value"].positions)
    sources = site.origins.sources
    modules = [site.scores.step.module, site.mixture.step.module, *(sources[p.map].step.module for p in parts.values())]
    name = _common([*modules, *([] if output is None else [output.module])])
    layer = AttentionLayer(
        name,
        site.products.kind,
        parts["query"].projection,
        parts["key"].projection,
        parts["value"].projection,
        None if output is None else output.projection,
        cross=_is_cross(site, parts),
    )
    return Described(site, layer, parts, _shared(site, parts, name), _in_scores(site, parts))


def _part(site: Site, role: str) -> Part:
    """The columns of a role that each head has of its own; what all heads share is left out."""
    columns = site.operand(role).columns
    positions: dict[int, list[int]] = {}
    for position, (index, _) in enumerate(columns[0]):
        if index >= 0:
            positions.setdefault(index, []).append(position)
    own = [index for index, at in positions.items() if len({tuple(h[p] for p in at) for h in columns}) == len(columns)]
    if len(own) != 1 or any(head[p][0] != own[0] for head in columns for p in positions[own[0]]):
        raise Undescribed(f"the heads of the {role} come from several linear maps")
    (index,) = own
    place = torch.tensor(positions[index])
    chosen = torch.tensor([[head[p][1] for p in positions[index]] for head in columns])
    steps = chosen.diff(dim=1)
    if bool((steps != steps[:1, :1]).any()):  # a rotation that pairs columns in an order of its own
        order = chosen[0].argsort()
        chosen, place = chosen[:, order], place[order]
    return Part(_projection(site, site.map(index), chosen), index, chosen, place)


def _check_apart(site: Site, parts: dict[str, Part]) -> None:
    """Raise if two heads or two roles have a number in common, so that to write one is to write the other."""
    owners: dict[int, str] = {}
    for role, part in parts.items():
        for element in site.map(part.map).weight[0, part.columns].flatten().tolist():
            if element in owners:
                shared = f"two {role} heads share columns"
                raise Undescribed(shared if owners[element] == role else f"the {owners[element]} is the {role} too")
            owners[element] = role


def _projection(site: Site, found: LinearMap, chosen: Tensor) -> Projection:
    path, layout = matrix_layout(found.weight[:, chosen].movedim(1, 0), site.origins.tape)
    bias = None if found.bias is None else vector_layout(found.bias[chosen], site.origins.tape)
    return Projection(Slot(path, layout)) if bias is None else Projection(Slot(path, layout), *bias)


def _shared(site: Site, parts: dict[str, Part], name: str) -> tuple[str, ...]:
    """Paths of the weights that all heads of a role share: parts of the operand, and latents made in the layer."""
    indices = [
        i for role in QKV for head in site.operand(role).columns for i, _ in head if i not in (-1, parts[role].map)
    ]
    paths = dict.fromkeys(_weight_path(site, index) for index in dict.fromkeys(indices))
    for part in parts.values():
        for source in site.map(part.map).sources:
            given = source.origins[0] if site.origins.is_weight(source.right) else source.origins[1]
            made = None if given is None else given.source
            inside = made is not None and made.step.module.startswith(f"{name}." if name else "\0")
            if made is not None and made.kind == "linear" and inside:
                paths[_weight_path(site, site.origins.sources.index(made))] = None
    return tuple(paths)


def _weight_path(site: Site, index: int) -> str:
    source, origins = site.origins.sources[index], site.origins
    weight = source.right if origins.is_weight(source.right) else source.left
    return origins.tape.parameter(int(origins.weights.elements(weight).flatten()[0]))[0]


def _in_scores(site: Site, parts: dict[str, Part]) -> tuple[str, ...]:
    """What the scores are made of beside the product of queries and keys, in words."""
    moving = site.origins.moving
    words = [
        f"its scores add another product of activations, of shape {tuple(source.result.shape)}"
        for source in site.weights.added
        if source is not site.scores and moving(source.left) and moving(source.right)
    ]
    maps = {role: site.map(part.map).sources for role, part in parts.items()}
    apart = not set(maps["value"]) & {*maps["query"], *maps["key"]}  # else elements would have to be told apart
    softmax = site.weights.softmax
    if apart and softmax is not None and site.origins.tape.leads_to(maps["value"][0].result, softmax):
        words.append("its scores depend on its values too")
    return tuple(words)


def _is_cross(site: Site, parts: dict[str, Part]) -> bool:
    query, key = (site.map(parts[role].map).tokens for role in ("query", "key"))
    return query.shape != key.shape or not torch.equal(query, key)


def _common(paths: list[str]) -> str:
    """The innermost module that contains all of these.

    >>> _common(["blocks.0.attn.q", "blocks.0.attn.proj", "blocks.0.attn"])
    'blocks.0.attn'
    """
    levels = zip(*(path.split(".") for path in paths), strict=False)
    return ".".join(level[0] for level in takewhile(lambda level: len(set(level)) == 1, levels))

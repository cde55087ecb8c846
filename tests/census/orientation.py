"""Which factor of the scores is the query: the one whose entries move several scores of one row of the softmax."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.census.perturb import Wrong
from tests.census.sites import Site
from tests.census.steer import Nudge
from tests.census.trial import Trial, unmasked

ROUNDING = 1e-4  # share of the largest score, or change, above which one has moved
ENTRIES = 5  # of a factor that are nudged until one of them tells


def check_orientation(trial: Trial, turns: dict[str, Any], own: list[int]) -> None:
    """The claimed query makes a factor whose entries move rows of the softmax, the key one that moves columns.

    The nudge goes through everything between the product and the softmax, so that their shapes need not agree.
    """
    if not {"query", "key"} <= set(turns):
        return
    for i in own:
        site = trial.base.sites[i]
        for role, other in (("query", "key"), ("key", "query")):
            mine, others = (next(iter(turns[r].values()))[i].factors for r in (role, other))
            for product, by_role, by_other in zip(site.products, mine, others, strict=True):
                for factor in (0, 1):
                    if by_role[factor] and not by_other[factor]:  # both move where queries and keys share a weight
                        check_factor(trial, i, site, role, Nudge(product.number, factor, 0))


def check_factor(trial: Trial, index: int, site: Site, role: str, nudge: Nudge) -> None:
    product = next(p for p in site.products if p.number == nudge.product)
    size = (product.a, product.b)[nudge.factor].numel()
    for part in range(ENTRIES):
        entry = (2 * part + 1) * size // (2 * ENTRIES)
        later = trial.again(nudge=Nudge(nudge.product, nudge.factor, entry)).sites[index]
        scores = moved_in_rows(site.logits, later.logits, site.dim)
        in_a_row, rows = int(scores.sum(site.dim).max()), int(scores.any(site.dim).sum())
        if in_a_row > 1 or rows > 1:
            is_query = in_a_row > 1
            if is_query != (role == "query"):
                raise Wrong(f"what is claimed as {role} is the {'query' if is_query else 'key'}")
            return


def moved_in_rows(before: Tensor, after: Tensor, dim: int) -> Tensor:
    """Return the scores that moved against the others of their row: a softmax does not see what moves all of them.

    Models that subtract the largest score of a row move the whole row with it.
    """
    visible = torch.isfinite(before) & torch.isfinite(after) & unmasked(before)
    change = torch.where(visible, after - before, torch.nan)
    against = (change - change.nanmedian(dim, keepdim=True).values).nan_to_num().abs()
    return against > ROUNDING * before[visible].abs().max().clamp_min(against.max())

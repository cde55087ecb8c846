"""A module as its own replay: what it computes from given queries, keys and values, by its own operators."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import torch
from torch import Tensor

from wellcond.attention.recorded.columns import Undescribed
from wellcond.attention.recorded.describe import Described
from wellcond.attention.recorded.rerun import Rerun
from wellcond.attention.recorded.sites import batched
from wellcond.attention.recorded.sources import Source
from wellcond.attention.recorded.tape import Step
from wellcond.attention.roles import QKV
from wellcond.attention.verify import compare


class OwnReplay:
    """One attention of a pass as a function of its queries, keys and values, `(B, heads, N, d)` each.

    Where sequences cannot be told apart (windows that overlap), all tokens of the batch are one sequence.

    Args:
        described: the site and its view.
        dtype: to compute in; as the model does if None.
    """

    def __init__(self, described: Described, dtype: torch.dtype | None = None, *, joint: bool = False) -> None:
        self.described, self.dtype = described, dtype
        self._reruns: dict[int, Rerun] = {}
        site = described.site
        self.site, self.parts = site, described.parts
        self.heads = len(site.query.columns)
        self.mixtures = _by_head(site.head, self.heads)
        self.joint = joint or not self._has_sequences()
        numbers = self._all_rows if self.joint else self._by_sequence
        self.numbers = {role: numbers(role) for role in QKV}

    def to(self, dtype: torch.dtype) -> OwnReplay:
        """Return the same in another precision."""
        return OwnReplay(self.described, dtype, joint=self.joint)

    def _has_sequences(self) -> bool:
        try:
            return all(self._by_sequence(role).numel() for role in QKV)
        except Undescribed:
            return False

    def is_whole(self) -> bool:
        """Return whether nothing that was mixed depends on rows of Q, K or V that this is no function of.

        Where queries are pooled, for one, a position stands for several rows.
        """
        generator = torch.Generator().manual_seed(0)
        covered = torch.cat([self.numbers[role].flatten() for role in QKV])
        rest = torch.cat([self._all_rows(role).flatten() for role in QKV])
        rest = rest[~torch.isin(rest, covered)]
        if not len(rest):
            return True
        given = []
        for source, whole in zip(self._sources, self.sources_with({}), strict=True):
            local = rest - source.first
            local = local[(local >= 0) & (local < whole.numel())].to(whole.device)
            noise = torch.randn(len(local), generator=generator).to(whole) * whole.std()
            flat = whole.flatten()
            given.append(flat.index_put((local,), flat[local] + noise).reshape(whole.shape))
        moved = self._laid_out(self.leading_to(self._result, self._last)(*given)[0])
        return bool(compare("", "recording", moved, self.recorded()))

    def _by_sequence(self, role: str) -> Tensor:
        """Numbers of the elements of a role, `(B, heads, N, d)`."""
        operand, part = self.site.operand(role), self.parts[role]
        if operand.spread:
            raise Undescribed("its tokens are pooled")
        mixture = self.mixtures[:, :: self.heads // len(operand.columns)]  # the first of the heads that share one
        entries = mixture if role == self.site.products.at_mixture else self.site.entries[mixture]
        numbers = operand.numbers[entries][..., part.positions]
        known = (numbers >= 0).all(-1)
        if bool((entries < 0).any()) or bool((known != known[:1, :1]).any()):
            raise Undescribed("its sequences differ")
        numbers = numbers[:, :, known[0, 0]]
        rows = self._rows(role, numbers)
        if bool((rows != rows[:, :1]).any()) or len(set(rows[:, 0].flatten().tolist())) < rows[:, 0].numel():
            raise Undescribed("heads or sequences share tokens")
        found: Tensor = numbers
        return found

    def _all_rows(self, role: str) -> Tensor:
        part = self.parts[role]
        return self.site.map(part.map).numbers[:, part.columns].movedim(1, 0)[None]

    def _rows(self, role: str, numbers: Tensor) -> Tensor:
        return self.site.map(self.parts[role].map).spots(numbers[..., 0])[0]

    @cached_property
    def tokens(self) -> dict[str, Tensor]:
        """What each role reads, `(B, N, D)`."""
        rows = {role: self._rows(role, self.numbers[role])[:, 0] for role in QKV}
        return {role: self._wide(self.site.map(self.parts[role].map).tokens)[rows[role]] for role in QKV}

    def _wide(self, x: Tensor) -> Tensor:
        return x.detach() if self.dtype is None else x.detach().to(self.dtype)

    def recorded(self) -> Tensor:
        """What the pass itself mixed, `(B, H, N, d_v)`."""
        return self._laid_out(self.site.origins.tape.value(self._result))

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Mix the values: `(B, H, N, d_v)`."""
        given = self.sources_with({"query": q, "key": k, "value": v})
        return self._laid_out(self.leading_to(self._result, self._last)(*given)[0])

    def weights(self, roles: Mapping[str, Tensor]) -> Tensor:
        """What the values are averaged by, as the module has it, with other numbers for some roles."""
        mixture = self.site.mixture
        factor = mixture.left if self.site.left else mixture.right
        return self.leading_to(factor, mixture.step)(*self.sources_with(roles))[0]

    def sources_with(self, roles: Mapping[str, Tensor]) -> list[Tensor]:
        """Results of the linear maps behind Q, K and V with other numbers for some roles, `(B, heads, N, d)` each."""
        given = []
        for source in self._sources:
            whole = self._wide(self._whole(source))
            flat = whole.flatten()
            for role, x in roles.items():
                local = (self.numbers[role] - source.first).flatten()
                here = (local >= 0) & (local < flat.numel())
                if bool(here.all()):
                    flat = flat.index_put((local,), x.flatten())
                elif bool(here.any()):
                    flat = flat.index_put((local[here],), x.flatten()[here])
            given.append(flat.reshape(whole.shape))
        return given

    def leading_to(self, wanted: Tensor, step: Step) -> Rerun:
        """The steps from these linear maps to a tensor of the pass, as it is at some step."""
        if id(wanted) not in self._reruns:
            origins = self.site.origins
            given = [origins.result(source) for source in self._sources]
            self._reruns[id(wanted)] = Rerun(origins.tape.until(step), given, [wanted], self.dtype)
        return self._reruns[id(wanted)]

    def _whole(self, source: Source) -> Tensor:
        result = self.site.origins.result(source)
        return self.site.origins.tape.value(result) if result is source.result else result

    @cached_property
    def _sources(self) -> list[Source]:
        maps = [self.site.map(part.map) for part in self.parts.values()]
        return list(dict.fromkeys(source for found in maps for source in found.sources))

    @property
    def _last(self) -> Step:
        return self.site.products.quotient or self.site.mixture.step

    @property
    def _result(self) -> Tensor:
        """What the site mixes, divided by the sum that normalises it if a step of its own divides."""
        quotient = self.site.products.quotient
        return self.site.mixture.result if quotient is None else quotient.results[0]

    def _laid_out(self, result: Tensor) -> Tensor:
        mixture = self.site.mixture
        if self.site.products.quotient is not None:  # of the whole product, or of a part of it
            origin = self.site.origins.of(self._result)
            assert origin is not None
            place = (origin.first - mixture.first).flatten()
            result = result.new_zeros(mixture.result.numel()).index_put((place,), result.flatten())
        result = batched(result.reshape(mixture.result.shape))
        result = result.mT if self.site.transposed else result
        result = result[self.mixtures][..., self.parts["value"].positions]
        return result.movedim(0, 1).flatten(1, 2)[None] if self.joint else result


def _by_head(head: Tensor, heads: int) -> Tensor:
    """Entries by sequence and head, `(B, heads)`."""
    entries = [(head == each).nonzero().flatten() for each in range(heads)]
    if len({len(each) for each in entries}) > 1:
        raise Undescribed("its heads average different numbers of sequences")
    return torch.stack(entries, 1)

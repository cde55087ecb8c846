"""What to know of a mapped model, in sentences: where its tokens have directions that the weights prefer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from wellcond.mapping.mapped import Mapped
from wellcond.tables import span
from wellcond.terminal import prose
from wellcond.visible import visible

ALIGNED = 0.2  # relative gap between β from weights and on the batch that is spoken of


def notes_on(mapped: Sequence[Mapped]) -> tuple[str, ...]:
    """Each layer's own notes, equal ones once; then how far the batch is from what weights say of it.

    >>> import torch
    >>> from wellcond.mapping.mapped import map_blocks
    >>> _ = torch.manual_seed(0)
    >>> block = torch.nn.TransformerEncoderLayer(64, 2, 128, batch_first=True)
    >>> notes_on(map_blocks(block, torch.randn(4, 32, 64))[0])
    ('β on the batch is within 20 % of what weights say',)
    """
    found: dict[str, list[str]] = {}
    for one in mapped:
        for note in one.notes:
            found.setdefault(note, []).append(one.layer.name)
    said = [_names(names, len(mapped)) + note for note, names in found.items()]
    gaps = {one.layer.name: 1 + one.discrepancy for one in mapped if one.discrepancy is not None}
    apart = {name: ratio for name, ratio in gaps.items() if abs(ratio - 1) > ALIGNED}
    if apart:
        name = max(apart, key=lambda name: abs(math.log(max(apart[name], 1e-9))))
        where = "" if len(mapped) == 1 else f" in {len(apart)} of {len(mapped)} layers"
        how = "align with W_Q W_Kᵀ" if apart[name] > 1 else "lie where W_Q W_Kᵀ is weak"
        said.append(
            f"tokens are not isotropic{where}. In {name} measured β is {apart[name]:.2g} × what weights say: "
            f"tokens {how}"
        )
    elif gaps:
        every = "" if len(gaps) == len(mapped) else f" in the {len(gaps)} layers whose weights set it"
        said.append(f"β on the batch is within {ALIGNED * 100:.0f} % of what weights say{every}")
    return tuple(said)


def closing(notes: Sequence[str], skipped: Mapping[str, str]) -> str:
    """What follows a table: the notes, and what was left out, layers of one reason together.

    >>> print(closing(["all is well"], {"blocks.0.attn": "no", "blocks.1.attn": "no"}))
    all is well
    not mapped: blocks.{0…1}.attn: no
    """
    reasons: dict[str, list[str]] = {}
    for name, reason in skipped.items():
        reasons.setdefault(reason, []).append(name)
    left = [f"not mapped: {span(names)}: {reason}" for reason, names in reasons.items()]
    return "\n".join(prose(visible(line)) for line in (*notes, *left))


def _names(names: list[str], total: int) -> str:
    return "" if len(names) == total else f"{names[0]}: " if len(names) == 1 else f"{len(names)} layers: "

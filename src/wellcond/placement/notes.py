"""Notes on a placed model, in sentences: where its tokens have directions that the weights prefer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from wellcond._core.safe_text import visible
from wellcond._core.terminal import prose
from wellcond._core.text_tables import span
from wellcond.placement.placed_blocks import PlacedBlock

REPORTED_GAP = 0.2  # relative gap between β from weights and on the batch that is spoken of


def notes_on(placed: Sequence[PlacedBlock]) -> tuple[str, ...]:
    """Return each layer's own notes, equal ones once; then how far the batch is from what weights say of it.

    >>> import torch
    >>> from wellcond.placement.placed_blocks import place_blocks
    >>> _ = torch.manual_seed(0)
    >>> block = torch.nn.TransformerEncoderLayer(64, 2, 128, batch_first=True)
    >>> notes_on(place_blocks(block, torch.randn(4, 32, 64))[0])
    ('β on the batch is within 20 % of what weights say',)
    """
    found: dict[str, list[str]] = {}
    for one in placed:
        for note in one.notes:
            found.setdefault(note, []).append(one.layer.name)
    said = [_names(names, len(placed)) + note for note, names in found.items()]
    gaps = {one.layer.name: 1 + one.discrepancy for one in placed if one.discrepancy is not None}
    apart = {name: ratio for name, ratio in gaps.items() if abs(ratio - 1) > REPORTED_GAP}
    if apart:
        name = max(apart, key=lambda name: abs(math.log(max(apart[name], 1e-9))))
        where = "" if len(placed) == 1 else f" in {len(apart)} of {len(placed)} layers"
        how = "align with W_Q W_Kᵀ" if apart[name] > 1 else "lie where W_Q W_Kᵀ is weak"
        said.append(
            f"tokens are not isotropic{where}. In {name} measured β is {apart[name]:.2g} × what weights say: "
            f"tokens {how}"
        )
    elif gaps:
        every = "" if len(gaps) == len(placed) else f" in the {len(gaps)} layers whose weights set it"
        said.append(f"β on the batch is within {REPORTED_GAP * 100:.0f} % of what weights say{every}")
    return tuple(said)


def closing_notes(notes: Sequence[str], skipped: Mapping[str, str]) -> str:
    """Return the lines below a table: the notes, and what was left out, layers of one reason together.

    >>> print(closing_notes(["all is well"], {"blocks.0.attn": "no", "blocks.1.attn": "no"}))
    all is well
    not placed: blocks.{0…1}.attn: no
    """
    reasons: dict[str, list[str]] = {}
    for name, reason in skipped.items():
        reasons.setdefault(reason, []).append(name)
    left = [f"not placed: {span(names)}: {reason}" for reason, names in reasons.items()]
    return "\n".join(prose(visible(line)) for line in (*notes, *left))


def _names(names: list[str], total: int) -> str:
    return "" if len(names) == total else f"{names[0]}: " if len(names) == 1 else f"{len(names)} layers: "

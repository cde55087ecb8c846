"""Spectral Conditioning's Tables 8 and 9: the cost of the correction, by formula and counted here."""

from __future__ import annotations

import warnings

import wellcond as wc

VIT_TOKENS = 197  # of 224 × 224 pixels


def conditioning_cost_tables() -> str:
    """Write memory and operations of the query, key and value projections of one block of a ViT-B.

    Theirs adds C to the weight in each pass (`live`): operations of a head grow from `6 N D d` to `6 N D d + 3 N d`, by
    `1 / 2D`. Folded into the weight it adds nothing.
    """
    found = []
    for mode in ("live", "folded"):
        model = wc.build_model("timm:vit_base_patch16_224", depth=1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that attention starts one-hot is no matter here
            found.append(str(wc.condition_(model, "shift", strength=10.0, mode=mode).cost(tokens=VIT_TOKENS)))
    return "\n\n".join(found)

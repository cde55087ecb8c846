"""Models, weights and output files as commands name them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import wellcond as wc
from wellcond._core.file_names import check_path
from wellcond.cli.app import GIVEN
from wellcond.errors import CheckpointError, WellcondError


def model_shapes(model: str) -> Any:
    """Build a model without weights; a user's own function may need real ones, so it is called as it is."""
    return wc.build_model(model, device="meta" if model.startswith(("timm:", "hf:")) else None)


def load_weights_given(model: Any, weights: Path | None, allow_pt: bool) -> None:
    """Load weights, if there are any; the refusal of a pickle names the command that reads it."""
    if weights is None:
        return
    from wellcond.checkpoint.reading import PICKLES

    if weights.suffix in PICKLES and not allow_pt:
        again = shlex.join(["wellcond", *GIVEN.get(), "--allow-pt"])
        raise CheckpointError(
            f"'{weights}' is named like a pickle, which can run code when it is loaded. To read "
            f"nothing but its tensors: {again}"
        )
    wc.load_weights_(model, weights, allow_pt=allow_pt)


def check_folder_of(target: Path) -> None:
    """Refuse a file to write whose folder is not there, before any work is done for it."""
    if not check_path(target).parent.is_dir():
        raise WellcondError(f"there is no directory '{target.parent}' to write '{target.name}' into; make it first")

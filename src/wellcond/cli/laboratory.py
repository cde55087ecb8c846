"""The laboratory's modules for commands; its libraries are an extra, so they are imported when a command runs."""

from __future__ import annotations

import importlib
from typing import Any

from wellcond._core.stop_signals import start_tracker
from wellcond.errors import WellcondError


def laboratory() -> Any:
    """Import all that commands do with the laboratory."""
    start_tracker()  # before joblib, which scikit-learn imports, does
    return laboratory_module("wellcond.lab.api")


def laboratory_module(name: str) -> Any:
    """Import one module of the laboratory; say what to install where that fails."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise WellcondError(f"the laboratory cannot be imported ({error}): pip install 'wellcond[lab,timm]'") from error

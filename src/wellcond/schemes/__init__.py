"""Initialisations by name, one published scheme per file; importing this package registers them all."""

import importlib
import pkgutil

_HELPERS = {"base", "laws", "compose", "depth", "positions", "post_norm", "teacher"}

for _module in pkgutil.iter_modules(__path__):
    if _module.name not in _HELPERS:
        importlib.import_module(f"{__name__}.{_module.name}")

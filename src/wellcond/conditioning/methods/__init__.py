"""Conditioning by name, one published method a file; importing this package registers them all in `METHODS`."""

import importlib
import pkgutil

from wellcond.conditioning.method import METHODS

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["METHODS"]

"""Adapters, one a file or folder: the only place that names foreign classes. Importing this package registers them."""

import importlib
import pkgutil

for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
    importlib.import_module(_module.name)

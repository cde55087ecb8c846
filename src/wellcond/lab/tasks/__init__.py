"""Tasks by name: data sets with their loss and metric, read offline."""

import importlib
import pkgutil

from wellcond.lab.tasks.base import Batch, Examples, Task
from wellcond.lab.tasks.metrics import Counts
from wellcond.lab.tasks.registry import options_of, task, tasks

__all__ = ["Batch", "Counts", "Examples", "Task", "options_of", "task", "tasks"]

# A task is one file in here, which registers it; what it needs beyond torch and numpy it imports when it is built.
for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
    importlib.import_module(_module.name)

"""What is trained on what: tasks by name, offline."""

import importlib
import pkgutil

from wellcond.lab.tasks.base import Batch, Examples, Task
from wellcond.lab.tasks.metrics import Counts
from wellcond.lab.tasks.registry import options_of, task, tasks

__all__ = ["Batch", "Counts", "Examples", "Task", "options_of", "task", "tasks"]

# A task registers itself where it is defined; what it needs beyond torch and numpy it imports when it is built.
for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

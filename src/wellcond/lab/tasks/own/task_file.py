"""A task from a function of the user's own, named as `path/to/file.py:function`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wellcond._core.global_generators import restored_generators, seed_generators
from wellcond.errors import DataError
from wellcond.inputs.own_functions import call_own, own_function
from wellcond.lab.tasks.base import Task
from wellcond.lab.tasks.own.task_of import task_of


def file_task(name: str, options: Mapping[str, Any]) -> Task:
    r"""Call a function in a file with its options; it returns a task, or the dict that `task_of` takes.

    The global generators are seeded while it runs, so every process that asks gets the same data.

    >>> import tempfile
    >>> from pathlib import Path
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = Path(folder.name) / "my.py"
    >>> lines = "import torch", "def task(count):", "    data = torch.randn(count, 3), torch.randn(count, 3)"
    >>> _ = path.write_text("\n".join([*lines, "    return {'train': data, 'test': data}"]))
    >>> found, again = (file_task(f"{path}:task", {"count": 4}).train for _ in range(2))
    >>> len(found), bool((found.inputs == again.inputs).all())
    (4, True)
    """
    with restored_generators():
        seed_generators("file")
        own_function(name, DataError)  # what stands in the file beside functions runs once, and may draw
        seed_generators("task")
        found = call_own(name, {}, DataError, **options)
    return found if isinstance(found, Task) else task_of(found, name)

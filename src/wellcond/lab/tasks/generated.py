"""Tensors that are computed when first needed, and kept in a file if there is a folder for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import safetensors.torch
from torch import Tensor

from wellcond._core.atomic import write_bytes
from wellcond._core.keyed_random import key, neutral
from wellcond.errors import WellcondError
from wellcond.lab.tasks.base import Batch, Examples


@dataclass(frozen=True)
class Generated:
    """Tensors that a generator makes of its parameters, once.

    The file is a safetensors file whose name carries a hash of the parameters, so other parameters are another file; it
    is written whole or not at all, so two processes that write it at once do no harm.

    Args:
        name: of the generator, with its version: `listops-1`.
        parameters: everything that the result depends on.
        make: computes named tensors.
        folder: for the file; None keeps it in memory only.

    >>> import tempfile, torch
    >>> def make():
    ...     print("computed")
    ...     return {"a": torch.ones(2)}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for _ in range(2):
    ...         print(Generated("ones-1", {"count": 2}, make, Path(folder)).tensors["a"].sum())
    computed
    tensor(2.)
    tensor(2.)
    """

    name: str
    parameters: Mapping[str, object]
    make: Callable[[], Mapping[str, Tensor]]
    folder: Path | None = None

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """Return the tensors: read, or computed and written."""
        if self.folder is None:
            return self._made()
        file = self.folder / f"{self.name}-{key(self._described):016x}.safetensors"
        if file.is_file():
            return self._read(file)
        made = {name: tensor.contiguous() for name, tensor in self._made().items()}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WellcondError(f"the folder {str(self.folder)!r} cannot be made: {error}") from error
        write_bytes(file, safetensors.torch.save(made, {"of": self._described}))
        return made

    @property
    def _described(self) -> str:
        return json.dumps({"name": self.name, **self.parameters}, sort_keys=True)

    def _made(self) -> Mapping[str, Tensor]:
        with neutral():  # it may be first asked for under another default device
            return self.make()

    def _read(self, file: Path) -> Mapping[str, Tensor]:
        try:
            with safetensors.safe_open(file, "pt") as opened:
                if (opened.metadata() or {}).get("of") != self._described:
                    raise WellcondError(f"{str(file)!r} was not written by this generator: delete it")
                return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (it is no dict)
        except (OSError, safetensors.SafetensorError) as error:
            raise WellcondError(f"{str(file)!r} is damaged ({error}): delete it, it will be made again") from error


@dataclass(frozen=True)
class GeneratedExamples:
    """Some of what is generated, `count` from number `begin` on; computed when an example is first asked for."""

    generated: Generated
    begin: int
    count: int
    view: Callable[[Mapping[str, Tensor], slice], Examples]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, indices: Tensor) -> Batch:
        return self.view(self.generated.tensors, slice(self.begin, self.begin + self.count))[indices]

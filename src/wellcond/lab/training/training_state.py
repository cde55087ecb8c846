"""Training state of a run as named tensors: what a checkpoint holds, and how a run resumes from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from wellcond._core.deferred_torch import is_dtensor
from wellcond._core.json_files import parse_json
from wellcond.attention.storage import assign_, full, like
from wellcond.checkpoint.handle_state import join_state, split_state
from wellcond.conditioning.handle import Conditioning
from wellcond.control.control import Control
from wellcond.lab.training.checkpoints import latest_checkpoint


@dataclass(frozen=True)
class TrainingState:
    """Everything needed to resume a run exactly; the rest follows from the seed and the step."""

    model: nn.Module
    optimizer: Any
    conditioning: Conditioning | None  # remembers what rounding would lose
    average: dict[str, Tensor]  # of the weights, if one is kept
    scaler: Any = None  # of the loss, where training is in float16 on a GPU
    control: Control | None = None  # counts steps, and knows earlier updates

    def _handles(self) -> dict[str, Any]:
        """What has a state of tensors and plain values, by name."""
        own = {"conditioning": self.conditioning, "control": self.control}
        return {name: handle for name, handle in own.items() if handle is not None}

    def tensors(self) -> dict[str, Tensor]:
        """Return the state by name, gathered if it is sharded: every process calls."""
        found = {f"model.{name}": full(tensor) for name, tensor in self.model.state_dict().items()}
        for index, state in self.optimizer.state_dict()["state"].items():
            found |= {f"optimizer.{index}.{name}": full(torch.as_tensor(value)) for name, value in state.items()}
        found |= {f"average.{name}": full(tensor) for name, tensor in self.average.items()}
        scale = self.scaler.state_dict() if self.scaler is not None else {}
        found |= {f"scaler.{name}": torch.tensor(value, dtype=torch.float64) for name, value in scale.items()}
        for name, handle in self._handles().items():
            own: dict[str, Tensor] = {}
            text = json.dumps(split_state(handle.state_dict(), "", own))
            found |= {f"{name}.{path}": full(tensor) for path, tensor in own.items()}
            found[f"text.{name}"] = torch.tensor(list(text.encode()), dtype=torch.uint8)
        return found

    def load_(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace the state by what `tensors` returned."""
        parts: dict[str, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            part, _, rest = name.partition(".")
            parts.setdefault(part, {})[rest] = tensor
        own = self.model.state_dict()
        self.model.load_state_dict({name: _as(own[name], tensor) for name, tensor in parts["model"].items()})
        trained = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in parts.get("optimizer", {}).items():
            index, _, field = name.partition(".")
            # The moments of a sharded parameter are sharded as it is; the number of steps is everybody's.
            state.setdefault(int(index), {})[field] = _as(trained[int(index)], tensor) if tensor.dim() else tensor
        self.optimizer.load_state_dict({"state": state, "param_groups": self.optimizer.state_dict()["param_groups"]})
        for name, tensor in parts.get("average", {}).items():
            assign_(self.average[name], tensor)
        if self.scaler is not None and "scaler" in parts:
            known = self.scaler.state_dict()
            self.scaler.load_state_dict(
                {name: type(known[name])(value.item()) for name, value in parts["scaler"].items()}
            )
        for name, handle in self._handles().items():
            text = bytes(parts["text"][name].tolist()).decode()
            handle.load_state_dict(join_state(parse_json(text, "the checkpoint"), parts.get(name, {})))


def _as(target: Tensor, whole: Tensor) -> Tensor:
    return like(target, whole.to(target.device)) if is_dtensor(target) else whole


def resume_(folder: Path, state: TrainingState) -> int:
    """Resume from the last whole checkpoint of a folder; return its step, or 0 if there is none."""
    found = latest_checkpoint(folder)
    if found is None:
        return 0
    state.load_(found[1])
    return found[0]

"""A conditioned or monitored model in a Trainer of Lightning, which builds optimizers and checkpoints itself."""

from __future__ import annotations

from typing import Any

from wellcond.checked import checked
from wellcond.diagnose.monitor import Monitor
from wellcond.diagnose.scalars import scalars
from wellcond.integrations.shared import NAME, attach, check_model, missing
from wellcond.spectral.handle import Conditioning

try:
    from lightning.pytorch import Callback
except ImportError as error:
    raise missing("lightning", "lightning", error) from error


class ConditioningCallback(Callback):  # type: ignore[misc]
    """Attach a handle to the optimizers that hold its weights, and keep its state in Lightning's checkpoints.

    A checkpoint's `state_dict` holds the weights that are used, so it loads in an ordinary model. Lightning restores
    callbacks after the model, as the handle needs it: resumed training continues bit for bit.

    Args:
        handle: what `wc.condition_` returned, for the module that is fitted or a network inside it.
        name: of the state in the checkpoint, where there is more than one handle.

    >>> import torch, wellcond as wc
    >>> block = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> callback = ConditioningCallback(wc.condition_(block, "shift", strength=2.0))
    >>> callback.state_key, callback.state_dict()["strength"]["value"]
    ('wellcond', 2.0)
    """

    @checked
    def __init__(self, handle: Conditioning, *, name: str = NAME) -> None:
        self.handle, self.name = handle, name

    @property
    def state_key(self) -> str:
        """The key of our state among the callbacks' in a checkpoint."""
        return self.name

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """The optimizers are there; their state may be loaded later, which changes nothing for us."""
        check_model(self.handle, pl_module)
        attach(self.handle, trainer.optimizers)

    def state_dict(self) -> dict[str, Any]:
        """Dictionaries, tensors and numbers, which Lightning loads without running code."""
        return self.handle.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Called after the model's weights were loaded."""
        self.handle.load_state_dict(state_dict)


class MonitorCallback(Callback):  # type: ignore[misc]
    """Have a monitor look after every training batch; its averages go to the Trainer's loggers, too.

    >>> import torch, wellcond as wc
    >>> block = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> MonitorCallback(wc.Monitor(block, torch.randn(2, 6, 8))).monitor.schedule.budget
    0.01
    """

    @checked
    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *rest: Any) -> None:
        """Count a step of the optimizer, not a batch of an accumulated gradient."""
        if trainer.global_step == self.monitor.steps:
            return
        for record in self.monitor.step(trainer.global_step):
            for logger in trainer.loggers:
                logger.log_metrics(dict(scalars(record)), step=trainer.global_step)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Training is over."""
        self.monitor.close()

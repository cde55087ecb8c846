"""A conditioned, monitored or controlled model in a Trainer of Lightning, and `wc.recommend` from a LightningModule."""

from __future__ import annotations

from typing import Any

from torch import nn

from wellcond._core.checked import checked
from wellcond.conditioning.handle import Conditioning
from wellcond.control.control import Control
from wellcond.diagnosis.monitor import Monitor
from wellcond.errors import WellcondError
from wellcond.integrations.lightning_advice import recommend_for_module as recommend_for_module
from wellcond.integrations.shared import NAME, Controlling, Watching, attach, check_model, missing_library
from wellcond.integrations.training_step import called_by_training_step as called_by_training_step

try:
    from lightning.pytorch import Callback, LightningModule
except ImportError as error:
    raise missing_library("lightning", "lightning", error) from error


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
        check_model(self.handle.model, pl_module)
        attach(self.handle, trainer.optimizers)

    def state_dict(self) -> dict[str, Any]:
        """Dictionaries, tensors and numbers, which Lightning loads without running code."""
        return self.handle.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Called after the model's weights were loaded."""
        self.handle.load_state_dict(state_dict)


class MonitorCallback(Callback):  # type: ignore[misc]
    """Have a monitor look after every step of the optimizer; its averages go to the Trainer's loggers, too.

    Args:
        given: the batch to look with, or a `wc.Monitor` of the module or of a network inside it.
        options: with a batch, the keywords of `wc.Monitor`, as in `every=100`.

    >>> import torch
    >>> MonitorCallback(torch.randn(2, 6, 8), every=100).monitor is None
    True
    """

    @checked
    def __init__(self, given: Any, **options: Any) -> None:
        self._watching = Watching(given, options)

    @property
    def monitor(self) -> Monitor | None:
        """The `wc.Monitor`; None before training, where a batch was given."""
        return self._watching.monitor

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The module is where it will be trained, with the weights and at the step that it starts or resumes from."""
        if not isinstance(self._watching.given, Monitor) and type(pl_module).forward is LightningModule.forward:
            raise WellcondError(
                f"{type(pl_module).__name__} has no forward() to send the batch through: watch the network inside it, "
                "MonitorCallback(wc.Monitor(module.network, batch, …))"
            )
        self._watching.begin(pl_module, trainer.global_step)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *rest: Any) -> None:
        """Count a step of the optimizer, not a batch of an accumulated gradient."""
        values = self._watching.step(trainer.global_step)
        for logger in trainer.loggers if values else ():
            logger.log_metrics(values, step=trainer.global_step)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Training is over."""
        self._watching.end()


class ControlCallback(Callback):  # type: ignore[misc]
    """Keep attention within bands while Lightning trains; its state is in Lightning's checkpoints.

    Args:
        network: what is controlled, where it is a network inside the module that `training_step` calls; None for the
            module itself.
        options: keywords of `wc.control_`, as in `max_logit=100, every=20`.

    >>> ControlCallback(max_logit=100, every=20).control is None
    True
    """

    @checked
    def __init__(self, network: nn.Module | None = None, **options: Any) -> None:
        self.network, self._controlling = network, Controlling(options)

    @property
    def control(self) -> Control | None:
        """The `wc.Control`; None before training."""
        return self._controlling.control

    @property
    def state_key(self) -> str:
        """The key of our state among the callbacks' in a checkpoint."""
        return f"{NAME}-control"

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """The optimizers are there, and our own state is loaded."""
        model = pl_module if self.network is None else self.network
        check_model(model, pl_module, "to be controlled")
        own = {id(p) for p in model.parameters()}
        holding = [
            optimizer
            for optimizer in trainer.optimizers
            if any(id(p) in own for group in optimizer.param_groups for p in group["params"])
        ]
        if len(holding) != 1:
            raise WellcondError(
                f"{len(holding)} optimizers hold weights of the {type(model).__name__}, and a control counts the steps "
                "of one: call wc.control_(network, optimizer, …) in configure_optimizers"
            )
        self._controlling.begin(model, holding[0])

    def state_dict(self) -> dict[str, Any]:
        """Dictionaries, tensors and numbers, which Lightning loads without running code."""
        return {} if self.control is None else self.control.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Called before training begins."""
        self._controlling.saved = state_dict

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Training is over."""
        self._controlling.end()

"""A conditioned, monitored or controlled model in the Trainer of transformers, and `wc.recommend` from what it has."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from wellcond._core.argument_types import Folder
from wellcond._core.checked import checked
from wellcond._core.safe_text import visible
from wellcond.attention.storage import full
from wellcond.checkpoint.handle_state import load_state_, read_state, write_state
from wellcond.conditioning.handle import Conditioning
from wellcond.conditioning.storage.live_parameter import live_owners, parameter_of
from wellcond.control.control import Control
from wellcond.diagnosis.monitor import Monitor
from wellcond.errors import CheckpointError
from wellcond.integrations.shared import NAME, Controlling, Watching, attach, check_model, missing_library
from wellcond.integrations.trainer_advice import recommend_for_trainer as recommend_for_trainer

try:
    from transformers import TrainerCallback
    from transformers.trainer_callback import CallbackHandler
except ImportError as error:
    raise missing_library("transformers", "hf", error) from error


class ConditioningTrainerCallback(TrainerCallback):  # type: ignore[misc]
    """Attach a handle to the Trainer's optimizer, save it in every checkpoint, restore it when training resumes.

    The state is `wellcond.safetensors` in the checkpoint's folder; `model.safetensors` holds the weights that are used,
    so a checkpoint loads in an ordinary model. Resumed training continues bit for bit.

    Args:
        handle: what `wc.condition_(model, …)` returned, for the model that the Trainer is given.
        resume_from: the checkpoint's folder, where it is not the Trainer's own: `train(resume_from_checkpoint=…)` does
            not tell callbacks, so `args.resume_from_checkpoint` and `args.output_dir/checkpoint-STEP` are tried.
        name: of the file, where there is more than one handle.

    >>> import os, tempfile, wellcond as wc
    >>> from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
    >>> config = GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=9, n_positions=4, bos_token_id=0, eos_token_id=0)
    >>> model = GPT2LMHeadModel(config)
    >>> callback = ConditioningTrainerCallback(wc.condition_(model, "shift", strength=0.5))
    >>> data = [{"input_ids": torch.arange(4), "labels": torch.arange(4)}] * 8
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     options = {"max_steps": 1, "save_steps": 1, "report_to": "none", "disable_tqdm": True, "use_cpu": True}
    ...     arguments = TrainingArguments(folder, logging_strategy="no", weight_decay=0.1, **options)
    ...     trainer = Trainer(model, arguments, train_dataset=data, callbacks=[callback])
    ...     trained = trainer.train()  # doctest: +ELLIPSIS
    ...     "wellcond.safetensors" in os.listdir(f"{folder}/checkpoint-1")
    {...}
    True
    """

    @checked
    def __init__(
        self,
        handle: Conditioning,
        *,
        resume_from: Folder | None = None,
        name: str = NAME,
    ) -> None:
        self.handle = handle
        self.resume_from, self.file = resume_from, f"{name}.safetensors"

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: nn.Module, optimizer: Any = None, **rest: Any
    ) -> None:
        """Weights, optimizer and schedule are loaded by now."""
        check_model(self.handle.model, model)
        attach(self.handle, [optimizer])
        if state.global_step:  # a run that starts has done none
            self._resume(args, state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """The checkpoint is complete but for us."""
        found = self.handle.state_dict()  # on every rank: sharded weights are gathered
        _save(args, state.global_step, self.file, found, "conditioning")

    def on_train_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """The best model's weights were loaded: take the W they came from, not W to rounding error."""
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            best = Path(state.best_model_checkpoint) / self.file
            if best.is_file():
                self._restore(best)

    def _resume(self, args: Any, step: int) -> None:
        found = _saved(args, step, self.file, self.resume_from)
        if found is not None:
            self._restore(found)
        else:
            warnings.warn(
                f"there is no {self.file} in '{visible(_folder(args, step))}', so W comes from the weights of the "
                "checkpoint, to rounding error; for a bit-exact continuation say "
                "ConditioningTrainerCallback(handle, resume_from=FOLDER)",
                stacklevel=2,
            )

    def _restore(self, file: Path) -> None:
        """Load a state, if it gives the weights that the Trainer has just loaded."""
        before, wanted = self.handle.state_dict(), _used(self.handle.model)
        load_state_(self.handle, file)
        got = _used(self.handle.model)
        # What loading weights allows itself when it looks for W, twice.
        wrong = [name for name, value in wanted.items() if _distance(got[name], value) > 128]
        if wrong:
            self.handle.load_state_dict(before)
            raise CheckpointError(
                f"'{file}' belongs to another checkpoint than the one training resumes from: it does not give its "
                f"'{wrong[0]}'; say ConditioningTrainerCallback(handle, resume_from=FOLDER)"
            )


class MonitorTrainerCallback(TrainerCallback):  # type: ignore[misc]
    """Have a monitor look after every step of the Trainer's optimizer; its averages go to the Trainer's log.

    They are an entry of `trainer.state.log_history` and reach the trackers of `report_to`, when they are measured:
    `logging_steps` does not matter.

    Args:
        given: the batch to look with, or a `wc.Monitor` of the Trainer's model.
        log_to_trainer: False to leave the Trainer's log alone.
        options: with a batch, the keywords of `wc.Monitor`, as in `every=100`.

    >>> MonitorTrainerCallback({"input_ids": torch.arange(4)[None]}, every=100).monitor is None
    True
    """

    @checked
    def __init__(self, given: Any, *, log_to_trainer: bool = True, **options: Any) -> None:
        self._watching, self.log_to_trainer = Watching(given, options), log_to_trainer

    @property
    def monitor(self) -> Monitor | None:
        """The `wc.Monitor`; None before training, where a batch was given."""
        return self._watching.monitor

    def on_train_begin(self, args: Any, state: Any, control: Any, model: nn.Module, **rest: Any) -> None:
        """Weights are loaded, and sharded, by now."""
        self._watching.begin(model, state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> Any:
        """After the optimizer's step, by the Trainer's own count."""
        values: dict[str, Any] = dict(self._watching.step(state.global_step))
        if not values or not self.log_to_trainer:
            return control
        if state.epoch is not None:
            values["epoch"] = state.epoch
        state.log_history.append({**values, "step": state.global_step})
        handler = _handler(self)
        # As Trainer.log does, but for handler.on_log, which would forget that the loss is to be logged at this step.
        return control if handler is None else handler.call_event("on_log", args, state, control, logs=values)

    def on_train_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Training is over."""
        self._watching.end()


class ControlTrainerCallback(TrainerCallback):  # type: ignore[misc]
    """Keep attention within bands while the Trainer trains, and save what a resumed run needs in its checkpoints.

    The state is `wellcond-control.safetensors` in each checkpoint's folder.

    Args:
        resume_from: the checkpoint's folder, where it is not the Trainer's own.
        options: keywords of `wc.control_`, as in `max_logit=100, every=20`.

    >>> callback = ControlTrainerCallback(max_logit=100, every=20)
    >>> callback.control is None
    True
    """

    FILE = f"{NAME}-control.safetensors"

    @checked
    def __init__(self, *, resume_from: Folder | None = None, **options: Any) -> None:
        self._controlling, self.resume_from = Controlling(options), resume_from

    @property
    def control(self) -> Control | None:
        """The `wc.Control`; None before training."""
        return self._controlling.control

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: nn.Module, optimizer: Any = None, **rest: Any
    ) -> None:
        """Weights, optimizer and schedule are loaded by now."""
        file = _saved(args, state.global_step, self.FILE, self.resume_from) if state.global_step else None
        self._controlling.saved = {} if file is None else read_state(file)
        self._controlling.begin(model, optimizer, state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """The checkpoint is complete but for us."""
        if self.control is not None:
            _save(args, state.global_step, self.FILE, self.control.state_dict(), "control")

    def on_train_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Training is over."""
        self._controlling.end()


def _handler(callback: TrainerCallback) -> CallbackHandler | None:
    """The Trainer's list of callbacks, trackers among them, while it calls one of them.

    Note [The Trainer's trackers]: those of `report_to` are callbacks, and a Trainer tells a callback neither of itself
    nor of the others. The call comes from their CallbackHandler, so it is a few frames up the stack. Where it is not,
    log_history has the values all the same. `log_to_trainer=False` switches this off.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        owner = frame.f_locals.get("self")
        if isinstance(owner, CallbackHandler) and callback in owner.callbacks:
            return owner
    return None


def _save(args: Any, step: int, file: str, found: dict[str, Any], what: str) -> None:
    """Add a state to the checkpoint of a step, from the process that saves."""
    folder = _folder(args, step)
    if not args.should_save:
        return
    if folder.is_dir():
        write_state(found, folder / file)
    else:
        warnings.warn(f"there is no '{visible(folder)}', so the state of the {what} is not saved", stacklevel=2)


def _saved(args: Any, step: int, file: str, resume_from: Folder | None) -> Path | None:
    """A file in the checkpoint that training resumes from; None where it is not found."""
    if resume_from is not None:
        return Path(resume_from) / file
    folders = [Path(str(args.resume_from_checkpoint)), _folder(args, step)]
    return next((folder / file for folder in folders if (folder / file).is_file()), None)


def _folder(args: Any, step: int) -> Path:
    return Path(args.output_dir) / f"checkpoint-{step}"


def _used(model: nn.Module) -> dict[str, Tensor]:
    """A copy of each live weight as it is used."""
    return {
        f"{path}.{name}": full(live.export(parameter_of(owner, name))).clone()
        for path, owner, name, live in live_owners(model)
    }


def _distance(a: Tensor, b: Tensor) -> float:
    """The largest difference, in units of the last place of the largest number."""
    return float((a - b).abs().max() / (torch.finfo(b.dtype).eps * b.abs().max()))


ConditioningCallback = ConditioningTrainerCallback  # the names up to 0.1
MonitorCallback = MonitorTrainerCallback

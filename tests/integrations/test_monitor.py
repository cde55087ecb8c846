"""`MonitorCallback` in a real Trainer of transformers and a real one of Lightning: what is measured is logged, once."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from lightning.pytorch.loggers import CSVLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments

import wellcond as wc
from tests.training import gpt2
from wellcond.errors import WeightError, WellcondError
from wellcond.integrations import lightning as for_lightning
from wellcond.integrations.transformers import MonitorTrainerCallback
from wellcond.testing import same_bits

IDS = torch.randint(31, (16, 12), generator=torch.Generator().manual_seed(0))
BATCH = {"input_ids": IDS[:2]}
ALL = {"wellcond/kappa_query", "wellcond/entropy", "wellcond/kappa_jacobian"}  # one of each tier


@pytest.fixture(autouse=True)
def _fresh_accelerate() -> Iterator[None]:
    """Accelerate keeps what the first Accelerator of a process was told."""
    yield
    for shared in (AcceleratorState, GradientState, PartialState):
        shared._reset_state()


def trainer(folder: Path, *callbacks: Any, model: nn.Module | None = None, **options: Any) -> Trainer:
    quiet: dict[str, Any] = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "save_strategy": "no"}
    defaults = {"max_steps": 7, "logging_steps": 100, "per_device_train_batch_size": 4, "seed": 0}
    arguments = TrainingArguments(str(folder), **(defaults | quiet | options))
    data = [{"input_ids": row, "labels": row} for row in IDS]
    own = gpt2(torch.float32) if model is None else model
    return Trainer(own, arguments, train_dataset=data, eval_dataset=data[:4], callbacks=list(callbacks))


def entries(runner: Trainer, key: str) -> list[int]:
    return [entry["step"] for entry in runner.state.log_history if key in entry]


@pytest.mark.parametrize("logging_steps", [2, 3, 100])
def test_the_trainers_log_has_every_record_once_and_keeps_its_own(tmp_path: Path, logging_steps: int) -> None:
    """At the step where it is measured, whether that is one at which the loss is logged or not."""
    runner = trainer(tmp_path, MonitorTrainerCallback(BATCH, every=3, alarms=False), logging_steps=logging_steps)
    runner.train()
    plain = trainer(tmp_path, logging_steps=logging_steps)
    plain.train()
    for key in ALL:
        assert entries(runner, key) == [3, 6]
    assert all(entry.keys() >= ALL for entry in runner.state.log_history if "wellcond/entropy" in entry)
    assert entries(runner, "loss") == [step for step in range(1, 8) if step % logging_steps == 0]
    losses = [[entry["loss"] for entry in each.state.log_history if "loss" in entry] for each in (runner, plain)]
    assert losses[0] == losses[1]
    assert all(same_bits(a, b) for a, b in zip(runner.model.parameters(), plain.model.parameters(), strict=True))


def test_the_trackers_of_report_to_get_them(tmp_path: Path) -> None:
    monitor = MonitorTrainerCallback(BATCH, every=3, alarms=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "logs"))
        runner = trainer(tmp_path, monitor, report_to="tensorboard", logging_steps=3)
        runner.train()
    events = EventAccumulator(str(tmp_path / "logs")).Reload()
    for name in (*ALL, "loss"):
        assert [event.step for event in events.Scalars(f"train/{name}")] == [3, 6]
    logged = [entry["wellcond/entropy"] for entry in runner.state.log_history if "wellcond/entropy" in entry]
    written = [event.value for event in events.Scalars("train/wellcond/entropy")]
    assert written == pytest.approx(logged, rel=1e-6)  # float32 in the file


class Heard(TrainerCallback):
    """Keeps what callbacks are told of logs."""

    def __init__(self) -> None:
        self.logs: list[set[str]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **rest: Any) -> None:
        self.logs.append({name for name in logs if name.startswith("wellcond/")})


@pytest.mark.parametrize("first", [True, False])
def test_other_callbacks_hear_each_record_once_in_any_order(tmp_path: Path, first: bool) -> None:
    heard, monitor = Heard(), MonitorTrainerCallback(BATCH, every=3, alarms=False)
    trainer(tmp_path, *((heard, monitor) if first else (monitor, heard))).train()
    assert [bool(names) for names in heard.logs] == [True, True, False]  # steps 3 and 6, then the end of training
    assert heard.logs[0] >= ALL


def test_the_trainers_log_can_be_left_alone(tmp_path: Path) -> None:
    heard, folder = Heard(), tmp_path / "run"
    runner = trainer(
        tmp_path, heard, MonitorTrainerCallback(BATCH, every=3, alarms=False, folder=folder, log_to_trainer=False)
    )
    runner.train()
    assert entries(runner, "wellcond/entropy") == []
    assert not any(heard.logs)
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 6


def test_evaluation_is_as_it_was(tmp_path: Path) -> None:
    """Before training, in it, and after it; the best model is found by what was evaluated."""
    best = {"load_best_model_at_end": True, "metric_for_best_model": "loss", "save_strategy": "steps", "save_steps": 3}
    evaluated = []
    for callbacks in ([], [MonitorTrainerCallback(BATCH, every=1, alarms=False)]):
        runner = trainer(tmp_path, *callbacks, eval_strategy="steps", eval_steps=3, **best)
        first = runner.evaluate()["eval_loss"]
        runner.train()
        last = runner.evaluate()["eval_loss"]
        logged = [(entry["step"], entry["eval_loss"]) for entry in runner.state.log_history if "eval_loss" in entry]
        evaluated.append([first, last, logged, runner.state.best_metric])
    assert evaluated[0] == evaluated[1]
    assert entries(runner, "wellcond/entropy") == [1, 2, 3, 4, 5, 6, 7]


def test_the_monitor_is_of_the_trainers_model_and_made_anew_for_each_training(tmp_path: Path) -> None:
    callback = MonitorTrainerCallback(
        BATCH, every=5, tiers=["weights"], layers="*h.1*", alarms=False, folder=tmp_path / "run"
    )
    assert callback.monitor is None
    runner = trainer(tmp_path, callback)
    runner.train()
    first = callback.monitor
    assert first is not None
    assert first.model is runner.model
    assert (first.schedule.every, first.schedule.tiers, len(first.layers)) == (5, ("weights",), 1)
    runner.train()
    assert callback.monitor is not first
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 2


def test_a_monitor_that_is_given_logs_too_and_is_of_the_model_in_training(tmp_path: Path) -> None:
    model = gpt2(torch.float32)
    runner = trainer(tmp_path, MonitorTrainerCallback(wc.Monitor(model, BATCH, every=3, alarms=False)), model=model)
    runner.train()
    assert entries(runner, "wellcond/entropy") == [3, 6]
    other = wc.Monitor(gpt2(torch.float32), BATCH, every=3)
    with pytest.raises(WeightError, match="not the GPT2LMHeadModel that was monitored"):
        trainer(tmp_path, MonitorTrainerCallback(other)).train()


@pytest.mark.parametrize("cls", [MonitorTrainerCallback, for_lightning.MonitorCallback])
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda cls: cls(gpt2(), every=3), "got the model GPT2LMHeadModel"),
        (lambda cls: cls(None), "got None"),
        (lambda cls: cls(IDS, evry=3), "no keyword 'evry'; did you mean every"),
        (lambda cls: cls(IDS, model=3), "there are budget, every, log"),
        (lambda cls: cls(wc.Monitor(gpt2(), IDS[:2], every=2), every=3), "give them to the Monitor"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(cls: Any, make: Any, says: str) -> None:
    with pytest.raises(WellcondError, match=says):
        make(cls)


# Lightning.


class Language(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = gpt2(torch.float32)

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        loss: Tensor = self.net(batch, labels=batch).loss
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class WithForward(Language):
    def forward(self, ids: Tensor) -> Any:
        return self.net(ids)


def fit(module: pl.LightningModule, folder: Path, callback: Any) -> list[dict[str, str]]:
    """Train for four steps of two batches each; return the rows of Lightning's table that have our values."""
    logger = CSVLogger(str(folder))
    pl.Trainer(
        max_steps=4,
        accumulate_grad_batches=2,
        accelerator="cpu",
        logger=logger,
        callbacks=[callback],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(module, DataLoader(IDS, batch_size=2))
    logger.save()
    with (Path(logger.log_dir) / "metrics.csv").open() as file:
        return [row for row in csv.DictReader(file) if row["wellcond/entropy"]]


def test_lightnings_loggers_get_each_record_once(tmp_path: Path) -> None:
    callback = for_lightning.MonitorCallback(IDS[:2], every=2, alarms=False)
    rows = fit(WithForward(), tmp_path, callback)
    assert [int(row["step"]) for row in rows] == [2, 4]
    assert all(row[name] for row in rows for name in ALL)
    assert callback.monitor is not None
    assert callback.monitor.schedule.every == 2


def test_lightning_without_a_forward_says_what_to_watch(tmp_path: Path) -> None:
    with pytest.raises(WellcondError, match=r"Language has no forward\(\).*wc.Monitor\(module.network"):
        fit(Language(), tmp_path, for_lightning.MonitorCallback(IDS[:2], every=2))
    module = Language()
    monitor = wc.Monitor(module.net, IDS[:2], every=2, alarms=False)
    assert [int(row["step"]) for row in fit(module, tmp_path, for_lightning.MonitorCallback(monitor))] == [2, 4]

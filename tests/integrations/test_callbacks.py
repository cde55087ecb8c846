"""Conditioned models in loops that are not ours: the Trainer of transformers, Lightning, Accelerate."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lightning.pytorch as lightning
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from lightning.pytorch.callbacks import ModelCheckpoint
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.utils.data import DataLoader
from transformers import GPT2LMHeadModel, Trainer, TrainingArguments

import wellcond as wc
from tests.training import distance, effective, gpt2, literal
from wellcond.checkpoint.handle_state import load_state_, read_state, save_state, write_state
from wellcond.conditioning.storage.live_parameter import parameter_of
from wellcond.errors import CheckpointError, OptimizerError, WeightError
from wellcond.integrations.lightning import ConditioningCallback as ForLightning
from wellcond.integrations.transformers import ConditioningTrainerCallback as ForTrainer
from wellcond.testing import same_bits, state

STRENGTH, STEPS = 2.0, 20
CLOSE = 1e-10  # float64 over tens of steps
ROWS, BATCH = 60, 10

Condition = Callable[[nn.Module], wc.Conditioning]


@pytest.fixture(autouse=True)
def _fresh_accelerate() -> Iterator[None]:
    """Accelerate keeps what the first Accelerator of a process was told."""
    yield
    for shared in (AcceleratorState, GradientState, PartialState):
        shared._reset_state()


def condition(model: nn.Module, method: str = "shift", **options: Any) -> wc.Conditioning:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # strength 2 makes the softmax sharp, which is no concern here
        return wc.condition_(model, method, **({"strength": STRENGTH} if method == "shift" else {}), **options)


WAYS: dict[str, Condition] = {
    "folded shift": partial(condition, mode="folded"),
    "live shift": partial(condition, mode="live"),
    "live polar": partial(condition, method="polar"),
    "live polar, every 3": partial(condition, method="polar", every=3),
}
LIVE = [way for way in WAYS if way.startswith("live")]


def rows() -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(31, (ROWS, 12), generator=generator)
    tokens[:, 1::2] = (3 * tokens[:, ::2] + 1) % 31
    return [{"input_ids": row, "labels": row} for row in tokens]


def loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    """In the model's precision; transformers' own is in float32."""
    return functional.cross_entropy(outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


@contextmanager
def no_warning_of_ours() -> Iterator[None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    ours = [str(w.message) for w in caught if "attach" in str(w.message) or "condition" in str(w.message)]
    assert ours == []


def weights(model: nn.Module) -> dict[str, Tensor]:
    """What is stored, which for a live weight is not what is used."""
    return state(model)


def assert_same(a: nn.Module, b: nn.Module) -> None:
    first, second = weights(a), weights(b)
    assert first.keys() == second.keys()
    assert [name for name in first if not same_bits(first[name], second[name])] == []


# Trainer of transformers.


def trainer(
    model: nn.Module,
    folder: Path,
    handle: wc.Conditioning | None = None,
    callback: Any = None,
    optimizer: Any = None,
    **options: Any,
) -> Trainer:
    defaults = {"max_steps": STEPS, "weight_decay": 0.1, "learning_rate": 1e-3, "warmup_steps": 4}
    defaults |= {"lr_scheduler_type": "cosine", "max_grad_norm": 0.5, "per_device_train_batch_size": BATCH}
    quiet = {"report_to": "none", "logging_strategy": "no", "disable_tqdm": True, "use_cpu": True}
    arguments = TrainingArguments(str(folder), **(defaults | {"save_strategy": "no"} | quiet | options))
    callbacks = [callback] if callback else [ForTrainer(handle)] if handle else []
    data = rows()
    return Trainer(
        model,
        arguments,
        train_dataset=data,
        eval_dataset=data[:20],
        compute_loss_func=loss,
        callbacks=callbacks,
        optimizers=(optimizer, None),
    )


@cache
def literal_trainer(accumulate: int) -> dict[str, Tensor]:
    model = literal(gpt2(), STRENGTH)
    with TemporaryDirectory() as folder:
        trainer(model, Path(folder), gradient_accumulation_steps=accumulate).train()
    return effective(model)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("way", ["folded shift", "live shift"])
def test_trainer_is_literal(tmp_path: Path, way: str, accumulate: int) -> None:
    wanted, model = literal_trainer(accumulate), gpt2()
    handle = WAYS[way](model)
    with no_warning_of_ours():
        trainer(model, tmp_path, handle, gradient_accumulation_steps=accumulate).train()
    assert distance(wanted, effective(gpt2())) > 1e-3
    assert distance(wanted, effective(model)) < CLOSE


def test_trainer_without_the_callback_differs(tmp_path: Path) -> None:
    model = gpt2()
    WAYS["folded shift"](model)
    with pytest.warns(UserWarning, match="attach"):
        trainer(model, tmp_path).train()
    assert distance(literal_trainer(1), effective(model)) > 1e4 * CLOSE


SAVING = {"save_strategy": "steps", "save_steps": 4, "max_steps": 8}
Run = tuple[str, nn.Module, Path]


@pytest.fixture(scope="module", params=WAYS)
def run(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A model trained for 8 steps with checkpoints at 4 and 8."""
    model, folder = gpt2(torch.float32), tmp_path_factory.mktemp("run")
    trainer(model, folder, WAYS[request.param](model), **SAVING).train()
    return request.param, model, folder


def other() -> nn.Module:
    """As a new process has it: nothing of the trained model in it."""
    model = gpt2(torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("told", ["by step", "last", "callback", "arguments"])
def test_trainer_resumes_bit_for_bit(run: Run, tmp_path: Path, told: str) -> None:
    """From the run's own folder, or from one that the callback is told of."""
    way, model, folder = run
    new, start = tmp_path / "new", tmp_path / "kept"
    if told in ("by step", "last"):
        start = new / "checkpoint-4"
    shutil.copytree(folder / "checkpoint-4", start)
    resumed = other()
    callback = ForTrainer(WAYS[way](resumed), resume_from=start if told == "callback" else None)
    said = {"resume_from_checkpoint": str(start)} if told == "arguments" else {}
    with no_warning_of_ours():
        runner = trainer(resumed, new, callback=callback, **SAVING, **said)
        runner.train(resume_from_checkpoint=True if told == "last" else str(start))
    assert_same(resumed, model)


@pytest.mark.parametrize("run", ["folded shift", "live shift", "live polar"], indirect=True)
def test_trainer_says_that_it_found_no_state(run: Run, tmp_path: Path) -> None:
    """Without the state, W comes from W + C: right to rounding."""
    way, model, folder = run
    resumed = other()
    runner = trainer(resumed, tmp_path, WAYS[way](resumed), **SAVING)
    with pytest.warns(UserWarning, match="resume_from=FOLDER"):
        runner.train(resume_from_checkpoint=str(folder / "checkpoint-4"))
    assert distance(weights(resumed), weights(model)) < 1e-3


@pytest.mark.parametrize("run", LIVE, indirect=True)
def test_trainer_refuses_the_state_of_another_run(run: Run, tmp_path: Path) -> None:
    """Found at the usual place, but training resumes from somewhere else."""
    way, _, folder = run
    (tmp_path / "checkpoint-4").mkdir()
    shutil.copy(folder / "checkpoint-8" / "wellcond.safetensors", tmp_path / "checkpoint-4")
    resumed = other()
    with pytest.raises(CheckpointError, match="belongs to another checkpoint"):
        trainer(resumed, tmp_path, WAYS[way](resumed), **SAVING).train(
            resume_from_checkpoint=str(folder / "checkpoint-4")
        )
    saved = load_file(folder / "checkpoint-4" / "model.safetensors")
    assert all(torch.allclose(resumed.state_dict()[name], value, atol=1e-5) for name, value in saved.items())


def test_a_checkpoint_is_an_ordinary_model(run: Run) -> None:
    _, model, folder = run
    assert sorted(p.name for p in (folder / "checkpoint-8").glob("wellcond*")) == ["wellcond.safetensors"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = GPT2LMHeadModel.from_pretrained(folder / "checkpoint-8")
    ids = torch.stack([row["input_ids"] for row in rows()])
    with torch.no_grad():
        assert torch.equal(loaded.eval()(ids).logits, model.eval()(ids).logits)
    assert sorted(load_file(folder / "checkpoint-8" / "model.safetensors")) == sorted(
        set(gpt2().state_dict()) - {"lm_head.weight"}  # tied
    )


@pytest.mark.parametrize("way", WAYS)
def test_best_model_at_the_end(tmp_path: Path, way: str) -> None:
    model = gpt2(torch.float32)
    handle = WAYS[way](model)
    best = {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 4, "prediction_loss_only": True}
    worst = {"metric_for_best_model": "loss", "greater_is_better": True}  # the earliest checkpoint, not the last
    runner = trainer(model, tmp_path / "run", handle, **SAVING, **best, **worst)
    with no_warning_of_ours():
        runner.train()
    first = tmp_path / "run" / "checkpoint-4"
    assert Path(runner.state.best_model_checkpoint) == first
    saved = load_file(first / "model.safetensors")
    assert [name for name, value in saved.items() if not same_bits(model.state_dict()[name], value)] == []
    kept = read_state(first / "wellcond.safetensors")
    for path, value in kept.get("weights", {}).items():
        assert same_bits(parameter_of(model.get_submodule(path.removesuffix(".weight")), "weight").detach(), value)
    runner.save_model(str(tmp_path / "best"))
    again = load_file(tmp_path / "best" / "model.safetensors")
    assert all(same_bits(again[name], value) for name, value in saved.items())


def test_trainer_refuses_what_attach_refuses(tmp_path: Path) -> None:
    model = gpt2(torch.float32)
    handle = WAYS["folded shift"](model)
    with pytest.raises(OptimizerError, match="Adafactor scales its step"):
        trainer(model, tmp_path, handle, optimizer=optim.Adafactor(model.parameters())).train()
    with no_warning_of_ours():  # transformers' Adafactor, as the Trainer makes it, does without
        trainer(model, tmp_path, handle, optim="adafactor", max_steps=2).train()


def test_trainer_refuses_another_model(tmp_path: Path) -> None:
    handle = WAYS["live shift"](gpt2(torch.float32))
    with pytest.raises(WeightError, match="not the GPT2LMHeadModel that was conditioned"):
        trainer(gpt2(torch.float32), tmp_path, handle).train()


def test_trainer_with_two_handles(tmp_path: Path) -> None:
    def conditioned(model: nn.Module) -> list[ForTrainer]:
        first = condition(model, mode="folded", layers="*h.0*")
        second = condition(model, method="polar", layers="*h.1*")
        return [ForTrainer(first, name="first"), ForTrainer(second, name="second")]

    model, resumed = gpt2(torch.float32), other()
    for each, start in ((model, None), (resumed, str(tmp_path / "checkpoint-4"))):
        runner = trainer(each, tmp_path, **SAVING)
        for callback in conditioned(each):
            runner.add_callback(callback)
        with no_warning_of_ours():
            runner.train(resume_from_checkpoint=start)
    assert_same(model, resumed)
    assert {"first.safetensors", "second.safetensors"} <= {p.name for p in (tmp_path / "checkpoint-4").iterdir()}


# Lightning.


class Module(lightning.LightningModule):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        return loss(self.model(batch["input_ids"]), batch["labels"])

    def configure_optimizers(self) -> Any:
        optimizer = optim.AdamW(self.parameters(), lr=1e-3, weight_decay=0.1)
        schedule = optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 5) * 0.95**step)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def loader() -> DataLoader[Any]:
    return DataLoader(rows(), batch_size=BATCH)


def fit(module: nn.Module, folder: Path, *callbacks: Any, start: Path | None = None, **options: Any) -> None:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    saving = [ModelCheckpoint(folder, "{epoch}", save_top_k=-1)] if options.get("max_epochs") else []
    defaults = {"gradient_clip_val": 0.5, "enable_checkpointing": bool(saving), "default_root_dir": folder}
    runner = lightning.Trainer(callbacks=[*callbacks, *saving], **(defaults | quiet | options))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*(does not have many workers|num_workers|Checkpoint directory)")
        runner.fit(module, loader(), ckpt_path=start, weights_only=True)


@cache
def literal_lightning(accumulate: int) -> dict[str, Tensor]:
    model = literal(gpt2(), STRENGTH)
    with TemporaryDirectory() as folder:
        fit(Module(model), Path(folder), max_steps=STEPS, accumulate_grad_batches=accumulate)
    return effective(model)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("way", ["folded shift", "live shift"])
def test_lightning_is_literal(tmp_path: Path, way: str, accumulate: int) -> None:
    wanted, model = literal_lightning(accumulate), gpt2()
    handle = WAYS[way](model)
    with no_warning_of_ours():
        fit(Module(model), tmp_path, ForLightning(handle), max_steps=STEPS, accumulate_grad_batches=accumulate)
    assert distance(wanted, effective(gpt2())) > 1e-3
    assert distance(wanted, effective(model)) < CLOSE


def test_lightning_without_the_callback_differs(tmp_path: Path) -> None:
    model = gpt2()
    WAYS["folded shift"](model)
    with pytest.warns(UserWarning, match="c.attach"):
        fit(Module(model), tmp_path, max_steps=STEPS)
    assert distance(literal_lightning(1), effective(model)) > 1e4 * CLOSE


@pytest.mark.parametrize(("way", "outside"), [*((way, False) for way in WAYS), ("live polar", True)])
def test_lightning_resumes_bit_for_bit(tmp_path: Path, way: str, outside: bool) -> None:
    """The handle may be of the network or of the LightningModule around it."""
    model, resumed = Module(gpt2(torch.float32)), Module(other())
    handles = [WAYS[way](module if outside else module.model) for module in (model, resumed)]
    with no_warning_of_ours():
        fit(model, tmp_path, ForLightning(handles[0]), max_epochs=2)
        start = tmp_path / "epoch=0.ckpt"
        fit(resumed, tmp_path / "new", ForLightning(handles[1]), max_epochs=2, start=start)
    assert_same(resumed, model)
    # The checkpoint loads in an ordinary module.
    plain = Module.load_from_checkpoint(tmp_path / "epoch=1.ckpt", model=gpt2(torch.float32), weights_only=True)
    ids = torch.stack([row["input_ids"] for row in rows()])
    with torch.no_grad():
        assert torch.equal(plain.eval().model(ids).logits, model.eval().model(ids).logits)


class Alternating(Module):
    """Two optimizers, one of which holds no attention weight."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.automatic_optimization = False
        self.head = nn.Linear(2, 2).double()

    def training_step(self, batch: dict[str, Tensor], index: int) -> None:
        head, body = self.optimizers()
        self.manual_backward(super().training_step(batch, index) + self.head.weight.square().sum())
        for optimizer in (head, body):
            optimizer.step()
            optimizer.zero_grad()

    def configure_optimizers(self) -> Any:
        head = optim.SGD(self.head.parameters(), lr=1e-3, weight_decay=0.1)
        return head, optim.AdamW(self.model.parameters(), lr=1e-3, weight_decay=0.1)


def test_lightning_with_two_optimizers(tmp_path: Path) -> None:
    wanted, model = literal(gpt2(), STRENGTH), gpt2()
    options = {"max_steps": STEPS, "gradient_clip_val": None}
    fit(Alternating(wanted), tmp_path, **options)
    handle = WAYS["folded shift"](model)
    with no_warning_of_ours():
        fit(Alternating(model), tmp_path, ForLightning(handle), **options)
    assert distance(effective(wanted), effective(model)) < CLOSE


def test_lightning_refuses(tmp_path: Path) -> None:
    model = gpt2(torch.float32)
    handle = WAYS["folded shift"](model)
    with pytest.raises(WeightError, match="the Module in training is not the GPT2LMHeadModel"):
        fit(Module(gpt2(torch.float32)), tmp_path, ForLightning(handle), max_steps=1)

    class HeadOnly(Module):
        def configure_optimizers(self) -> Any:
            return optim.AdamW(self.model.transformer.ln_f.parameters())

    with pytest.raises(OptimizerError, match="none of the 2 conditioned weights"):
        fit(HeadOnly(model), tmp_path, ForLightning(handle), max_steps=1)


# Accelerate, which needs no callback.


def accelerated(
    model: nn.Module,
    handle: wc.Conditioning | None,
    kind: str = "adamw",
    precision: str = "no",
    save: Path | None = None,
    load: Path | None = None,
) -> None:
    """Train for some steps; saving and loading happen in the middle."""
    accelerator = Accelerator(cpu=True, mixed_precision=precision, gradient_accumulation_steps=2)
    rate = {"lr": 1e-3, "weight_decay": 0.1} if kind == "adamw" else {"lr": 1e-2, "weight_decay": 0.1, "momentum": 0.9}
    optimizer = (optim.AdamW if kind == "adamw" else optim.SGD)(model.parameters(), **rate)
    schedule = optim.lr_scheduler.ExponentialLR(optimizer, 0.98)
    prepared, optimizer, schedule, data = accelerator.prepare(model, optimizer, schedule, loader())
    if handle is not None:
        handle.attach(optimizer)
        accelerator.register_for_checkpointing(handle)
    if load is not None:
        accelerator.load_state(str(load))
    for epoch in range(4):
        if load is not None and epoch < 2:
            continue
        if save is not None and epoch == 2:
            accelerator.save_state(str(save))
        for batch in data:
            with accelerator.accumulate(prepared):
                accelerator.backward(loss(prepared(batch["input_ids"]), batch["labels"]))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(prepared.parameters(), 0.5)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
@pytest.mark.parametrize("way", ["folded shift", "live shift"])
def test_accelerate_is_literal(way: str, kind: str) -> None:
    wanted, model = literal(gpt2(), STRENGTH), gpt2()
    accelerated(wanted, None, kind)
    with no_warning_of_ours():
        accelerated(model, WAYS[way](model), kind)
    assert distance(effective(wanted), effective(gpt2())) > 1e-3
    assert distance(effective(wanted), effective(model)) < CLOSE


def test_accelerate_in_bfloat16() -> None:
    """The master weights stay in float32, where a shift does no harm; autocast's rounding is all that differs."""
    wanted, model, forgotten = literal(gpt2(torch.float32), STRENGTH), gpt2(torch.float32), gpt2(torch.float32)
    accelerated(wanted, None, "sgd", "bf16")
    handle = WAYS["folded shift"](model)
    accelerated(model, handle, "sgd", "bf16")
    WAYS["folded shift"](forgotten)
    with pytest.warns(UserWarning, match="attach"):
        accelerated(forgotten, None, "sgd", "bf16")
    assert model.transformer.h[0].attn.c_attn.weight.dtype is torch.float32
    near, far = (distance(effective(wanted), effective(each)) for each in (model, forgotten))
    assert near < far / 20


@pytest.mark.parametrize("way", WAYS)
def test_accelerate_resumes_bit_for_bit(tmp_path: Path, way: str) -> None:
    model, resumed = gpt2(torch.float32), other()
    accelerated(model, WAYS[way](model), save=tmp_path)
    accelerated(resumed, WAYS[way](resumed), load=tmp_path)
    assert_same(resumed, model)


# The file.


@pytest.mark.parametrize("way", WAYS)
def test_state_file(tmp_path: Path, way: str) -> None:
    model, loaded = gpt2(torch.float32), other()
    handle, again = WAYS[way](model), WAYS[way](loaded)
    file = tmp_path / "state.safetensors"
    optimizer = optim.AdamW(model.parameters())
    handle.attach(optimizer)
    loss(model(rows()[0]["input_ids"][None]), rows()[0]["labels"][None]).backward()
    optimizer.step()
    save_state(handle, file)
    loaded.load_state_dict(model.state_dict())
    load_state_(again, file)
    assert_same(model, loaded)
    with safe_open(file, framework="pt") as opened:
        assert json.loads(opened.metadata()["wellcond"])["method"] == handle.method
    assert sorted(p.name for p in tmp_path.iterdir()) == ["state.safetensors"]


@pytest.mark.parametrize("way", LIVE)
def test_what_is_saved_first_is_used_later(way: str) -> None:
    """To the last bit, also where a checkpoint is written before anything is computed."""
    saved, used = gpt2(torch.float32), gpt2(torch.float32)
    for model in (saved, used):
        WAYS[way](model)
    ids = rows()[0]["input_ids"][None]
    state = {name: value.clone() for name, value in saved.state_dict().items()}
    assert torch.equal(saved(ids).logits, used(ids).logits)
    assert all(same_bits(value, used.state_dict()[name]) for name, value in state.items())


def test_state_file_holds_what_it_was_given(tmp_path: Path) -> None:
    given = {"a": {"b/c": torch.arange(3), "": torch.tensor(0.5)}, "n": [1, 0.1, None, True, "é"], "empty": {}}
    write_state(given, tmp_path / "s.safetensors")
    read = read_state(tmp_path / "s.safetensors")
    assert torch.equal(read["a"]["b/c"], torch.arange(3))
    assert (float(read["a"][""]), read["n"], read["empty"]) == (0.5, given["n"], {})


@pytest.mark.parametrize("wrong", [{"x": (1, 2)}, {1: 2}, {"x": {1}}, {"$tensor": 1}, {"a": {"b": 0, 3: 1}}])
def test_state_file_refuses_what_json_cannot_hold(tmp_path: Path, wrong: dict[Any, Any]) -> None:
    with pytest.raises(CheckpointError, match="without pickle"):
        write_state(wrong, tmp_path / "s.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_state_file_of_something_else(tmp_path: Path) -> None:
    handle = WAYS["live shift"](gpt2(torch.float32))
    wc.save_weights(gpt2(), tmp_path / "weights.safetensors")
    with pytest.raises(CheckpointError, match="not the state of a conditioning"):
        load_state_(handle, tmp_path / "weights.safetensors")
    with pytest.raises(CheckpointError, match="pickle"):
        load_state_(handle, tmp_path / "state.pt")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_state_(handle, tmp_path / "none.safetensors")
    save_state(WAYS["live polar"](gpt2(torch.float32)), tmp_path / "polar.safetensors")
    before = weights(handle.model)
    with pytest.raises(CheckpointError, match="the state has method 'polar'"):
        load_state_(handle, tmp_path / "polar.safetensors")
    assert all(same_bits(value, weights(handle.model)[name]) for name, value in before.items())


# Optional.


def test_import_of_wellcond_imports_no_framework() -> None:
    code = "import sys, wellcond; print([m for m in ('transformers', 'lightning', 'accelerate') if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


@pytest.mark.parametrize(("library", "extra"), [("transformers", "hf"), ("lightning", "lightning")])
def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, library: str, extra: str) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == library]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"wellcond.integrations.{library}")
    with pytest.raises(ImportError, match=rf"{library} cannot be imported .*pip install 'wellcond\[{extra}\]'"):
        importlib.import_module(f"wellcond.integrations.{library}")

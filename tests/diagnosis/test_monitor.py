"""`wc.Monitor`: what it writes, when, at what cost, and what a crash leaves."""

from __future__ import annotations

import json
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import wellcond as wc
from tests.preloaded import start
from wellcond.diagnosis import schedule
from wellcond.diagnosis.journal import Journal
from wellcond.diagnosis.monitor import TIERS
from wellcond.errors import AttentionWarning, WellcondError
from wellcond.lab.figures.runs import read_run


def small() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(12, 3, 16, batch_first=True, dropout=0.1)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def tokens() -> Tensor:
    return torch.randn(2, 6, 12, generator=torch.Generator().manual_seed(1))


def train(model: nn.Module, monitor: wc.Monitor | None, steps: int) -> list[dict[str, Any]]:
    torch.manual_seed(2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    records = []
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 6, 12)).square().mean().backward()
        optimizer.step()
        records += monitor.step() if monitor is not None else []
    return records


def timeless(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in r.items() if k not in ("elapsed", "seconds", "overhead")} for r in records]


def test_watching_changes_nothing_and_fixed_steps_give_equal_records() -> None:
    plain, watched, again = small(), small(), small()
    train(plain, None, 12)
    first = train(watched, wc.Monitor(watched, tokens(), every=4, alarms=False), 12)
    second = train(again, wc.Monitor(again, tokens(), every=4, alarms=False), 12)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), watched.parameters(), strict=True))
    assert [(r["step"], r["tier"]) for r in first] == [(step, tier) for step in (0, 4, 8) for tier in TIERS]
    assert timeless(first) == timeless(second)


def test_records_are_what_diagnose_measures() -> None:
    model = small()
    records = {r["tier"]: r for r in wc.Monitor(model, tokens(), every=1, heads=6, alarms=False).step()}
    found = wc.diagnose(model, tokens(), progress=False).to_dict()["layers"]
    for index, layer in enumerate(found):
        per_head = [w for w in layer["weights"] if w["head"] is not None]
        for weight, whole in zip(records["weights"]["layers"][index]["weights"], per_head, strict=True):
            assert weight["effective"]["condition"] == whole["effective"]["condition"]
            assert weight["effective"]["values"] == ()  # a monitor does not fill the disk
        seen = records["attention"]["layers"][index]
        assert [h["entropy"] for h in seen["heads"]] == [h["entropy"] for h in layer["heads"]]
        assert seen["cosine"] == layer["cosine"]
        own = records["jacobian"]["layers"][index]["jacobian"]
        assert [j["condition"] for j in own] == [j["condition"] for j in layer["jacobian"]]


def test_jacobians_go_round_all_heads() -> None:
    monitor = wc.Monitor(small(), tokens(), every=1, tiers=["jacobian"], alarms=False)
    seen = []
    for _ in range(6):
        (record,) = monitor.step()
        seen += [(layer["name"], j["head"]) for layer in record["layers"] for j in layer["jacobian"]]
    names = ["layers.0.self_attn", "layers.1.self_attn"]
    assert sorted(seen) == [(name, head) for name in names for head in range(3)]


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


def test_the_budget_holds_whatever_the_tiers_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(schedule, "time", clock)
    plan = schedule.Schedule(("a", "b"), budget=0.02)
    costs, counts = {"a": 0.003, "b": 0.5}, {"a": 0, "b": 0}
    for step in range(100_000):
        clock.now += 0.01  # a training step
        for tier in ("a", "b"):
            if plan.due(tier, step):
                with plan.paying(tier):
                    clock.now += costs[tier]
                counts[tier] += 1
    training = 100_000 * 0.01
    # each tier has half of the budget: one record per cost ÷ 0.01 seconds of training, to within a step
    assert counts["a"] == pytest.approx(training / 0.3, rel=0.05)
    assert counts["b"] == pytest.approx(training / 50, abs=1)
    spent = sum(costs[tier] * counts[tier] for tier in costs)
    assert plan.overhead == pytest.approx(spent / clock.now)
    assert plan.overhead <= 0.0205
    costs["a"] = 3.0  # a record that grows dear stretches its interval, at once
    with plan.paying("a"):
        clock.now += costs["a"]
    clock.now += 299.0
    assert not plan.due("a", 0)
    clock.now += 2.0
    assert plan.due("a", 0)


def test_a_warning_comes_once_until_its_reason_has_gone() -> None:
    model = small()
    monitor = wc.Monitor(model, tokens(), every=1, tiers=["attention"])
    weight = model.layers[1].self_attn.in_proj_weight

    def warned() -> list[tuple[int, str, tuple[int, ...], str]]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            monitor.step()
        found = [w.message for w in caught if isinstance(w.message, AttentionWarning)]
        return [(w.step, w.concern.layer, w.concern.heads, w.concern.code) for w in found]

    assert warned() == []
    with torch.no_grad():
        weight[4:8] *= 1000  # the queries of head 1
    assert warned() == [(1, "layers.1.self_attn", (1,), "entropy collapse")]
    assert warned() == []
    with torch.no_grad():
        weight[4:8] /= 1000
    assert warned() == []
    with torch.no_grad():
        weight[4:8] *= 1000
    assert warned() == [(4, "layers.1.self_attn", (1,), "entropy collapse")]


def caught_by(train: Callable[[], object]) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train()
    return [w for w in caught if isinstance(w.message, AttentionWarning)]


def collapse_all(model: nn.Module) -> None:
    """The queries of all heads of the first attention layer."""
    query = wc.attention_layers(model)[0].query
    assert query is not None
    with torch.no_grad():
        query.store_(1e6 * query.read())


def test_one_warning_for_a_layer_and_kind_at_the_line_that_trains() -> None:
    model = small()
    collapse_all(model)
    monitor = wc.Monitor(model, tokens(), every=1, tiers=["attention"])

    def step() -> None:
        monitor.step()

    (warning,) = caught_by(step)
    assert warning.message.concern.heads == (0, 1, 2)
    assert (warning.filename, warning.lineno) == (__file__, step.__code__.co_firstlineno + 1)
    assert "heads 0, 1, 2: entropy collapse" in str(warning.message)
    assert str(warning.message).endswith('layers="layers.0.self_attn")')


def test_a_note_is_no_warning() -> None:
    model = small()
    with torch.no_grad():
        for layer in model.layers:
            layer.self_attn.in_proj_weight[:24] *= 1e-3
    monitor = wc.Monitor(model, tokens(), every=1, tiers=["attention"])
    assert caught_by(monitor.step) == []
    (record,) = monitor.step()
    assert {concern["code"] for layer in record["layers"] for concern in layer["concerns"]} == {"uniform"}


def test_averages_go_to_a_function_or_a_tracker(capsys: pytest.CaptureFixture[str]) -> None:
    class Tracker:
        def __init__(self) -> None:
            self.seen: list[tuple[dict[str, float], int]] = []

        def log(self, values: dict[str, float], step: int) -> None:
            self.seen.append((values, step))

    tracker = Tracker()
    wc.Monitor(small(), tokens(), every=1, log=tracker, alarms=False).step(7)
    assert [step for _, step in tracker.seen] == [7, 7, 7]
    names = {name for values, _ in tracker.seen for name in values}
    assert {"wellcond/kappa_query", "wellcond/entropy", "wellcond/kappa_jacobian", "wellcond/bound"} <= names
    assert {"wellcond/kappa_equilibrated", "wellcond/norm_jacobian_query", "wellcond/norm_jacobian_value"} <= names
    found = wc.Monitor(small(), tokens(), every=1, log=print, alarms=False).step(7)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines] == [["step", "7", tier] for tier in TIERS]
    entropies = [h["entropy"] for layer in found[1]["layers"] for h in layer["heads"]]
    assert dict(tracker.seen[1][0])["wellcond/entropy"] == pytest.approx(sum(entropies) / len(entropies))


def test_an_accelerators_tracker_gets_them(tmp_path: Path) -> None:
    from accelerate import Accelerator
    from accelerate.tracking import GeneralTracker

    class Memory(GeneralTracker):
        name, requires_logging_directory, main_process_only = "memory", False, True

        def __init__(self) -> None:
            super().__init__()
            self.seen: list[tuple[dict[str, float], int | None]] = []

        @property
        def tracker(self) -> Any:
            return self.seen

        def store_init_configuration(self, values: Any) -> None: ...

        def log(self, values: dict[str, float], step: int | None = None, **rest: Any) -> None:
            self.seen.append((values, step))

    memory = Memory()
    accelerator = Accelerator(log_with=memory, cpu=True)
    accelerator.init_trackers("run")
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    monitor = wc.Monitor(model, tokens(), every=2, log=accelerator, alarms=False)
    for step in range(3):
        accelerator.backward(model(tokens()).square().mean())
        optimizer.step()
        monitor.step(step)
    assert [step for _, step in memory.seen] == [0, 0, 0, 2, 2, 2]


RUN = """
import sys, torch, wellcond as wc
sys.path.insert(0, {root!r})
from tests.diagnosis.test_monitor import small, tokens
model = small()
monitor = wc.Monitor(model, tokens(), every=1, folder={folder!r}, label="killed", seed=3, alarms=False)
print("started", flush=True)
while True:
    monitor.step()
"""


def test_a_killed_process_loses_at_most_a_line(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    code = RUN.format(root=str(Path(__file__).parents[2]), folder=str(folder))
    process = start(code, cwd=tmp_path)
    file = folder / "metrics.jsonl"
    while not file.exists() or file.stat().st_size < 20_000:
        assert process.alive()
        time.sleep(0.01)
    process.kill()
    ended = process.wait()
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout == "started\n"
    whole = file.read_bytes().count(b"\n")
    assert whole >= 3
    with file.open("ab") as broken:  # as if it had been killed in the middle of a line
        broken.write(b'{"schema": 1, "step": 99, "tier": "wei')
    assert read_run(folder).label == "killed"
    with wc.Monitor(small(), tokens(), every=1, folder=folder, label="other", alarms=False) as monitor:
        monitor.step(1000)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(lines) == whole + 3
    assert lines[-1]["step"] == 1000
    assert json.loads((folder / "run.json").read_text())["label"] == "killed"


@pytest.mark.parametrize("left", [b"", b"{", b'{"a": 1}\n', b'{"a": 1}\n{"b', b'{"a": 1}\n' + b"x" * 200_000])
def test_what_is_left_of_a_line_is_cut_off(tmp_path: Path, left: bytes) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(left)
    with Journal(tmp_path, {}) as journal:
        journal.write({"c": float("nan")})
    kept = left[: left.rfind(b"\n") + 1]
    assert (tmp_path / "metrics.jsonl").read_bytes() == kept + b'{"c": "nan"}\n'


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 10, "budget": 0.1}, "either budget= or every="),
        ({"every": 0}, "at least 1"),
        ({"budget": 1.5}, "above 0 and below 1"),
        ({"tiers": ["weights", "colours"]}, "colours"),
        ({"tiers": []}, "some of"),
        ({"layers": "none.*"}, "no attention layer matches"),
        ({"folder": "/proc/nowhere"}, "cannot be written to"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(WellcondError, match=message):
        wc.Monitor(small(), tokens(), **options)


def test_the_trainer_of_transformers_counts_its_own_steps(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    from wellcond.integrations.transformers import MonitorTrainerCallback

    sizes = {"n_layer": 2, "n_embd": 12, "n_head": 3, "vocab_size": 17, "n_positions": 8}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    ids = torch.randint(17, (16, 8), generator=torch.Generator().manual_seed(0))
    data = [{"input_ids": row, "labels": row} for row in ids]
    monitor = wc.Monitor(model, {"input_ids": ids[:2]}, every=3, folder=tmp_path / "run", alarms=False)
    options: dict[str, Any] = {"max_steps": 7, "report_to": "none", "disable_tqdm": True, "use_cpu": True}
    arguments = TrainingArguments(
        str(tmp_path / "out"),
        gradient_accumulation_steps=2,
        per_device_train_batch_size=2,
        save_strategy="no",
        **options,
    )
    trainer = Trainer(model, arguments, train_dataset=data, callbacks=[MonitorTrainerCallback(monitor)])
    monitor.alarms = True
    collapse_all(model)

    def train() -> None:
        trainer.train()

    warned = caught_by(train)
    assert warned
    assert {(w.filename, w.lineno) for w in warned} == {(__file__, train.__code__.co_firstlineno + 1)}
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [3, 3, 3, 6, 6, 6]


def test_lightnings_loggers_get_the_averages(tmp_path: Path) -> None:
    import lightning.pytorch as pl
    from lightning.pytorch.loggers import CSVLogger

    from wellcond.integrations.lightning import MonitorCallback

    class Fit(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = small()

        def training_step(self, batch: Tensor, index: int) -> Tensor:
            return self.net(batch).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    module = Fit()
    monitor = wc.Monitor(module.net, tokens(), every=2, alarms=False)
    logger = CSVLogger(str(tmp_path))
    trainer = pl.Trainer(
        max_steps=4,
        accumulate_grad_batches=2,
        accelerator="cpu",
        logger=logger,
        callbacks=[MonitorCallback(monitor)],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    monitor.alarms = True
    collapse_all(module.net)

    def fit() -> None:
        trainer.fit(module, torch.utils.data.DataLoader(torch.randn(16, 6, 12), batch_size=2))

    warned = caught_by(fit)
    assert warned
    assert {(w.filename, w.lineno) for w in warned} == {(__file__, fit.__code__.co_firstlineno + 1)}
    logger.save()
    text = (Path(logger.log_dir) / "metrics.csv").read_text()
    assert "wellcond/entropy" in text.splitlines()[0]
    assert monitor.steps == 4

"""The recipes of the two papers: they parse, carry the published numbers, fit their models, and cover everything."""

from __future__ import annotations

import copy
import math
import tomllib
from collections import Counter
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import wellcond as wc
from wellcond.errors import WellcondError
from wellcond.lab.models import lab_model
from wellcond.lab.recipe.arms import arms_of, check_arms
from wellcond.lab.recipe.recipe import Recipe, load_recipe, parse_recipe, recipe_toml, shipped, with_steps
from wellcond.lab.recipe.settings import Named
from wellcond.lab.recipe.stages import stages_of
from wellcond.lab.tasks.base import Task
from wellcond.lab.tasks.registry import options_of
from wellcond.reproduce.cost import PEAK_SPEEDS
from wellcond.reproduce.published_recipe import PublishedRecipe, PublishedRow, load_published, published_names

NAMES = published_names()
IMAGENET, CI, SC = 1_281_167, ("default", "mimetic", "conditioned"), ("default", "shift")
TRAIN_EXAMPLES = {
    "imagenet": IMAGENET, "pets": 3680, "flowers": 2040, "cifar10": 50_000, "cifar100": 50_000, "food101": 75_750,
    "coco": 117_266, "listops": 96_000, "lra-text": 25_000, "lra-retrieval": 147_086, "lra-image": 45_000,
    "pathfinder": 160_000,
}  # fmt: skip
CLASSES = {"imagenet": 1000, "pets": 37, "flowers": 102, "cifar10": 10, "cifar100": 100, "food101": 101}
VOCABULARY = {"openai-community/gpt2": 50_257, "JonasGeiping/crammed-bert": 32_768}
LRA_SHAPES = {"listops": (2000, 16, 10), "lra-text": (4000, 257, 2), "lra-retrieval": (4000, 257, 2),
              "lra-image": (1024, 256, 10), "pathfinder": (1024, 256, 2)}  # fmt: skip
GLUE = ("mnli", "sst2", "stsb", "rte", "qnli", "qqp", "mrpc", "cola")
VISION = ("vit-b", "deit-b", "swin-b", "xcit-m", "davit-b")
LRA = ("listops", "text", "retrieval", "image", "pathfinder")


def numbers(text: str) -> list[float]:
    return [float(word) for word in text.split()]


# Typed from the papers a second time, table by table: a line for each row there, in the order of its columns.
CI_TABLES = {
    "1": ["80.3 81.6 83.4 82.6 84.3", "80.5 81.6 83.5 82.6 84.4", "81.5 82.7 84.6 83.5 85.3"],
    "2": ["26.7 64.5 92.4 71.7", "47.7 71.6 93.6 75.0", "47.7 72.1 94.1 75.3"],
    "3": ["44.9 66.1 48.9 40.1 63.1 42.8", "44.8 66.0 49.1 40.2 63.1 42.9", "45.5 66.8 49.5 40.6 63.5 43.3"],
    "4": ["37.1 63.8 79.8 39.9 72.9", "37.1 64.0 79.9 40.2 73.2", "37.9 64.9 80.8 40.4 73.9"],
    "5": ["83.8 92.3 86.3 55.1 90.1 87.3 85.0 48.9 78.6", "84.1 92.5 86.5 55.1 90.3 87.5 85.1 50.1 78.9",
          "84.8 92.9 86.9 55.5 91.1 87.7 86.0 51.7 79.6"],
    "6": ["85.5 96.6 79.7", "86.4 96.3 79.9", "87.3 97.1 81.0", "87.1 97.1 81.1"],
    "7": ["2.47", "2.40", "2.29"], "8": ["2.39", "2.32", "2.20"], "9": ["44.2", "43.8", "42.7"],
    "10": ["4.15", "4.25", "4.03"], "11": ["48.1", "48.5", "46.9"],
    "12": ["79.6 80.7 82.6 81.5 83.3", "79.7 80.6 82.4 81.5 83.2", "80.7 81.5 83.7 82.4 84.4"],
    "13": ["78.8 81.9", "78.6 82.0", "79.9 82.9"],
}  # fmt: skip
SC_TABLES = {
    "1": ["80.7 81.6 83.4 82.6 84.3", "81.7 82.6 84.1 83.5 84.9"],
    "2": ["44.9 66.1 48.9 40.1 63.1 42.8", "45.6 66.7 49.6 40.5 63.4 43.3"],
    "3": ["37.1 63.8 79.8 39.9 72.9", "37.8 64.8 80.6 40.2 73.7"],
    "4": ["83.8 92.3 86.3 55.1 90.1 87.3 85.0 48.9 78.6", "84.3 92.7 86.6 55.5 91.0 87.5 86.1 51.7 79.4"],
    "5": ["80.8 81.1 81.4 81.6 81.7 81.7 81.6 81.5"],
    "6": ["80.7 81.6 83.4 82.6 84.3", "81.7 82.6 84.1 83.5 84.9", "79.8 80.4 80.5 80.0 80.3"],
    "7": ["80.7 81.6 83.4 82.6 84.3", "82.0 82.9 84.3 83.9 85.2", "81.7 82.6 84.1 83.5 84.9"],
    "10": ["45.9 67.1 50.1 41.1 63.7 43.8", "46.8 68.1 50.7 41.8 64.2 44.6"],
    "11": ["63.7 64.1 64.3 64.6 64.8 64.8 64.7 64.7"],
    "12": ["63.8", "64.8", "62.3"],
}
TIMES = ["29:29 26:16 53:12 91:03 75:09", "41:38 37:54 68:32 109:12 93:12", "29:33 26:24 53:26 91:18 75:28"]
SPREADS = {
    "1": [".41 .30 .28 .39 .26", ".38 .32 .25 .35 .21"],
    "2": [".33 .31 .35 .29 .31 .34", ".31 .36 .32 .33 .28 .32"],
    "3": [".21 .24 .26 .20 .25", ".23 .20 .27 .22 .23"],
    "4": [".21 .18 .21 .20 .23 .15 .25 .26", ".20 .19 .22 .24 .22 .23 .23 .24"],
    "6": [".41 .30 .28 .39 .26", ".38 .32 .25 .35 .21", ".31 .33 .23 .35 .21"],
    "12": [".24", ".20", ".23"],
}
SIX = ("ap", "ap50", "ap75", "mask_ap", "mask_ap50", "mask_ap75")
BERTS = [(f"{paper}-crammed-bert{depth}-glue") for paper in ("ci", "sc") for depth in ("", "-12")]


def by_column(table: list[str], arms: tuple[str, ...], entries: list[str]) -> dict[str, dict[str, float]]:
    """A table with a model or a set in each column, as values by entry."""
    rows = [numbers(line) for line in table]
    return {entry: {s: row[i] for s, row in zip(arms, rows, strict=True)} for i, entry in enumerate(entries)}


def by_row(table: list[str], arms: tuple[str, ...], metrics: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """A table with a metric in each column, as values by arm."""
    return {s: dict(zip(metrics, numbers(line), strict=True)) for s, line in zip(arms, table, strict=True)}


def expected() -> dict[tuple[str, str], list[Any]]:
    """Values by entry and table, a list as long as the entry has rows for it."""
    found: dict[tuple[str, str], list[Any]] = {}

    def put(table: str, entries: dict[str, Any]) -> None:
        for entry, values in entries.items():
            found.setdefault((entry, table), []).append(values)

    t = CI_TABLES
    ones = by_column(t["1"], CI, [f"ci-{m}-imagenet" for m in VISION])
    put("ci-table1", ones | {"ci-deit-b-imagenet-qk-norm": ones["ci-deit-b-imagenet"]})
    put("ci-table2", by_column(t["2"], CI, [f"ci-vit-t-{d}" for d in ("pets", "flowers", "cifar10", "cifar100")]))
    put("ci-table3", dict.fromkeys(("ci-xcit-s-coco", "ci-xcit-s-coco-matterport"), by_row(t["3"], CI, SIX)))
    put("ci-table4", by_column(t["4"], CI, [f"ci-nystromformer-{d}" for d in LRA]))
    put("ci-table5", dict.fromkeys(BERTS[:2], by_row(t["5"], CI, (*GLUE, "average"))))
    small = ("food101", "cifar10", "cifar100")
    put("ci-table6", {"ci-vit-t-selected": by_row(t["6"][:3], CI, small)})
    put("ci-table6", {"ci-vit-t-selected": by_row(t["6"][3:], ("imagenet-21k",), small)})
    put("ci-table7", by_column(t["7"], CI, ["ci-gpt2-tinystories"]))
    sizes = {"8": ("472m", "tinystories"), "9": ("472m", "wikitext103"), "10": ("1720m", "tinystories"),
             "11": ("1720m", "wikitext103")}  # fmt: skip
    for table, (size, data) in sizes.items():
        for reading in "ab":
            put(f"ci-table{table}", by_column(t[table], CI, [f"ci-gpt2-{size}-{reading}-{data}"]))
    large = by_column(t["12"], CI, [f"ci-{m}-imagenet" for m in ("vit-l", "deit-l", "swin-l", "xcit-l", "davit-l")])
    put("ci-table12", large | {"ci-deit-l-imagenet-vit": large["ci-deit-l-imagenet"]})
    put("ci-table13", by_column(t["13"], CI, ["ci-vit-g-imagenet", "ci-davit-g-imagenet"]))

    t, plain = SC_TABLES, [f"sc-{m}-imagenet" for m in VISION]
    put("sc-table1", by_column(t["1"], SC, plain))
    put("sc-table2", dict.fromkeys(("sc-xcit-s-coco", "sc-xcit-s-coco-matterport"), by_row(t["2"], SC, SIX)))
    put("sc-table3", by_column(t["3"], SC, [f"sc-nystromformer-{d}" for d in LRA]))
    put("sc-table4", dict.fromkeys(BERTS[2:], by_row(t["4"], SC, (*GLUE, "average"))))
    swept = tuple(f"shift {strength}" for strength in range(2, 17, 2))
    put("sc-table5", {"sc-vit-b-imagenet-lambda": dict(zip(swept, numbers(t["5"][0]), strict=True))})
    put("sc-table6", by_column(t["6"][:2], SC, plain))
    put("sc-table6", by_column(t["6"][2:], ("shift",), [f"{name}-no-layernorm" for name in plain]))
    both = ("default", "polar", "shift")
    put("sc-table7", by_column(t["7"], both, [f"{name}-svd" for name in plain]))
    for i, name in enumerate(plain):
        clock = [line.split()[i].split(":") for line in TIMES]
        minutes = [{"minutes": 60 * int(hours) + int(rest)} for hours, rest in clock]
        put("sc-table7", {f"{name}-svd": dict(zip(both, minutes, strict=True))})
    put("sc-table10", dict.fromkeys(("sc-swin-b-coco", "sc-swin-b-coco-matterport"), by_row(t["10"], SC, SIX)))
    put("sc-table11", {"sc-nystromformer-text-lambda": dict(zip(swept, numbers(t["11"][0]), strict=True))})
    put("sc-table12", by_column(t["12"][:2], SC, ["sc-nystromformer-text"]))
    put("sc-table12", by_column(t["12"][2:], ("shift",), ["sc-nystromformer-text-no-layernorm"]))
    return found


def expected_spreads() -> dict[tuple[str, str], Any]:
    plain = [f"sc-{m}-imagenet" for m in VISION]
    found: dict[tuple[str, str], Any] = {(e, "sc-table1"): v for e, v in by_column(SPREADS["1"], SC, plain).items()}
    found |= {(e, "sc-table6"): v for e, v in by_column(SPREADS["6"][:2], SC, plain).items()}
    bare = [f"{name}-no-layernorm" for name in plain]
    found |= {(e, "sc-table6"): v for e, v in by_column(SPREADS["6"][2:], ("shift",), bare).items()}
    for entry in ("sc-xcit-s-coco", "sc-xcit-s-coco-matterport"):
        found[entry, "sc-table2"] = by_row(SPREADS["2"], SC, SIX)
    lra = [f"sc-nystromformer-{d}" for d in LRA]
    found |= {(e, "sc-table3"): v for e, v in by_column(SPREADS["3"], SC, lra).items()}
    found |= {(e, "sc-table4"): by_row(SPREADS["4"], SC, GLUE) for e in BERTS[2:]}
    text = "sc-nystromformer-text"
    found[text, "sc-table12"] = by_column(SPREADS["12"][:2], SC, [text])[text]
    found[f"{text}-no-layernorm", "sc-table12"] = {"shift": 0.23}
    return found


def rows() -> list[tuple[PublishedRecipe, PublishedRow]]:
    return [(entry, row) for entry in map(load_published, NAMES) for row in entry.published.rows]


def catalogue() -> dict[str, dict[str, Any]]:
    text = (resources.files("wellcond.reproduce") / "catalogue.toml").read_text()
    items = tomllib.loads(text)["item"]
    assert len({item["id"] for item in items}) == len(items)
    return {item["id"]: item for item in items}


def stand_in(named: Named) -> Task:
    """A task without data, of the shape that the real data would give it."""
    given, name = named.options, named.name
    words = VOCABULARY.get(given.get("tokenizer", ""), 0)
    kind, metric = "sequence", "accuracy"
    if name in CLASSES:
        kind, size = "image", given.get("size", 32 if name.startswith("cifar") else 224)
        shape = {"channels": 3, "size": size, "classes": CLASSES[name]}
    elif name == "coco":
        kind, metric, shape = "detection", "ap", {"channels": 3, "size": 0, "classes": 91}
    elif name == "glue":
        classes = {"mnli": 3, "stsb": 1}.get(given["subset"], 2)
        shape = {"tokens": given.get("tokens", 128), "vocabulary": words, "classes": classes}
    elif name in LRA_SHAPES:
        tokens, vocabulary, classes = LRA_SHAPES[name]
        kind = "pair" if name == "lra-retrieval" else "sequence"
        side = given.get("size") if name == "pathfinder" else None
        tokens = 128 if given.get("size") == "tiny" else side * side if side else given.get("tokens", tokens)
        shape = {"tokens": tokens, "vocabulary": vocabulary, "classes": classes}
    else:
        lengths = {"tinystories": 512, "wikitext103": 1024, "pile": 128}
        kind, metric = "masked-text" if name == "pile" else "causal-text", "perplexity"
        shape = {"tokens": given.get("length", lengths[name]), "vocabulary": words}
    return Task(name, kind, shape, (), (), metric, "stand-in")


def built(recipe: Recipe, device: str = "meta") -> nn.Module:
    with torch.device(device):
        return lab_model(recipe.model.name, recipe.model.options, stand_in(recipe.task), seed=0)


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def stages(recipe: Recipe) -> list[Recipe]:
    return [stage for stage, _ in stages_of(recipe, Path("runs"))]


@pytest.mark.parametrize("name", NAMES)
def test_an_entry_is_a_recipe_with_a_source_a_status_and_options_that_its_tasks_have(name: str) -> None:
    entry = load_published(name)
    assert entry.published.status in ("partly", "chosen", "confirmed")
    assert all(row.source.startswith(("Table", "Figure", "Appendix", "Remark")) for row in entry.published.rows)
    assert {row.where[:2] for row in entry.published.rows} == {name[:2]}
    assert entry.recipe.title
    assert entry.published.gpu in PEAK_SPEEDS
    for key in entry.published.unconfirmed:
        assert key.split(".")[0] in Recipe.model_fields, key
    for stage in stages(entry.recipe):
        known = options_of(stage.task.name)
        assert set(stage.task.options) <= set(known), stage.task
        assert not Path(stage.task.options["folder"]).is_absolute()
        assert parse_recipe(recipe_toml(stage), name) == stage  # no clipping, too, is kept in a run's folder


def test_the_numbers_are_those_of_the_papers() -> None:
    found: dict[tuple[str, str], list[Any]] = {}
    for entry, row in rows():
        if "table" in row.where:
            found.setdefault((entry.name, row.where), []).append(row.values)
    assert found == expected()


def test_the_spreads_are_those_of_the_papers() -> None:
    assert {(entry.name, row.where): row.spread for entry, row in rows() if row.spread} == expected_spreads()


def test_each_table_has_as_many_entries_as_it_has_models_sets_and_readings() -> None:
    counted = Counter(row.where for _, row in rows() if "table" in row.where)
    ci = {1: 6, 2: 4, 3: 2, 4: 5, 5: 2, 6: 2, 7: 1, 8: 2, 9: 2, 10: 2, 11: 2, 12: 6, 13: 2}
    sc = {1: 5, 2: 2, 3: 5, 4: 2, 5: 1, 6: 10, 7: 10, 10: 2, 11: 1, 12: 2}
    wanted = {f"ci-table{n}": k for n, k in ci.items()} | {f"sc-table{n}": k for n, k in sc.items()}
    assert counted == wanted


def test_values_are_by_the_arms_of_the_recipe() -> None:
    for entry, row in rows():
        names = [arm.name for arm in arms_of(entry.recipe)]
        outside = set(row.values) - set(names)
        assert outside <= ({"imagenet-21k"} if entry.name == "ci-vit-t-selected" else set()), entry.name
        assert set(row.spread) <= set(row.values)
        assert row.scale == (1.0 if entry.recipe.model.name == "hf:gpt2" or "time" in row.label else 100.0)


def test_averages_of_glue_are_means_of_its_eight_columns() -> None:
    seen = 0
    for name in BERTS:
        for row in load_published(name).published.rows:
            for values in row.values.values():
                assert isinstance(values, dict)
                mean = sum(values[task] for task in GLUE) / 8
                assert abs(mean - values["average"]) <= 0.05 + 1e-9, (name, mean)
                seen += 1
    assert seen == 2 * 3 + 2 * 2


def test_strengths_are_swept_in_eight_steps() -> None:
    for name in ("sc-vit-b-imagenet-lambda", "sc-nystromformer-text-lambda"):
        entry = load_published(name)
        assert entry.recipe.arms["shift"].strength == tuple(map(float, range(2, 17, 2)))
        assert len(entry.published.rows[0].values) == 8


def test_detectors_have_six_numbers_in_each_row() -> None:
    for name in NAMES:
        if "coco" in name:
            for values in load_published(name).published.rows[0].values.values():
                assert isinstance(values, dict)
                assert tuple(values) == SIX


def test_stages_of_a_pretrained_model_are_those_that_its_values_name() -> None:
    for name in (*BERTS, "ci-vit-t-selected"):
        entry = load_published(name)
        first = entry.published.rows[0].values["default"]
        assert isinstance(first, dict)
        after = [stage.name for stage in entry.recipe.stages if stage.after == "pretrain"]
        assert after == [key for key in first if key != "average"]


def test_the_catalogue_has_every_table_and_figure_and_the_recipes_reach_all_that_are_trained() -> None:
    items = catalogue()
    wanted = [f"ci-table{n}" for n in range(1, 14)] + [f"ci-figure{n}" for n in range(1, 8)] + ["ci-appendix2"]
    wanted += [f"sc-table{n}" for n in range(1, 13)] + [f"sc-figure{n}" for n in range(1, 22)]
    assert list(items) == wanted
    assert sum("table" in id for id in items) == 25
    reached = {row.where for _, row in rows()}
    assert {id for id, item in items.items() if item["kind"] not in ("analytic", "diagram")} == reached
    assert {id for id, item in items.items() if item["kind"] == "analytic"} == {"sc-table8", "sc-table9"}
    kinds = {"accuracy", "perplexity", "precision", "ablation", "time", "analytic", "curves", "epochs", "diagram"}
    for id, item in items.items():
        assert set(item) - {"note", "small_versions"} == {"id", "title", "kind", "needs"}, id
        assert item["kind"] in kinds
        assert set(item.get("small_versions", ())) <= set(shipped()), id


# Epochs (or updates) in all and of the warm-up, its first learning rate, the peak and the last, as the sources say.
PLANS = {
    "vit-b": (300, 30, 1e-4, 3e-3, 0), "deit-b": (300, 5, 1e-6, 1e-3, 1e-5), "swin-b": (300, 20, 1e-6, 1e-3, 1e-5),
    "xcit-m": (400, 5, 1e-6, 1e-3, 1e-5), "davit-b": (300, 5, 1e-6, 1e-3, 1e-5),
    "cifar100": (300, 50, 0, 2e-3, 1e-6), "pets": (600, 100, 0, 2e-3, 1e-6),
    "listops": (5000, 1000, 4e-6, 1e-4, 4e-10), "text": (20_000, 8000, 4e-6, 1e-4, 4e-10),
    "retrieval": (30_000, 800, 4e-6, 1e-4, 4e-10), "image": (35_000, 175, 4e-6, 1e-4, 4e-10),
    "pathfinder": (62_400, 312, 4e-6, 1e-4, 4e-10),
}  # fmt: skip


@pytest.mark.parametrize("key", PLANS)
def test_schedules_are_as_long_and_warm_up_as_long_as_the_sources_say(key: str) -> None:
    total, rising, first, peak, last = PLANS[key]
    named = [name for name in NAMES if f"-{key}-imagenet" in name or name.endswith(f"-{key}")]
    assert named
    for name in named:
        recipe = load_published(name).recipe
        train = with_steps(recipe, TRAIN_EXAMPLES[recipe.task.name]).train
        unit = 1.0 if recipe.train.epochs is None else TRAIN_EXAMPLES[recipe.task.name] / train.batch
        assert train.steps == round(total * unit)
        assert abs(round(train.warmup * train.steps) - rising * unit) <= 1
        assert (train.first_lr, train.lr, train.final_lr) == (first, peak, last)


def test_detectors_follow_the_threefold_schedule_or_matterports() -> None:
    for name in NAMES:
        if "coco" not in name:
            continue
        pretrain, fine = (
            with_steps(stage, TRAIN_EXAMPLES[stage.task.name]) for stage in stages(load_published(name).recipe)
        )
        assert pretrain.train.schedule == "cosine"
        assert pretrain.train.optimizer == "adamw"
        assert pretrain.train.weight_decay == 0.05
        assert pretrain.train.lr == 1e-3
        assert pretrain.train.clip == (5.0 if "swin" in name else math.inf)
        assert pretrain.train.precision == "fp16"
        assert pretrain.train.steps == round((300 if "swin" in name else 400) * IMAGENET / pretrain.train.batch)
        drops = [round(part * fine.train.steps) for part in fine.train.milestones]
        if name.endswith("matterport"):
            assert fine.train.optimizer == "sgd"
            assert (fine.train.steps, drops) == (160_000, [120_000])
        else:
            epoch = TRAIN_EXAMPLES["coco"] / 16
            assert abs(round(fine.train.warmup * fine.train.steps) - 500) <= 1
            assert [round(drop / epoch, 2) for drop in drops] == [27, 33]


def test_what_is_fine_tuned_on_glue_keeps_nothing_of_the_pretraining_but_its_betas() -> None:
    for name in BERTS:
        pretrain, *fine = stages(load_published(name).recipe)
        assert (pretrain.train.steps, pretrain.train.epochs, pretrain.train.batch) == (9000, None, 8192)
        assert (pretrain.train.clip, pretrain.train.eps, pretrain.train.warmup) == (0.5, 1e-12, 0.75)
        assert "dropout" not in pretrain.model.options
        for stage in fine:
            train = stage.train
            assert (train.epochs, train.batch, train.lr, train.weight_decay) == (5, 16, 4e-5, 0)
            assert (train.schedule, train.warmup, train.eps, train.clip) == ("cosine", 0.1, 1e-6, math.inf)
            assert (train.betas, train.accumulate, stage.model.options["dropout"]) == ((0.9, 0.98), 1, 0.1)


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_can_be_shared_by_the_gpus_repeated_and_mixed(name: str) -> None:
    entry = load_published(name)
    for stage in stages(entry.recipe):
        parts = entry.published.gpus * stage.train.accumulate
        assert stage.train.batch % parts == 0
        if stage.augment is not None:
            assert stage.train.batch % math.lcm(stage.augment.repeats, 2 * parts) == 0


def test_curves_of_the_spectrum_have_some_twenty_points_and_what_has_none_is_not_watched() -> None:
    curves = {"ci-figure1", "ci-figure3", *(f"sc-figure{n}" for n in range(2, 22))}
    for name in NAMES:
        entry = load_published(name)
        wanted = [row for row in entry.published.rows if row.where in curves and "epochs" not in row.label]
        assert (entry.recipe.monitor is not None) == bool(wanted), name
        if entry.recipe.monitor is not None:
            steps = with_steps(entry.recipe, TRAIN_EXAMPLES[entry.recipe.task.name]).train.steps
            assert 18 <= steps / entry.recipe.monitor.every <= 22


@pytest.mark.parametrize("name", NAMES)
def test_a_smoke_run_is_the_same_recipe_with_a_small_model_and_few_updates(name: str) -> None:
    full = load_published(name)
    small = load_published(name, full.published.smoke)
    assert list(small.recipe.arms) == list(full.recipe.arms)
    assert [stage.name for stage in small.recipe.stages] == [stage.name for stage in full.recipe.stages]
    for stage, whole in zip(stages(small.recipe), stages(full.recipe), strict=True):
        assert stage.task.name == whole.task.name
        assert stage.model.name == whole.model.name
        largest = 1000  # no set of fake data is larger
        assert with_steps(stage, largest).train.steps <= 3
        assert stage.train.batch <= 6
        if stage.augment is not None:
            assert stage.train.batch % math.lcm(2 * stage.train.accumulate, stage.augment.repeats) == 0
        assert count(built(stage)) < 2_000_000


SMALL = ["ci-vit-b-imagenet", "sc-swin-b-imagenet-svd", "ci-xcit-m-imagenet", "sc-davit-b-imagenet-no-layernorm",
         "sc-nystromformer-text-lambda", "ci-crammed-bert-glue", "ci-gpt2-tinystories"]  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in SMALL else pytest.mark.long) for n in NAMES])
def test_every_scheme_applies_to_the_small_model(name: str) -> None:
    small = load_published(name, load_published(name).published.smoke)
    for stage in stages(small.recipe)[:2]:
        check_arms(stage, built(stage, "cpu"), stand_in(stage.task))


MILLIONS = {
    "vit-b": 86.57, "deit-b": 86.57, "swin-b": 87.77, "xcit-m": 84.40, "davit-b": 87.95, "vit-l": 304.33,
    "deit-l": 304.37, "swin-l": 196.53, "xcit-l": 189.10, "davit-l": 196.81, "vit-g": 1012.6, "davit-g": 1406.47,
}  # fmt: skip
LANGUAGE = {"gpt2": 124.44, "gpt2-472m-a": 472.93, "gpt2-472m-b": 537.90, "gpt2-1720m-a": 1716.49,
            "gpt2-1720m-b": 1803.54, "crammed-bert": 119.6}  # fmt: skip


def test_sizes_agree_with_those_that_the_authors_or_their_libraries_state() -> None:
    for short, millions in MILLIONS.items():
        assert load_published(f"ci-{short}-imagenet").published.parameters / 1e6 == pytest.approx(millions, abs=0.05)
    for short, millions in LANGUAGE.items():
        name = f"ci-{short}-{'glue' if short == 'crammed-bert' else 'tinystories'}"
        assert load_published(name).published.parameters / 1e6 == pytest.approx(millions, abs=0.05)
    # In the authors' code the vocabularies are larger than what is in them: 32 for ListOps, 512 elsewhere.
    theirs = {"listops": (209_942, 32), "text": (370_702, 512), "retrieval": (395_278, 512), "image": (175_126, 512),
              "pathfinder": (174_094, 512)}  # fmt: skip
    for short, (parameters, vocabulary) in theirs.items():
        entry = load_published(f"sc-nystromformer-{short}")
        unused = vocabulary - LRA_SHAPES[entry.recipe.task.name][1]
        assert entry.published.parameters == parameters - 64 * unused
    # A LayerNorm has a weight and a bias of the width, and a ViT-B two of them in each of 12 blocks.
    bare = load_published("sc-vit-b-imagenet-no-layernorm").published.parameters
    assert load_published("sc-vit-b-imagenet").published.parameters - bare == 12 * 2 * 2 * 768
    normed = load_published("ci-deit-b-imagenet-qk-norm").published.parameters
    assert normed - load_published("ci-deit-b-imagenet").published.parameters == 12 * 2 * 2 * 64


TEN = ["ci-vit-b-imagenet", "ci-deit-b-imagenet-qk-norm", "ci-vit-t-pets", "sc-xcit-m-imagenet", "sc-swin-b-coco",
       "sc-davit-b-imagenet-no-layernorm", "ci-nystromformer-retrieval", "sc-crammed-bert-12-glue",
       "ci-gpt2-1720m-a-wikitext103", "sc-nystromformer-text-no-layernorm"]  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in TEN else pytest.mark.long) for n in NAMES])
def test_the_full_model_has_the_parameters_that_are_stated(name: str) -> None:
    entry = load_published(name)
    assert count(built(entry.recipe)) == entry.published.parameters


@pytest.mark.parametrize("name", ["ci-xcit-s-coco", "sc-swin-b-coco"])
def test_the_detector_takes_all_of_the_pretrained_model_but_what_makes_a_class(name: str) -> None:
    pretrain, fine = stages(load_published(name).recipe)
    assert fine.weights is not None
    own, given = built(fine).state_dict(), built(pretrain).state_dict()
    left = {
        key
        for key, tensor in given.items()
        if own.get(f"{fine.weights.under}.{key}", torch.empty(0)).shape != tensor.shape
    }
    assert {key.split(".")[0] for key in left} == {"norm", "head"} | (
        {"cls_token", "cls_attn_blocks"} if "xcit" in name else set()
    )
    body = {key for key in own if key.startswith(f"{fine.weights.under}.")}
    assert len(body) == len(given) - len(left)


def test_a_recipe_can_take_the_layer_norms_of_the_blocks_away() -> None:
    task = stand_in(Named(name="cifar10"))
    options = {"width": 16, "depth": 2, "heads": 2, "patch": 8}
    whole, bare = (lab_model("vit", options | more, task, seed=0) for more in ({}, {"without_layernorm": True}))
    wc.without_layernorm(whole)
    assert count(bare) == count(lab_model("vit", options, task, seed=0)) - 2 * 2 * 2 * 16
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(bare(images), whole(images))
    kept = lab_model("vit", options | {"without_layernorm": False}, task, seed=0)
    assert not torch.allclose(kept(images), bare(images))
    with pytest.raises(WellcondError, match="without_layernorms"):
        lab_model("vit", options | {"without_layernorms": True}, task, seed=0)


def test_the_ablation_of_the_appendix_and_its_small_version_condition_each_part_alone() -> None:
    recipe = load_published("ci-vit-b-imagenet-partial").recipe
    small = load_recipe("partial").arms
    assert all(settings.control == ("scale", "calibrated") for name, settings in small.items() if name != "default")
    assert recipe.arms == {name: settings.model_copy(update={"control": ()}) for name, settings in small.items()}
    model = lab_model("vit", {"width": 16, "depth": 1, "heads": 2, "patch": 8}, stand_in(Named(name="cifar10")), seed=0)
    touched = {}
    for arm in arms_of(recipe):
        changed = copy.deepcopy(model)
        arm.initialise_(changed, seed=0)
        layers = [wc.attention_layers(each)[0].projections() for each in (model, changed)]
        pairs = [(role, p.read(), q.read()) for (role, p), (_, q) in zip(*layers, strict=True)]
        touched[arm.name] = {role for role, before, after in pairs if not torch.equal(before, after)}
        if arm.name.startswith("value "):
            strength = {"only": 1.0, "0.5": 0.5, "2": 2.0, "4": 4.0}[arm.name.removeprefix("value ")]
            value = next(after for role, _, after in pairs if role == "value")
            assert torch.equal(value, strength * torch.eye(*value.shape[1:]).expand_as(value))
    three = {"query", "key", "value"}
    assert touched == {
        "default": set(), "conditioned": three, "query only": {"query"}, "key only": {"key"}, "value only": {"value"},
        "query and key": {"query", "key"}, "and output": three | {"output"}, "value 0.5": three, "value 2": three,
        "value 4": three,
    }  # fmt: skip

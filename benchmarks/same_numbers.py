"""Compare, bit for bit, what two source trees of wellcond compute: to show that a move or a rename changed no number.

Usage: `python benchmarks/same_numbers.py OLD NEW [--few] [--only PATTERN]`

Each tree computes the same results in a process of its own, through `import wellcond as wc` alone: the weights that
every scheme gives every model of `tests/cases`; weights, outputs and one optimizer step of every conditioning; all
numbers of `diagnose`, `locate` and `check_propagation`; and the theory's predictions. A call that both refuse counts as
one number; a key that was renamed is told by its number. Ends with 1 if anything differs.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import hashlib
import json
import math
import os
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
CONDITIONINGS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("shift", {"mode": "folded"}),
    ("shift", {"mode": "live"}),
    ("shift", {"strength": 10.0, "mode": "folded"}),
    ("shift", {"strength": 2.0, "mode": "live", "placement": "layer"}),
    ("polar", {}),
    ("sigma_reparam", {}),
    ("weight_conditioning", {}),
    ("qk_norm", {}),
    ("conditioned_tokens", {}),
)
SEVERAL_STORAGES = ("torch-decoder", "torchvision-swin", "timm-vit", "timm-volo", "hf-gpt2", "hf-llama", "hf-gpt-neox")
THEORY = "theory"  # stands among the cases for the predictions that need no model
# A weight's records before "effective" meant W + C; a record with a "raw" is of that time.
OLD_WEIGHT_KEYS = {"raw": "effective", "stored": "trained", "effective": "scaled"}
# Whatever depends on the clock, on versions or on wording.
NOT_COMPARED = {"schema", "versions", "settings", "seconds"}
DIFFERENCES_SHOWN = 10

Numbers = dict[str, str]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("old", type=Path, help="source tree, with src/ in it")
    parser.add_argument("new", type=Path, help="source tree whose tests/cases and packages are used for both")
    parser.add_argument("--few", action="store_true", help=f"only {', '.join(SEVERAL_STORAGES)} and the theory")
    parser.add_argument("--only", default="*", help="shell pattern on the names of cases")
    parser.add_argument("--compute", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.compute:
        for name, numbers in computed(given.few, given.only):
            print(json.dumps([name, numbers]), flush=True)
        return 0
    return compare(given)


def compare(given: argparse.Namespace) -> int:
    """Print a table of the cases, and the first differences."""
    pair = [_started(tree, given) for tree in (given.old, given.new)]
    print(f"{'case':28} {'numbers':>8} {'differ':>7} {'renamed':>8} {'refused':>8}")
    cases = total = 0
    differences: list[str] = []
    for old_line, new_line in zip(*(process.stdout or [] for process in pair), strict=True):
        (name, old), (other, new) = json.loads(old_line), json.loads(new_line)
        assert name == other, f"the trees are out of step: {name} and {other}"
        found, renamed = differing(old, new)
        refused = sum(key.endswith("/refused") for key in old)
        print(f"{name:28} {len(old):8} {len(found):7} {len(renamed):8} {refused:8}", flush=True)
        differences += [f"{name}: {line}" for line in found]
        cases, total = cases + 1, total + len(old)
    failed = [process.args for process in pair if process.wait()]
    print(f"\n{cases} cases, {total} numbers and tensors compared, {len(differences)} differences")
    for line in differences[:DIFFERENCES_SHOWN]:
        print(f"  {line}")
    for command in failed:
        print(f"failed: {command}")
    return 1 if differences or failed or not cases else 0


def _started(tree: Path, given: argparse.Namespace) -> subprocess.Popen[str]:
    paths = [str(tree.resolve() / "src"), str(given.new.resolve())]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE), "--compute", str(given.old), str(given.new), "--only", given.only]
    return subprocess.Popen(
        command + ["--few"] * given.few, stdout=subprocess.PIPE, text=True, env=environment, cwd=given.new
    )


def differing(old: Numbers, new: Numbers) -> tuple[list[str], list[str]]:
    """Return lines on what differs, and the keys whose numbers are there under another key of the same parent."""
    found = [f"{key}: {old[key]} is now {new[key]}" for key in old if key in new and old[key] != new[key]]
    gone, added = ([key for key in a if key not in b] for a, b in ((old, new), (new, old)))
    left = Counter((_parent(key), new[key]) for key in added)
    renamed = []
    for key in gone:
        place = _parent(key), old[key]
        if left[place]:
            left[place] -= 1
            renamed.append(key)
        else:
            found.append(f"{key}: {old[key]} is gone")
    return found, renamed


def _parent(key: str) -> str:
    """What a number belongs to: the path of its record as far as list indices and layer names go."""
    return "/".join(part for part in key.split("/") if part[:1] in "#=")


# What follows runs once in each tree, and imports wellcond and torch from it.


def computed(few: bool, only: str) -> Iterator[tuple[str, Numbers]]:
    """Yield each case with all its numbers, floats and tensors as text that two trees share only if all bits agree."""
    import torch
    from tests.cases import CASES

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for name in (THEORY, *CASES):
        if fnmatch.fnmatch(name, only) and (name == THEORY or not few or name in SEVERAL_STORAGES):
            yield name, dict(_theory() if name == THEORY else _model(CASES[name]))


def _model(case: Any) -> Iterator[tuple[str, str]]:
    import wellcond as wc

    for scheme in sorted({info.name for info in wc.schemes()}):
        model = case.model()
        yield from _attempt(f"init_ {scheme}", lambda m=model, s=scheme: _initialised(m, s))
    for method, options in CONDITIONINGS:
        said = " ".join([method, *(f"{name}={value}" for name, value in options.items())])
        yield from _attempt(f"condition_ {said}", lambda m=method, o=options: _conditioned(case, m, o))
    model, batch = case.model().double(), case.batch()
    yield from _attempt(
        "diagnose", lambda: _flat(wc.diagnose(model, batch, jacobian="exact", loss=_loss, progress=False).to_dict())
    )
    yield from _attempt("locate", lambda: _flat(wc.locate(model, batch).to_dict()))
    yield from _attempt("check_propagation", lambda: _flat(wc.check_propagation(model, batch).records()))


def _initialised(model: Any, scheme: str) -> Iterator[tuple[str, str]]:
    import wellcond as wc

    wc.init_(model, scheme, seed=3, on_inapplicable="skip")
    yield from _tensors(model)


def _conditioned(case: Any, method: str, options: dict[str, Any]) -> Iterator[tuple[str, str]]:
    import torch

    import wellcond as wc

    model, batch = case.model().double(), case.batch()
    handle = wc.condition_(model, method, as_original=True, **options)
    yield from _tensors(model)
    for layer in wc.attention_layers(model):
        for role, projection in layer.projections():
            yield f"={layer.name}/{role} effective", _bits(projection.read())
    yield "output", _bits(_output(model, batch))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    handle.attach(optimizer)
    torch.manual_seed(2)
    _loss(_output(model, batch)).backward()
    optimizer.step()
    for key, value in _tensors(model):
        yield f"after a step {key}", value
    yield "output after a step", _bits(_output(model, batch))


def _theory() -> Iterator[tuple[str, str]]:
    import wellcond as wc

    stack: dict[str, Any] = {"depth": 4, "tokens": 48}
    predictions: dict[str, Callable[[], Any]] = {
        "encoder": lambda: wc.propagate(**stack, beta=0.7, value_gain=0.3, width=64, head_dim=16, self_bias=1.5),
        "post": lambda: wc.propagate(**stack, beta=2.0, norm="post", activation="tanh", bias=0.1, loss="pooled"),
        "none": lambda: wc.propagate(**stack, beta=0.5, norm="none", value_gain=(0.3, 0.5, 0.1), activation="relu"),
        "centred": lambda: wc.propagate(**stack, beta=3.0, attention="centred"),
        "cold": lambda: wc.propagate(**stack, beta=300.0),
        "asymptotic": lambda: wc.propagate(**stack, beta=1.0, theory="asymptotic"),
        "decoder": lambda: wc.propagate(**stack, beta=1.0, causal=True, value_gain=0.5, self_bias=0.5),
    }
    for name, predict in predictions.items():
        yield from _attempt(f"propagate {name}", lambda p=predict: _flat(p().records()))
    axes = {"x": ("beta", 0.1, 8), "y": ("value_gain", 0.1, 1)}
    diagram = wc.trainability(**axes, depth=6, tokens=32, resolution=12)
    yield from _prefixed("trainability", _flat(diagram.records()))
    yield "collapse_exponent", _bits(wc.collapse_exponent(0.2, activation="tanh", bias=0.05))
    yield "critical_residual", _bits(wc.critical_residual(0.1))


def _attempt(name: str, make: Callable[[], Iterator[tuple[str, str]]]) -> Iterator[tuple[str, str]]:
    """Yield what a call gives, or that it is refused."""
    from wellcond.errors import WellcondError

    try:
        found = list(make())
    except WellcondError as refusal:
        found = [("refused", type(refusal).__name__)]
    yield from _prefixed(name, found)


def _prefixed(name: str, found: Any) -> Iterator[tuple[str, str]]:
    for key, value in found:
        yield f"={name}/{key}", value


def _tensors(model: Any) -> Iterator[tuple[str, str]]:
    for key, value in model.state_dict().items():
        if hasattr(value, "shape"):
            yield f"={key}", _bits(value)


def _flat(found: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield every number of nested records with its path: `#` before an index, `=` before a layer's name."""
    if dataclasses.is_dataclass(found) and not isinstance(found, type):
        found = dataclasses.asdict(found)
    if isinstance(found, Mapping):
        names = OLD_WEIGHT_KEYS if "raw" in found else {}
        for key, value in found.items():
            if key not in NOT_COMPARED:
                yield from _flat(value, f"{path}{names.get(str(key), key)}/")
    elif isinstance(found, (list, tuple)):
        for index, value in enumerate(found):
            yield from _flat(value, f"{path}#{index}/")
    elif found is None or isinstance(found, (bool, int, float)) or hasattr(found, "numpy"):
        yield path.rstrip("/"), _bits(found)


def _bits(value: Any) -> str:
    if hasattr(value, "detach"):
        raw = value.detach().cpu().contiguous()
        shape = "×".join(map(str, raw.shape))
        if raw.numel() == 1 and raw.is_floating_point():
            return _bits(float(raw))
        return f"{shape} {raw.dtype} {hashlib.sha256(raw.numpy().tobytes()).hexdigest()[:16]}"
    return "nan" if isinstance(value, float) and math.isnan(value) else repr(value)


def _output(model: Any, batch: Any) -> Any:
    given = model(**batch) if isinstance(batch, dict) else model(*batch) if isinstance(batch, tuple) else model(batch)
    return _first(given)


def _first(given: Any) -> Any:
    """The first floating-point tensor of a model's output."""
    if hasattr(given, "is_floating_point"):
        return given
    parts = given.values() if isinstance(given, Mapping) else given
    return next(part for part in parts if hasattr(part, "is_floating_point"))


def _loss(output: Any) -> Any:
    return _first(output).square().mean()


if __name__ == "__main__":
    sys.exit(main())

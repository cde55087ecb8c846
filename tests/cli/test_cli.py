"""The command line: what it prints, its exit codes, and that bad input is one line."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner, Result

import wellcond as wc
from wellcond._core.json_safe import to_json
from wellcond.cli.main import app

SOURCE = """
from torch import nn

def build():
    layer = nn.TransformerEncoderLayer(24, 2, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

def convolution():
    return nn.Conv2d(3, 3, 3)

def broken():
    raise RuntimeError("first line\\nsecond line")
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "m.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("wellcond_file_m", None)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def ok(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def data(*arguments: str, code: int = 0) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == code, result.output

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(result.stdout, parse_constant=refuse)


def test_version() -> None:
    assert ok("--version").startswith("wellcond 0.")


def test_inspect(here: Path) -> None:
    assert "12      blocks.{0…11}.attn" in ok("inspect", "timm:vit_tiny_patch16_224")
    found = data("inspect", "m.py:build")
    assert [layer["name"] for layer in found["layers"]] == [f"layers.{i}.self_attn" for i in range(3)]
    assert found["layers"][0]["heads"] == 2
    assert found["layers"][0]["roles"]["key"] == {"weight": "layers.0.self_attn.in_proj_weight", "shape": [2, 24, 12]}
    assert found["unclaimed"] == []


def test_inspect_needs_no_memory_for_a_large_model() -> None:
    assert len(data("inspect", "hf:llama")["layers"]) == 32


def test_schemes() -> None:
    text = ok("schemes")
    assert all(info.name in text for info in wc.schemes())
    assert max(map(len, text.splitlines())) <= 80
    assert "value_strength=1.0" not in text
    assert "value_strength=1.0" in ok("schemes", "cond*")
    (conditioned,) = data("schemes", "conditioned")["schemes"]
    assert conditioned["options"]["value"] == "shared"
    assert conditioned["citation"]


def test_scheme_by_model_table(here: Path) -> None:
    text = ok("schemes", "--for", "m.py:build", "--for", "timm:vit_tiny_patch16_224")
    cells = [line.split() for line in text.splitlines()]
    assert ["conditioned", "yes", "yes"] in cells
    assert ["impulse", "no", "yes"] in cells
    assert "impulse [1]: " in text
    rows = {row["name"]: row["applies"]["m.py:build"] for row in data("schemes", "--for", "m.py:build")["schemes"]}
    assert rows["keep"] == {"layers": 3, "applies": 3, "reasons": []}
    assert rows["impulse"]["applies"] == 0
    assert rows["impulse"]["reasons"]
    assert rows["weight_selection"]["applies"] == rows["weight_selection"]["layers"]  # whatever the teacher


def test_init_file_then_audit(here: Path) -> None:
    text = ok("init", "m.py:build", "--scheme", "conditioned", "--seed", "3", "-o", "w.safetensors")
    assert "layers.{0…2}.self_attn" in text
    usual = wc.build_model("m.py:build", seed=3)
    wc.init_(usual, "conditioned", seed=3)
    model = wc.build_model("m.py:build", seed=9)
    wc.load_weights_(model, "w.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), usual.parameters(), strict=True))
    assert ok("audit", "m.py:build", "--weights", "w.safetensors", "--scheme", "conditioned").endswith(
        "conditioned: pass, 30 checks\n"
    )
    audit = data("audit", "m.py:build", "--weights", "w.safetensors", "--scheme", "conditioned")
    assert audit["passed"] is True
    assert len(audit["findings"]) == 30


def test_init_directory_then_audit(here: Path) -> None:
    for output in ["shards/", "more"]:
        text = ok("init", "m.py:build", "-s", "conditioned", "-o", output)
        assert "κ" not in text  # nothing is in memory to be measured
        assert (here / output / "model.safetensors.index.json").is_file()
    assert run("audit", "m.py:build", "-w", "shards", "-s", "conditioned").exit_code == 0


def test_init_json(here: Path) -> None:
    made = data("init", "m.py:build", "-s", "conditioned", "-o", "w.safetensors", "--layers", "layers.1.*")
    assert made["output"] == "w.safetensors"
    assert [entry["role"] for entry in made["entries"]] == ["query", "key", "value"]
    assert {entry["layer"] for entry in made["entries"]} == {"layers.1.self_attn"}
    assert made["entries"][0]["kappa_before"] > 1.1
    assert made["entries"][0]["kappa_after"] == pytest.approx(1, abs=1e-5)
    streamed = data("init", "m.py:build", "-s", "conditioned", "-o", "out", "--layers", "layers.[01].*")
    assert len(streamed["entries"]) == 6


def test_audit_fails_with_exit_code_1(here: Path) -> None:
    wc.save_weights(wc.build_model("m.py:build"), "w.safetensors")
    result = run("audit", "m.py:build", "-w", "w.safetensors", "-s", "conditioned")
    assert result.exit_code == 1
    assert "FAIL layers.0.self_attn query head 0: orthogonality error" in result.stdout
    assert "… and 20 more" in result.stdout
    assert "conditioned: FAIL, 30 of 30 checks" in result.stdout
    assert data("audit", "m.py:build", "-w", "w.safetensors", "-s", "conditioned", code=1)["passed"] is False
    every = run("audit", "m.py:build", "-w", "w.safetensors", "-s", "conditioned", "--verbose").stdout
    assert "layers.2.self_attn  value" in every


def test_audit_of_broken_weights_is_json(here: Path) -> None:
    model = wc.build_model("m.py:build")
    nn.init.constant_(model.layers[1].self_attn.in_proj_weight, float("nan"))
    wc.save_weights(model, "w.safetensors")
    found = data("audit", "m.py:build", "-w", "w.safetensors", "-s", "conditioned", code=1)
    assert "inf" in {finding["measured"] for finding in found["findings"]}


def test_settings_and_composition(here: Path) -> None:
    ok(
        "init",
        "m.py:build",
        "-s",
        "conditioned",
        "--set",
        "value_strength=0.5",
        "--set",
        "key=keep",
        "-o",
        "a.safetensors",
    )
    audit = ("audit", "m.py:build", "-w", "a.safetensors", "-s", "conditioned")
    assert run(*audit, "--set", "value_strength=0.5", "--set", "key=keep").exit_code == 0
    assert run(*audit, "--set", "value_strength=0.6", "--set", "key=keep").exit_code == 1
    parts = ("-s", "qk=conditioned, v=conditioned", "--set", "v.value='block'")
    made = data("init", "m.py:build", *parts, "-o", "b.safetensors")
    assert made["entries"][2]["law"] == "identity (each head its own coordinates)"
    assert run("audit", "m.py:build", "-w", "b.safetensors", *parts).exit_code == 0


def test_verbose_lists_every_layer(here: Path) -> None:
    for output in ["w.safetensors", "out"]:
        text = ok("init", "m.py:build", "-s", "conditioned", "-o", output, "--verbose")
        assert sum("self_attn  query" in line for line in text.splitlines()) == 3


def test_keep_writes_the_model_as_it_is(here: Path) -> None:
    assert "the scheme sets nothing" in ok("init", "m.py:build", "-s", "keep", "-o", "w.safetensors")
    assert "keep: pass, 0 checks" in ok("audit", "m.py:build", "-w", "w.safetensors", "-s", "keep")


def test_whole_parameters_are_listed(here: Path) -> None:
    ok("init", "m.py:build", "-s", "keep", "--seed", "4", "-o", "teacher.safetensors")
    scheme = ("-s", "weight_selection", "--set", "teacher=teacher.safetensors")
    for output in ["w.safetensors", "out"]:
        assert "and 36 whole parameters: layers.0" in ok("init", "m.py:build", *scheme, "-o", output)
        assert run("audit", "m.py:build", *scheme, "-w", output).exit_code == 0
    made = data("init", "m.py:build", *scheme, "-o", "v.safetensors")
    assert "layers.2.norm1.bias" in made["parameters"]


def test_skip_inapplicable(here: Path) -> None:
    command = ("init", "m.py:build", "-s", "impulse", "-o", "w.safetensors")
    assert run(*command).exit_code == 2
    assert "skipped 3, layers.{0…2}.self_attn: " in ok(*command, "--skip-inapplicable")


BAD = [
    ("inspect", "resnet"),
    ("inspect", "timm:no_such_model"),
    ("inspect", "m.py:absent"),
    ("inspect", "m.py:broken"),
    ("inspect", "m.py:convolution"),
    ("schemes", "no-such-*"),
    ("schemes", "--for", "m.py:absent"),
    ("init", "m.py:build", "-s", "condition", "-o", "w.safetensors"),
    ("init", "m.py:build", "-s", "", "-o", "w.safetensors"),
    ("init", "m.py:build", "-s", "conditioned", "-o", "w.pt"),
    ("init", "m.py:build", "-s", "conditioned", "-o", "no/w.safetensors"),
    ("init", "m.py:build", "-s", "conditioned", "-o", "m.py"),
    ("init", "m.py:build", "-s", "conditioned", "-o", "."),
    ("init", "m.py:build", "-s", "conditioned", "-o", "w.safetensors", "--layers", "blocks.*"),
    ("init", "m.py:build", "-s", "conditioned", "-o", "w.safetensors", "--set", "strength=2"),
    ("init", "m.py:build", "-s", "conditioned", "-o", "w.safetensors", "--set", "value_strength"),
    ("init", "m.py:build", "-s", "conditioned", "-o", "w.safetensors", "--set", "value_strength=nan"),
    ("init", "m.py:build", "-s", "conditioned", "-o", "w.safetensors", "--set", "value_strength=true"),
    ("init", "m.py:build", "-s", "conditioned", "-o", "w.safetensors", "--set", "seed=1"),
    ("init", "m.py:build", "-s", "conditioned", "-o", "w.safetensors", "--set", "model=1"),
    ("init", "m.py:build", "-s", "conditioned", "-o", "w.safetensors", "--seed", str(2**70)),
    ("init", "m.py:build", "-s", "qk=conditioned,", "-o", "w.safetensors"),
    ("init", "m.py:build", "-s", "qk=conditioned,qk=keep", "-o", "w.safetensors"),
    ("init", "m.py:build", "-s", "qk=conditioned,kv=keep", "-o", "w.safetensors"),
    ("init", "m.py:build", "-s", "xyz=conditioned", "-o", "w.safetensors"),
    ("init", "m.py:build", "-s", "qk=conditioned", "--set", "value=block", "-o", "w.safetensors"),
    ("audit", "m.py:build", "-w", "none.safetensors", "-s", "conditioned"),
    ("audit", "m.py:build", "-w", "m.py", "-s", "conditioned"),
    ("audit", "m.py:build", "-w", ".", "-s", "conditioned"),
]


@pytest.mark.parametrize("arguments", BAD, ids=" ".join)
def test_bad_input_is_one_line_and_exit_code_2(here: Path, arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert os.listdir(here) == ["m.py"] or set(os.listdir(here)) == {"m.py", "__pycache__"}


@pytest.mark.parametrize("arguments", [("init",), ("audit", "m.py:build"), ("nonsense",), ("init", "m", "--seed", "x")])
def test_bad_usage_is_exit_code_2(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == 2


def test_json_has_no_nan() -> None:
    assert json.loads(to_json({"a": [float("nan"), (float("-inf"), 1.5)]})) == {"a": ["nan", ["-inf", 1.5]]}


def process(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(arguments, capture_output=True, text=True, check=False, env=environment)


def test_real_processes(here: Path) -> None:
    init = process(sys.executable, "-m", "wellcond", "init", "m.py:build", "-s", "conditioned", "-o", "out/", "--json")
    assert init.returncode == 0, init.stderr
    assert json.loads(init.stdout)["output"] == "out"
    command = str(Path(sys.executable).parent / "wellcond")
    wrong = process(command, "audit", "m.py:build", "-w", "out", "-s", "orthogonal")
    assert (wrong.returncode, wrong.stderr) == (1, "")
    assert "orthogonal: FAIL" in wrong.stdout


LIGHT = """
import sys
from typer.testing import CliRunner
from wellcond.cli.main import app, main
assert CliRunner().invoke(app, ["--help"]).exit_code == 0
print(sorted({"timm", "transformers", "torchvision"} & set(sys.modules)))
sys.argv = ["wellcond", "audit", "m.py:build", "-w", "none", "-s", "conditioned"]
main()
"""


def test_help_imports_no_model_library_and_refusals_no_traceback(here: Path) -> None:
    done = process(sys.executable, "-c", LIGHT)
    assert done.stdout == "[]\n"
    assert done.stderr == "error: there is no file or directory 'none'\n"
    assert done.returncode == 2


DIAGNOSED = """
import torch
from torch import nn

def build():
    layer = nn.TransformerEncoderLayer(24, 2, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    model.example_inputs = torch.randn(2, 5, 24)
    return model

def failing():
    model = build()
    model.example_inputs = torch.randn(2, 5, 7)
    return model
"""


def test_diagnose_prints_a_table_json_a_page_and_a_picture(here: Path) -> None:
    (here / "d.py").write_text(DIAGNOSED)
    printed = ok("diagnose", "d.py:build", "--html", "d.html", "--plot", "d.png", "--vertical")
    assert "layers.2.self_attn" in printed
    assert "written to d.html" in printed
    assert "layers.2.self_attn" in (here / "d.html").read_text()
    assert (here / "d.png").read_bytes().startswith(b"\x89PNG")
    data = json.loads(ok("diagnose", "d.py:build", "--json", "--jacobian", "off", "--layers", "layers.1.*"))
    assert [layer["name"] for layer in data["layers"]] == ["layers.1.self_attn"]
    assert data["layers"][0]["jacobian"] == []
    assert data["model"] == "d.py:build"


def test_diagnose_reads_photographs_text_and_weights(here: Path) -> None:
    config = {"model_type": "vit", "image_size": 32, "patch_size": 16, "hidden_size": 12, "num_hidden_layers": 1}
    (here / "vit.json").write_text(json.dumps(config | {"num_attention_heads": 3, "intermediate_size": 16}))
    printed = ok("diagnose", "hf:vit.json", "--images", "sample", "--batch", "2")
    assert "2 crops of scikit-learn's sample photographs" in printed
    config = {"model_type": "gpt2", "n_embd": 12, "n_head": 3, "n_layer": 1, "n_positions": 16, "vocab_size": 300}
    (here / "gpt2.json").write_text(json.dumps(config))
    ok("init", "hf:gpt2.json", "-s", "conditioned", "-o", "w.safetensors")
    text = ["--text", "the quick brown fox", "--tokens", "8", "--json", "--jacobian", "off"]
    fresh = json.loads(ok("diagnose", "hf:gpt2.json", *text))["layers"][0]["weights"][0]["effective"]["condition"]
    chosen = json.loads(ok("diagnose", "hf:gpt2.json", "-w", "w.safetensors", *text))["layers"][0]["weights"][0]
    assert chosen["effective"]["condition"] == pytest.approx(1, abs=1e-5)  # semi-orthogonal, in float32
    assert fresh > 1.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["d.py:failing"], "failed on"),
        (["d.py:build", "--jacobian", "maybe"], "auto, exact or off"),
        (["d.py:build", "--html", "nowhere/d.html"], "no directory"),
        (["d.py:build", "--images", "nowhere"], "error"),
        (["d.py:build", "--layers", "none.*"], "no attention layer matches"),
    ],
)
def test_diagnose_refuses_in_one_line(here: Path, arguments: list[str], message: str) -> None:
    (here / "d.py").write_text(DIAGNOSED)
    result = run("diagnose", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_figures_are_drawn_from_a_monitors_folder(here: Path) -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(12, 3, 16, batch_first=True)
    with wc.Monitor(
        model, torch.randn(2, 6, 12), every=1, folder="run", label="default", seed=0, alarms=False
    ) as monitor:
        for step in range(3):
            monitor.step(step)
    printed = ok("figures", "run", "-o", "pictures")
    assert {path.name for path in (here / "pictures").iterdir()} == {
        *("figures.json", "weights.png", "jacobian.png", "entropy.png")
    }
    assert "wrote pictures" in printed
    assert run("figures", "nowhere").exit_code == 2


def test_diagram_draws_and_prints_what_it_drew(tmp_path: Path) -> None:
    found = data("diagram", "--resolution", "9", "--depth", "4", "--tokens", "16", "-o", str(tmp_path / "d.png"))
    assert found["names"] == ["beta", "residual_attention"]
    assert len(found["phase"]) == len(found["phase"][0]) == 9
    assert found["parameters"]["depth"] == 4
    assert (tmp_path / "d.png").read_bytes().startswith(b"\x89PNG")


def test_diagram_marks_a_model(tmp_path: Path) -> None:
    found = data("diagram", "--model", "timm:vit_tiny_patch16_224", "--batch", "1", "-o", str(tmp_path / "m.png"))
    assert len(found["layers"]) == 12
    assert found["layers"][0]["beta_weights"] > 0
    assert (tmp_path / "m.png").stat().st_size > 10_000


@pytest.mark.parametrize("command", [["audit", "-s", "conditioned"], ["diagnose"], ["diagram", "-o", "a b.png"]])
def test_weights_in_a_pickle_are_read_if_that_is_allowed(here: Path, command: list[str]) -> None:
    """The refusal's own command goes on; what it reads is what is in the file."""
    (here / "d.py").write_text(DIAGNOSED)
    model = wc.build_model("d.py:build", seed=5)
    wc.init_(model, "conditioned", seed=5)
    torch.save({"model": {f"_orig_mod.{k}": v for k, v in model.state_dict().items()}, "iter_num": 3}, "c.pt")
    name, *options = command
    which = ["--model", "d.py:build"] if name == "diagram" else ["d.py:build"]
    refused = run(name, *which, "-w", "c.pt", *options, "--json")
    assert (refused.exit_code, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    told = shlex.split(refused.stderr.partition("nothing but its tensors: ")[2])
    assert told == ["wellcond", name, *which, "-w", "c.pt", *options, "--json", "--allow-pt"]
    found = json.loads(ok(*told[1:]))
    wc.save_weights(model, "c.safetensors")
    again = json.loads(ok(name, *which, "-w", "c.safetensors", *options, "--json"))
    assert found | {"weights": ""} == again | {"weights": ""}
    if name != "audit":
        assert found != json.loads(ok(name, *which, *options, "--json"))


def test_diagram_takes_weights_images_and_text_only_with_a_model(here: Path) -> None:
    for option in ("--weights", "--images", "--text"):
        refused = run("diagram", option, "something")
        assert (refused.exit_code, refused.stderr) == (
            2,
            f"error: {option} is for a model's own diagram: add --model\n",
        )


LANGUAGE = """
import torch
from torch import nn

class Gpt(nn.Module):
    def __init__(self, vocab_size=65, block_size=16):
        super().__init__()
        self.block_size = block_size
        self.tokens, self.positions = nn.Embedding(vocab_size, 12), nn.Embedding(block_size, 12)
        layers = [nn.TransformerEncoderLayer(12, 2, 24, batch_first=True, norm_first=True) for _ in range(2)]
        self.blocks = nn.ModuleList(layers)
        self.head = nn.Linear(12, vocab_size)

    def forward(self, idx, targets=None):
        mask = nn.Transformer.generate_square_subsequent_mask(idx.shape[1])
        x = self.tokens(idx) + self.positions.weight[: idx.shape[1]]
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return self.head(x)

def build():
    return Gpt()
"""


def test_text_for_a_language_model_of_ones_own(here: Path) -> None:
    (here / "g.py").write_text(LANGUAGE)
    text = ["--text", "To be, or not to be, that is the question", "--batch", "2"]
    printed = ok("diagnose", "g.py:build", *text)
    assert printed.startswith(
        "g.py:build on the text given, 2 × 16 UTF-8 bytes modulo its 65 ids (no tokenizer is known"
    )
    found = data("diagram", "--model", "g.py:build", *text)
    assert found["input"].startswith("the text given, 2 × 16 UTF-8 bytes modulo its 65 ids")
    assert [layer["layer"] for layer in found["layers"]] == [f"blocks.{i}.self_attn" for i in range(2)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--x", "beta:one:4"], "NAME:LOW:HIGH"),
        (["--x", "beta:0.1"], "an axis is"),
        (["--y", "norm:0:1"], "an axis is"),
        (["--norm", "middle"], "pre, post, none"),
        (["--set", "sharpness=2"], "no parameter"),
        (["-o", "nowhere/d.png"], "no directory"),
        (["--activation", "swish"], "gelu"),
    ],
)
def test_a_diagram_that_cannot_be_is_one_line(arguments: list[str], words: str, tmp_path: Path) -> None:
    done = run("diagram", "--resolution", "3", "-o", str(tmp_path / "d.png"), *arguments)
    assert done.exit_code == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []

"""Text on disk, in small files of the real formats written by hand, whole and damaged."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from tests.lab.tasks.test_tasks import same
from wellcond.errors import WellcondError
from wellcond.lab.tasks import task
from wellcond.lab.tasks.metrics import IGNORED
from wellcond.lab.tasks.text.blocks import Masking
from wellcond.lab.tasks.text.glue import SUBSETS
from wellcond.lab.tasks.text.tokens import BYTES, tokens_of


def decoded(ids: torch.Tensor) -> str:
    return bytes(int(id) - 4 for id in ids if id >= 4).decode()


def everything(part) -> torch.Tensor:
    return torch.arange(len(part))


def test_topics_are_cut_into_blocks_whose_targets_are_the_next_bytes():
    import pydoc_data.topics

    built = task("topics-text", length=100)
    train, test = (part[everything(part)] for part in (built.train, built.test))
    for batch in (train, test):
        flat = batch.inputs.flatten()
        assert torch.equal(flat[1:], batch.targets.flatten()[:-1])
    whole = "\n\n".join(text for _, text in sorted(pydoc_data.topics.topics.items())).encode()
    assert bytes((train.inputs.flatten() - 4).tolist()) == whole[: train.inputs.numel()]
    cut = len(whole) - round(len(whole) / 10)
    assert bytes((test.inputs.flatten() - 4).tolist()) == whole[cut : cut + test.inputs.numel()]
    assert train.inputs.numel() + test.inputs.numel() > len(whole) - 202
    assert built.metric == "perplexity"


def test_text_of_files(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffÀ la carte. ".encode() * 10)
    (tmp_path / "b.txt").write_text("b" * 100)
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    built = task("topics-text", files=files, length=16, test_part=0.25)
    assert decoded(built.train[torch.tensor([0])].inputs[0]).startswith("À la carte. ")
    assert set(decoded(built.test[everything(built.test)].inputs.flatten())) == {"b"}
    with pytest.raises(WellcondError, match="less than a block: lower length"):
        task("topics-text", files=files, length=100)
    with pytest.raises(WellcondError, match=r"no text file .*c\.txt"):
        task("topics-text", files=[tmp_path / "c.txt"])
    with pytest.raises(WellcondError, match="a list of text files"):
        task("topics-text", files=str(files[0]))
    with pytest.raises(WellcondError, match="between 0 and 1"):
        task("topics-text", files=files, test_part=1.5)
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(WellcondError, match=r"b\.txt' is not UTF-8"):
        task("topics-text", files=files)


def test_masking_hides_15_per_cent_80_10_10():
    built = task("masked-text", length=128)
    batch = built.train[torch.arange(2000)]
    plain = batch.inputs.clone()
    masked = built.prepare(batch, torch.Generator().manual_seed(1))
    assert torch.equal(batch.inputs, plain)
    chosen = masked.targets != IGNORED
    assert torch.equal(masked.targets[chosen], plain[chosen])
    assert torch.equal(masked.inputs[~chosen], plain[~chosen])
    n, m = plain.numel(), int(chosen.sum())
    hidden, changed = masked.inputs[chosen] == BYTES.mask, masked.inputs[chosen] != plain[chosen]
    for found, whole, rate in (
        (m, n, 0.15),
        (int(hidden.sum()), m, 0.8),
        (int((changed & ~hidden).sum()), m, 0.1 * 255 / 256),
    ):
        assert abs(found - whole * rate) < 5 * math.sqrt(whole * rate * (1 - rate))
    drawn = masked.inputs[chosen][changed & ~hidden]
    assert drawn.min() >= 4
    assert len(drawn.unique()) == 256
    assert same(masked, built.prepare(batch, torch.Generator().manual_seed(1)))
    assert not same(masked, built.prepare(batch, torch.Generator().manual_seed(2)))
    causal = task("topics-text")
    batch = causal.train[torch.arange(2)]
    assert causal.prepare(batch, torch.Generator()) is batch
    with pytest.raises(WellcondError, match="rate is a number"):
        task("masked-text", rate=0)


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("bert")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "cat", "sat", "the", "##s", "."]
    (folder / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    return str(folder)


def test_a_tokenizer_of_transformers_is_taken_from_a_folder(tmp_path, bert):
    (tmp_path / "a.txt").write_text("the cats sat. " * 40)
    built = task("masked-text", files=[tmp_path / "a.txt"], tokenizer=bert, length=10)
    assert built.shape == {"tokens": 10, "vocabulary": 11}
    batch = built.train[torch.tensor([0])]
    assert batch.inputs.tolist() == [[8, 6, 9, 7, 10] * 2]
    special = torch.tensor([[2, 8, 0, 3] * 500])
    masked = Masking.of(tokens_of(bert), 0.5)(type(batch)(special, special), torch.Generator().manual_seed(0))
    assert set(masked.targets.unique().tolist()) == {IGNORED, 8}
    assert set(masked.inputs.unique().tolist()) == {0, 2, 3, 4, 5, 6, 7, 8, 9, 10}
    with pytest.raises(WellcondError, match=r"tokenizer .*nowhere.* cannot be loaded"):
        task("topics-text", tokenizer=str(tmp_path / "nowhere"))
    with pytest.raises(WellcondError, match="have no mask token"):
        Masking.of(type(BYTES)("words", 5, 0, None, None, None))


ROWS = {
    "cola": ["gj04\t1\t\tThe cat sat.\n", 'gj04\t0\t*\t"Cat the sat.\n'],
    "sst2": ["sentence\tlabel\n", "a fine film \t1\n", "dull \t0\n"],
    "mrpc": [
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n",
        '1\t70\t71\tHe said "yes\tHe agreed\n',
        "0\t1\t2\ta\tb\n",
    ],
    "qqp": [
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n",
        "1\t2\t3\tWhy?\tHow?\t0\n",
        "4\t5\t6\tA?\tA ?\t1\n",
    ],
    "stsb": [
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n",
        "0\tmain\tf\t2012\t1\tnone\tnone\tA plane.\tAn air plane.\t5.000\n",
        "1\tmain\tf\t2012\t4\tnone\tnone\tA man.\tA flute.\t0.600\n",
    ],
    "mnli": [
        "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\t"
        "sentence2_parse\tsentence1\tsentence2\tlabel1\tgold_label\n",
        "0\t1\t1n\tgov\t( a )\t( b )\t(A)\t(B)\tIt rains.\tIt is wet.\tneutral\tentailment\n",
        "1\t1\t1c\tgov\t( a )\t( b )\t(A)\t(B)\tIt rains.\tIt is dry.\tneutral\tcontradiction\n",
    ],
    "qnli": ["index\tquestion\tsentence\tlabel\n", "0\tWho?\tHe.\tentailment\n", "1\tWhen?\tHe.\tnot_entailment\n"],
    "rte": ["index\tsentence1\tsentence2\tlabel\n", "0\tA\tB\tnot_entailment\n", "1\tC\tD\tentailment\n"],
}
TRUTH = {
    "cola": (["The cat sat.", '"Cat the sat.'], [1, 0], "matthews"),
    "sst2": (["a fine film ", "dull "], [1, 0], "accuracy"),
    "mrpc": ([('He said "yes', "He agreed"), ("a", "b")], [1, 0], "f1"),
    "qqp": ([("Why?", "How?"), ("A?", "A ?")], [0, 1], "f1"),
    "stsb": ([("A plane.", "An air plane."), ("A man.", "A flute.")], [5.0, 0.6], "pearson"),
    "mnli": ([("It rains.", "It is wet."), ("It rains.", "It is dry.")], [0, 2], "accuracy"),
    "qnli": ([("Who?", "He."), ("When?", "He.")], [0, 1], "accuracy"),
    "rte": ([("A", "B"), ("C", "D")], [1, 0], "accuracy"),
}


def write_glue(folder: Path, subset: str) -> Path:
    base = folder / SUBSETS[subset].folder
    base.mkdir()
    held = ["dev_matched.tsv", "dev_mismatched.tsv"] if subset == "mnli" else ["dev.tsv"]
    for name in ["train.tsv", *held]:
        (base / name).write_bytes("".join(ROWS[subset]).encode())
    return base


@pytest.mark.parametrize("subset", SUBSETS)
def test_glue_is_read_as_distributed(tmp_path, subset):
    write_glue(tmp_path, subset)
    texts, labels, metric = TRUTH[subset]
    built = task("glue", folder=tmp_path, subset=subset, tokens=48)
    batch = built.test[torch.arange(2)]
    ids, mask = batch.inputs["input_ids"], batch.inputs["attention_mask"]
    if isinstance(texts[0], tuple):
        assert (built.kind, ids.shape) == ("pair", (2, 2, 48))
        assert [tuple(map(decoded, pair)) for pair in ids] == texts
    else:
        assert (built.kind, ids.shape) == ("sequence", (2, 48))
        assert [decoded(row) for row in ids] == texts
    assert torch.equal(mask.bool(), ids != 0)
    assert (ids[..., 0] == 1).all()
    assert batch.targets.tolist() == pytest.approx(labels)
    assert built.metric == metric
    assert built.shape["classes"] == {"stsb": 1, "mnli": 3}.get(subset, 2)
    output = torch.randn(2, built.shape["classes"], generator=torch.Generator().manual_seed(0))
    assert built.loss(output, batch).isfinite()
    built.metric_of(built.score(output, batch))
    joined = task("glue", folder=tmp_path / SUBSETS[subset].folder, subset=subset, joined=True)
    assert joined.kind == "sequence"


def test_glue_joins_pairs_as_a_tokenizer_of_bert_does(tmp_path, bert):
    (tmp_path / "train.tsv").write_text(
        "index\tsentence1\tsentence2\tlabel\n0\tthe cats sat.\ta cat\tentailment\n"
        "1\ta cat\tthe cats sat . the cats sat .\tentailment\n2\tcat cat cat cat cat\tsat sat sat sat sat\tentailment\n"
    )
    (tmp_path / "dev.tsv").write_bytes((tmp_path / "train.tsv").read_bytes())
    judge = transformers.AutoTokenizer.from_pretrained(bert)
    pairs = [("the cats sat.", "a cat"), ("a cat", "the cats sat . the cats sat ."), ("cat " * 5, "sat " * 5)]
    for tokens in (20, 10, 9, 8, 7):
        built = task("glue", folder=tmp_path, subset="rte", tokenizer=bert, joined=True, tokens=tokens)
        inputs = built.train[torch.arange(3)].inputs
        for row, pair in enumerate(pairs):
            wanted = judge(*pair, padding="max_length", max_length=tokens, truncation="longest_first")
            for name in ("input_ids", "attention_mask", "token_type_ids"):
                assert inputs[name][row].tolist() == wanted[name], (tokens, row, name)


def test_damaged_glue_files_are_named(tmp_path):
    base = write_glue(tmp_path, "qqp")
    rows = "1\t2\t3\tWhy?\tHow?\t0\n" * 300
    (base / "train.tsv").write_text(ROWS["qqp"][0] + rows + "4\t5\t6\tbroken as distributed\n" + rows)
    assert len(task("glue", folder=tmp_path, subset="qqp").train) == 600
    (base / "dev.tsv").write_text(ROWS["qqp"][0] + ROWS["qqp"][1] + "4\t5\t6\tcut sho")
    with pytest.raises(WellcondError, match=r"dev\.tsv' is damaged: line 3 has too few columns"):
        task("glue", folder=tmp_path, subset="qqp")
    (base / "dev.tsv").write_text(ROWS["qqp"][0] + "1\t2\t3\tWhy?\tHow?\tmaybe\n")
    with pytest.raises(WellcondError, match=r"dev\.tsv' has a label that is not one of 0, 1"):
        task("glue", folder=tmp_path, subset="qqp")
    (base / "dev.tsv").write_text("a\tb\n1\t2\n")
    with pytest.raises(WellcondError, match="no column 'question1', only a, b"):
        task("glue", folder=tmp_path, subset="qqp")
    (base / "dev.tsv").write_text("")
    with pytest.raises(WellcondError, match="no column 'question1'"):
        task("glue", folder=tmp_path, subset="qqp")
    (base / "dev.tsv").unlink()
    with pytest.raises(WellcondError, match=r"no file .*dev\.tsv.*https"):
        task("glue", folder=tmp_path, subset="qqp")
    with pytest.raises(WellcondError, match="subset is one of cola"):
        task("glue", folder=tmp_path, subset="wnli")
    with pytest.raises(WellcondError, match="option of mnli"):
        task("glue", folder=tmp_path, subset="qqp", mismatched=True)


def test_lra_text_reads_reviews_as_bytes(tmp_path):
    for part in ("train", "test"):
        for name, text in (("pos/0_9.txt", "Très bon"), ("pos/1_8.txt", "x" * 50), ("neg/0_2.txt", "")):
            path = tmp_path / "aclImdb" / part / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    built = task("lra-text", folder=tmp_path, tokens=20)
    batch = built.train[torch.tensor([1, 0, 2])]
    assert batch.targets.tolist() == [1, 0, 1]
    ids, mask = batch.inputs.values()
    assert bytes((ids[0][mask[0].bool()] - 1).tolist()).decode() == "Très bon"
    assert mask.sum(1).tolist() == [9, 0, 20]
    assert built.shape == {"tokens": 20, "vocabulary": 257, "classes": 2}
    assert built.train[torch.tensor([0])].inputs["input_ids"].tolist() == [[0] * 20]
    (tmp_path / "aclImdb/train/neg/0_2.txt").unlink()
    with pytest.raises(WellcondError, match=r"0_2\.txt' cannot be read: No such file"):
        built.train[torch.tensor([0])]
    with pytest.raises(WellcondError, match=r"no text file in .*train/neg.*aclImdb_v1"):
        task("lra-text", folder=tmp_path)


def test_lra_retrieval_reads_pairs_line_by_line(tmp_path):
    lines = [b'1.0\tA1\tB2\tfirst "paper\tsecond paper\n', b"0.0\tC\tD\tx\t" + b"y" * 40 + b"\n", b"1.0\tE\tF\t\tz"]
    for part in ("train", "eval", "test"):
        (tmp_path / f"new_aan_pairs.{part}.tsv").write_bytes(b"".join(lines[: 2 if part == "eval" else 3]))
    built = task("lra-retrieval", folder=tmp_path, tokens=16)
    assert (built.kind, len(built.train), len(built.test)) == ("pair", 3, 3)
    batch = built.train[torch.tensor([2, 0, 1])]
    ids, mask = batch.inputs["input_ids"], batch.inputs["attention_mask"]
    assert ids.shape == (3, 2, 16)
    assert batch.targets.tolist() == [1, 1, 0]
    texts = [
        [bytes((side[m.bool()] - 1).tolist()) for side, m in zip(*pair, strict=True)]
        for pair in zip(ids, mask, strict=True)
    ]
    assert texts == [[b"", b"z"], [b'first "paper', b"second paper"], [b"x", b"y" * 16]]
    assert len(task("lra-retrieval", folder=tmp_path, held_out="validation").test) == 2
    (tmp_path / "new_aan_pairs.test.tsv").write_bytes(lines[0] + b"1.0\tA\tB\tcut")
    with pytest.raises(WellcondError, match=r"test\.tsv', line 2: .* found 4 columns"):
        task("lra-retrieval", folder=tmp_path).test[torch.tensor([1])]
    (tmp_path / "new_aan_pairs.test.tsv").write_bytes(b"")
    with pytest.raises(WellcondError, match=r"test\.tsv' is empty"):
        task("lra-retrieval", folder=tmp_path)
    (tmp_path / "new_aan_pairs.test.tsv").unlink()
    with pytest.raises(WellcondError, match=r"no file .*new_aan_pairs\.test\.tsv.*lra_release"):
        task("lra-retrieval", folder=tmp_path)


def test_corpora_as_text(tmp_path):
    (tmp_path / "TinyStories-train.txt").write_text("Once upon a time.\n<|endoftext|>\n" * 50)
    (tmp_path / "TinyStories-valid.txt").write_text("The end. Really, the end.\n" * 10)
    for cache in (None, tmp_path / "cache"):
        built = task("tinystories", folder=tmp_path, length=32, cache=cache)
        assert decoded(built.train[torch.tensor([0])].inputs[0]) == "Once upon a time.\n<|endoftext|>\n"
        assert decoded(built.train[torch.tensor([0])].targets[0]) == "nce upon a time.\n<|endoftext|>\nO"
    (kept,) = [p for p in (tmp_path / "cache").iterdir() if p.stat().st_size == 50 * 32 * 2]
    stamp = kept.stat().st_mtime_ns
    task("tinystories", folder=tmp_path, length=32, cache=tmp_path / "cache")
    assert kept.stat().st_mtime_ns == stamp
    assert len(list(kept.parent.iterdir())) == 2
    assert len(task("tinystories", folder=tmp_path, length=32, train_characters=100).train) == 3
    inside = tmp_path / "wikitext-103-raw"
    inside.mkdir()
    for part in ("train", "valid", "test"):
        (inside / f"wiki.{part}.raw").write_text(f" = {part} = \n" * 20)
    built = task("wikitext103", folder=tmp_path, length=8, held_out="test")
    assert decoded(built.test[torch.tensor([0])].inputs[0]) == " = test "
    (inside / "wiki.test.raw").write_bytes(b"\xff" * 100)
    with pytest.raises(WellcondError, match=r"wiki\.test\.raw' cannot be read as UTF-8 text"):
        task("wikitext103", folder=tmp_path, length=8, held_out="test")
    (inside / "wiki.test.raw").unlink()
    with pytest.raises(WellcondError, match=r"has none of wiki\.test\.tokens.*https"):
        task("wikitext103", folder=tmp_path, length=8, held_out="test")


def test_a_long_text_keeps_all_its_characters_and_is_cut_at_lines(tmp_path, monkeypatch):
    monkeypatch.setattr("wellcond.lab.tasks.text.documents.PIECE_CHARACTERS", 50)
    text = "".join(f"line {number} é\r\n" for number in range(200))
    for part in ("train", "valid"):
        (tmp_path / f"TinyStories-{part}.txt").write_bytes(text.encode())
    built = task("tinystories", folder=tmp_path, length=1)
    assert decoded(built.train[everything(built.train)].inputs.flatten()) == text[:-1]


def test_the_pile_as_lines_of_json_also_compressed(tmp_path):
    (tmp_path / "train").mkdir()
    for number in range(2):
        lines = "".join(json.dumps({"text": f"é{number}", "meta": {}}) + "\n" for _ in range(20))
        (tmp_path / "train" / f"0{number}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "val.jsonl").write_text(json.dumps({"text": "v" * 100}) + "\n\n")
    built = task("pile", folder=tmp_path, length=16, objective="causal")
    assert decoded(built.train[torch.tensor([0])].inputs[0]) == "é0<|endoftext|>"
    assert built.train[torch.tensor([38])].inputs[0].tolist() == [byte + 4 for byte in "é1<|endoftext|>".encode()]
    masked = task("pile", folder=tmp_path, length=16)
    assert masked.kind == "masked-text"
    assert masked.preparation.rate == 0.25
    whole = (tmp_path / "train" / "01.jsonl.gz").read_bytes()
    (tmp_path / "train" / "01.jsonl.gz").write_bytes(whole[:-10])
    cache = tmp_path / "cache"
    with pytest.raises(WellcondError, match=r"01\.jsonl\.gz' cannot be read"):
        task("pile", folder=tmp_path, length=16, cache=cache)
    assert not list(cache.iterdir())  # nothing half written is left
    (tmp_path / "train" / "01.jsonl.gz").write_bytes(whole)
    for line in ('{"text": 3}', '{"words": ""}', '{"text": "cut'):
        (tmp_path / "val.jsonl").write_text('{"text": "ok"}\n' + line)
        with pytest.raises(WellcondError, match=r"val\.jsonl'(, line 2,| has a 'text' that is 3)"):
            task("pile", folder=tmp_path, length=1)
    with pytest.raises(WellcondError, match="objective is one of"):
        task("pile", folder=tmp_path, objective="prefix")


def test_parquet_tables(tmp_path):
    import pyarrow
    from pyarrow import parquet

    inside = tmp_path / "wikitext-103-raw-v1"
    inside.mkdir()
    for name in ("train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001"):
        table = pyarrow.table({"text": ["", f" = {name[:7]} = \n", " words \n"] * 5})
        parquet.write_table(table, inside / f"{name}.parquet")
        stories = pyarrow.table({"text": ["A story.", "Another."]})
        parquet.write_table(stories, tmp_path / f"{name}.parquet")
    built = task("wikitext103", folder=inside, length=4)
    ids = built.train[everything(built.train)].inputs.flatten()
    assert decoded(ids).startswith(" = train-0 = \n words \n = "[:10])
    assert "endoftext" not in decoded(ids)
    built = task("tinystories", folder=tmp_path, length=1)
    assert decoded(built.test[everything(built.test)].inputs.flatten()) == "A story.<|endoftext|>Another.<|endoftext|"
    file = inside / "validation-00000-of-00001.parquet"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(WellcondError, match=r"validation-.*parquet' cannot be read as a parquet table"):
        task("wikitext103", folder=inside, length=4)
    parquet.write_table(pyarrow.table({"words": ["a"]}), file)
    with pytest.raises(WellcondError, match="no column 'text', only words"):
        task("wikitext103", folder=inside, length=4)


def test_zstandard(tmp_path):
    import zstandard

    for part in ("train", "val"):
        line = json.dumps({"text": part * 20}) + "\n"
        (tmp_path / f"{part}.jsonl.zst").write_bytes(zstandard.compress(line.encode()))
    built = task("pile", folder=tmp_path, length=5, objective="causal")
    assert decoded(built.train[torch.tensor([1])].inputs[0]) == "train"
    file = tmp_path / "val.jsonl.zst"
    file.write_bytes(b"no zstandard")
    with pytest.raises(WellcondError, match=r"val\.jsonl\.zst' cannot be read"):
        task("pile", folder=tmp_path, length=5)


def test_tokens_of_large_vocabularies_keep_their_ids(tmp_path, bert):
    tokens = tokens_of(bert)
    assert tokens.ids("the cat").dtype == np.uint16
    large = type(tokens)(tokens.name, 100_000, 0, None, None, None, tokens.tokenizer)
    assert large.ids("the cat").dtype == np.int32

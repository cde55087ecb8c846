"""Language modelling, byte by byte, on a text that every Python has, its documentation; or on any text files."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

from wellcond.errors import WellcondError
from wellcond.lab.tasks.base import Task
from wellcond.lab.tasks.checks import read_utf8
from wellcond.lab.tasks.registry import register_task
from wellcond.lab.tasks.text.blocks import split_text, text_task
from wellcond.lab.tasks.text.tokens import tokens_of

Files = Sequence[str | Path] | None


@register_task("topics-text", "continue the Python documentation, or text files of yours, byte by byte")
def topics_text(
    *, files: Files = None, length: int = 128, test_part: float = 0.1, tokenizer: str | None = None
) -> Task:
    """Predict each next byte of the documentation topics of Python, about 0.5 million characters of English and code.

    The last tenth is for the test. The text differs between versions of Python, so the description has its size.

    Args:
        files: text files instead, in this order.
        length: of a block.
        test_part: of the text, at its end.
        tokenizer: of transformers, a folder or a name in the local cache, instead of bytes.

    >>> task = topics_text(length=64)
    >>> batch = task.train[[0, 1]]
    >>> batch.inputs.shape, bool((batch.inputs[:, 1:] == batch.targets[:, :-1]).all())
    (torch.Size([2, 64]), True)
    """
    return _task("topics-text", files, length, test_part, tokenizer, "causal", 0.15)


@register_task("masked-text", "fill in hidden bytes of the Python documentation, or of text files of yours")
def masked_text(
    *, files: Files = None, length: int = 128, test_part: float = 0.1, tokenizer: str | None = None, rate: float = 0.15
) -> Task:
    """Fill in hidden bytes of the documentation topics of Python; `prepare` hides them.

    Options are those of `topics_text`, and the `rate` of hidden tokens.

    >>> masked_text().kind
    'masked-text'
    """
    return _task("masked-text", files, length, test_part, tokenizer, "masked", rate)


def _task(
    name: str, files: Files, length: int, test_part: float, tokenizer: str | None,
    objective: str, rate: float,
) -> Task:  # fmt: skip
    tokens = tokens_of(tokenizer)
    text, source = _topics() if files is None else _read(files)
    train, test = split_text(tokens.ids(text), test_part)
    return text_task(name, train, test, tokens, length=length, objective=objective, source=source, rate=rate)


def _topics() -> tuple[str, str]:
    topics = importlib.import_module("pydoc_data.topics").topics
    text = "\n\n".join(topics[name] for name in sorted(topics))
    return text, f"Python's documentation topics ({len(text)} characters)"


def _read(files: Sequence[str | Path]) -> tuple[str, str]:
    if isinstance(files, str | Path) or not files:
        raise WellcondError(f"files is a list of text files, got {files!r}")
    for file in files:
        if not Path(file).is_file():
            raise WellcondError(f"there is no text file {str(file)!r}")
    text = "\n\n".join(read_utf8(Path(file)) for file in files)
    return text, f"the text of {len(files)} file{'' if len(files) == 1 else 's'} ({len(text)} characters)"

"""Turn a text into the token ids a language model takes: by its own tokenizer if that is here, else its bytes."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

from torch import nn

from wellcond.errors import WellcondError
from wellcond.inputs.models import offline


def read_text(text: str | Path, limit: int) -> tuple[str, str]:
    """Return at most `limit` characters of a file's text, or of the text itself, and what it is.

    >>> read_text("the cat sat", limit=7)
    ('the cat', 'the text given')
    """
    words, source = str(text), "the text given"
    try:
        named, is_file = Path(text).exists(), Path(text).is_file()
    except OSError:  # longer than a name may be
        named = is_file = False
    if is_file:
        try:
            with open(text, encoding="utf-8-sig") as handle:
                words, source = handle.read(limit), f"the text of {str(text)!r}"
        except (OSError, UnicodeDecodeError) as error:
            raise WellcondError(f"{str(text)!r} cannot be read as UTF-8 text: {error}") from error
    elif words and (named or isinstance(text, Path) or re.fullmatch(r"\S*/\S*|\S+\.\w{1,5}", words)):
        raise WellcondError(f"there is no text file {words!r}")  # a mistyped name is not a text
    if not words.strip():
        raise WellcondError(f"{source} is empty")
    return words[:limit], source


def encode_text(model: nn.Module, words: str, vocabulary: int) -> tuple[list[int], str]:
    """Return ids of a text, below the size of the vocabulary, and what they are.

    >>> encode_text(nn.Identity(), "ab", 90)
    ([7, 8], 'UTF-8 bytes modulo its 90 ids (no tokenizer is known for it)')
    """
    config: Any = getattr(model, "config", None)
    name = str(getattr(config, "_name_or_path", ""))
    own: Any = getattr(model, "tokenizer", None)
    if hasattr(own, "encode"):
        ids, lacking = _encoded(own, words, type(model).__name__), "its tokenizer finds no token"
    else:
        ids, lacking = _tokenised(name, words) if name else ([], "no tokenizer is known for it")
    if ids and max(ids) >= vocabulary:
        ids, lacking = [], "its tokenizer has more ids than it has embeddings"
    if ids:
        return ids, "tokens of its own tokenizer"
    as_bytes = words.encode(errors="surrogatepass")  # the command line may hand over what is not quite text
    return [byte % vocabulary for byte in as_bytes], f"UTF-8 bytes modulo its {vocabulary} ids ({lacking})"


def _encoded(tokenizer: Any, words: str, model: str) -> list[int]:
    """Ids by a tokenizer that the user's function put on the model."""
    try:
        encoded = tokenizer.encode(words)
        return [int(i) for i in getattr(encoded, "ids", encoded)]  # the library tokenizers returns an object
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise WellcondError(f"tokenizer.encode of {model} must return a list of whole numbers: {reason}") from error


def _tokenised(name: str, words: str) -> tuple[list[int], str]:
    """Ids by the tokenizer of a repository in the local cache, or of a folder; else none, and why."""
    transformers = importlib.import_module("transformers")
    folder = str(Path(name).parent) if name.endswith(".json") else name
    try:
        with offline():
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
            # From a configuration alone transformers makes a tokenizer that knows no word.
            files = tokenizer.vocab_files_names.values()
            if files and not any(_is_here(folder, file) for file in (*files, "tokenizer.json", "tokenizer.model")):
                return [], "its tokenizer is not in the local cache"
            ids = tokenizer(words, add_special_tokens=False, verbose=False)["input_ids"]
            return list(ids), "its tokenizer finds no token"
    except Exception as error:  # files of any age and kind; the report says that bytes were used, and why
        return [], f"its tokenizer cannot be loaded from the local cache: {type(error).__name__}"


def _is_here(folder: str, file: str) -> bool:
    if Path(folder).is_dir():
        return Path(folder, file).is_file()
    return isinstance(importlib.import_module("huggingface_hub").try_to_load_from_cache(folder, file), str)

"""Invented data in the formats of published sets, to try a recipe before the real data are fetched."""

from pathlib import Path


def new_file(path: Path, content: str | bytes = b"") -> Path:
    """Write a file in UTF-8, and the folders that it is in; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path

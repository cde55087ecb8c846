"""Attempts at a run, each in a folder of its own: one that was given up but still writes harms no other."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from wellcond._core.atomic import write_bytes
from wellcond.lab.training.checkpoints import FILE_NAME as CHECKPOINT

ATTEMPTS = "attempts"  # beside `runs`, in the folder of a comparison


def go_on_from(out: Path, run: Path, target: Path) -> None:
    """Copy to `target` where the run has got furthest, by its last checkpoint: in its own folder, or in an attempt.

    Args:
        out: folder of the comparison.
        run: the run's folder under it, as in `runs/00-default-37a8ee/seed-0`.
        target: folder to go on in; nothing is copied where it is already the furthest.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     out, run = Path(name), Path("runs/00-default/seed-0")
    ...     lost = out / ATTEMPTS / "call" / "node" / run
    ...     lost.mkdir(parents=True)
    ...     _ = (lost / f"checkpoint-00000010-{'0' * 16}.safetensors").write_bytes(b"")
    ...     go_on_from(out, run, out / run)
    ...     [path.name for path in (out / run).iterdir()]
    ['checkpoint-00000010-0000000000000000.safetensors']
    """
    furthest = max([target, out / run, *out.glob(f"{ATTEMPTS}/*/*/{run.as_posix()}")], key=reached)
    if furthest == target or reached(furthest) < 0:
        return
    for path in files_of(furthest):
        copied = target / path.relative_to(furthest)
        copied.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # an attempt that still writes has removed an old checkpoint
            write_bytes(copied, path.read_bytes())


def files_of(folder: Path) -> list[Path]:
    """Return the files of a run in the order to copy them.

    Checkpoints are the first, since what was measured up to one is written before it; `run.json`, which says that a
    run is done, is the last.
    """
    found = [path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".partial")]
    return sorted(found, key=lambda path: (not CHECKPOINT.fullmatch(path.name), path.name == "run.json", path))


def content_of(folder: Path) -> dict[str, bytes]:
    """Return all files of a run, to be sent: in the order of `files_of`, by their path in the folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files_of(folder)}


def write_run(folder: Path, content: dict[str, bytes]) -> None:
    """Write a run's files into its folder, each whole or not at all.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     write_run(Path(name) / "seed-0", {"metrics.jsonl": b"", "run.json": b"{}"})
    ...     list(content_of(Path(name) / "seed-0"))
    ['metrics.jsonl', 'run.json']
    """
    for name, content_of_file in content.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, content_of_file)
    for path in folder.iterdir():
        if CHECKPOINT.fullmatch(path.name) and path.name not in content:
            path.unlink()  # of an earlier comparison that was interrupted


def remove_attempts(out: Path, run: Path | None = None) -> None:
    """Remove the attempts at a run, or all; one that still writes there fails, and is of no use to anybody."""
    for folder in [out / ATTEMPTS] if run is None else list(out.glob(f"{ATTEMPTS}/*/*/{run.as_posix()}")):
        shutil.rmtree(folder, ignore_errors=True)


def reached(folder: Path) -> int:
    """Return the step of the last checkpoint, −1 without one."""
    names = (CHECKPOINT.fullmatch(path.name) for path in folder.iterdir()) if folder.is_dir() else ()
    return max((int(name[1]) for name in names if name), default=-1)

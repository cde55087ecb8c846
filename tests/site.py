"""The built site: where it is, and a server for it, since a search does not work from files."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from filelock import FileLock

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "build" / "docs"  # by `make docs`
COMPLETE = ".complete"  # written after a build without warnings


def built(shared: Path) -> Path:
    """The folder of the site: what `make docs` built, or, where sources are newer, one that all processes share."""
    files = [ROOT / "mkdocs.yml", *(ROOT / "docs").rglob("*"), *(ROOT / "src").rglob("*")]
    sources = [path for path in files if path.is_file() and path.parent.name != "__pycache__"]
    mark = KEPT / COMPLETE
    if mark.exists() and mark.stat().st_mtime > max(path.stat().st_mtime for path in sources):
        return KEPT
    with FileLock(shared / "site.lock"):
        folder = shared / "site"
        if not (folder / COMPLETE).exists():
            command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
            environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "NO_MKDOCS_2_WARNING": "1"}
            ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
            assert ran.returncode == 0, ran.stderr[-5000:]
            (folder / COMPLETE).touch()
    return folder


class Quiet(SimpleHTTPRequestHandler):
    """Serve files without a word on the terminal."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a server for the folder."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()

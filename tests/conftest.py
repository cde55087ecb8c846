"""One thread per test process, so that two fit two cores, and property tests that draw the same cases every time."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:  # the process of pytest-xdist that hands tests to the others imports this file and runs none
    from playwright.sync_api import Browser

# Helper modules that assert: pytest rewrites only test files by itself.
HELPERS = ("commands", "laboratory", "malformed", "pages", "propagation.oracles", "terminals", "training")
pytest.register_assert_rewrite(*(f"tests.{name}" for name in HELPERS))

settings.register_profile("wellcond", derandomize=True, deadline=None)
settings.load_profile("wellcond")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
gc.disable()  # nothing is garbage before the first test


def pytest_collection_finish() -> None:
    """Look for garbage in what tests make, not time and again in the libraries and the list of tests."""
    import torch

    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.fail("no browser: make debian installs it")
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-background-networking"]
        opened = playwright.chromium.launch(executable_path=path, args=arguments)
        yield opened
        opened.close()

"""One thread per test process, so that two fit two cores, and property tests that draw the same cases every time."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings
from playwright.sync_api import Browser, sync_playwright

# Helper modules that assert: pytest rewrites only test files by itself.
HELPERS = ("commands", "laboratory", "malformed", "pages", "propagation.oracles", "terminals", "training")
pytest.register_assert_rewrite(*(f"tests.{name}" for name in HELPERS))

settings.register_profile("wellcond", derandomize=True, deadline=None)
settings.load_profile("wellcond")
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.fail("no browser: make debian installs it")
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-background-networking"]
        opened = playwright.chromium.launch(executable_path=path, args=arguments)
        yield opened
        opened.close()

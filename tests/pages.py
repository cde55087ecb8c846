"""Pages in a real browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Dialog, Page


@contextmanager
def opened(browser: Browser, text: str, file: Path, **options: Any) -> Iterator[Page]:
    """The page in the browser; whatever is done to it, it must not complain, ask, or request anything but itself."""
    file.write_text(text, encoding="utf-8")
    happened: list[str] = []

    def dismiss(dialog: Dialog) -> None:
        happened.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    page = browser.new_page(viewport={"width": 1300, "height": 1000}, **options)
    page.on("console", lambda message: happened.append(f"console {message.type}: {message.text}"))
    page.on("pageerror", lambda error: happened.append(f"error: {error}"))
    page.on("dialog", dismiss)
    page.on("request", lambda request: happened.append(request.url))
    page.goto(file.as_uri())
    yield page
    page.wait_for_timeout(50)  # what is late still counts
    page.close()
    assert happened == [file.as_uri()]


def drawn(page: Page, plot: str = ".js-plotly-plot") -> list[dict[str, Any]]:
    traces: list[dict[str, Any]] = json.loads(
        page.evaluate("(plot) => JSON.stringify(document.querySelector(plot).data)", plot)
    )
    return traces

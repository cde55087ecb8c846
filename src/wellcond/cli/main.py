"""The command `wellcond`: every command of `wellcond.cli.commands`, on one application."""

from __future__ import annotations

import importlib
import pkgutil

from wellcond._core import stop_signals as stopping
from wellcond.cli import commands
from wellcond.cli.app import app as app

for _module in pkgutil.iter_modules(commands.__path__):
    importlib.import_module(f"{commands.__name__}.{_module.name}")


def main() -> None:
    """Entry point of the command `wellcond`."""
    stopping.take_over_signals()
    app(prog_name="wellcond")

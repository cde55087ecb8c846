"""`Override`: what shrinking by names and inputs by signature do not get right for one model type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.census.batch import Batch


@dataclass(frozen=True)
class Override:
    """Fields of the configuration, the class, and arguments of the call that one type needs.

    Args:
        config: set as they are, before the class checks them; a dict for a part sets fields of that part.
        part: the part of the configuration whose model is meant, where the whole cannot be called.
        model: name of the class, where the barest one is not meant.
        inputs: makes the arguments.
        adjust: changes the configuration once it is built, for what its class sets by itself.
    """

    config: dict[str, Any] = field(default_factory=dict)
    model: str = ""
    part: str = ""
    inputs: Callable[[Batch], dict[str, Any]] | None = None
    adjust: Callable[[Any], None] | None = None

"""Versions of the libraries and the machine that a result was made with."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

LIBRARIES = ("wellcond", "torch", "timm", "transformers", "accelerate", "numpy", "scipy", "scikit-learn")


def versions_and_machine() -> dict[str, dict[str, Any]]:
    """Return the versions of libraries, and the machine.

    >>> sorted(versions_and_machine())
    ['machine', 'versions']
    """
    versions = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "versions": versions,
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "processor": processor(),
            "cores": os.cpu_count() or 1,
            "accelerator": _accelerator(),
        },
    }


def processor() -> str:
    """Return the processor's name, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _accelerator() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "none"

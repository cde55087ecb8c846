"""What a measurement was made on; numbers travel with it."""

from __future__ import annotations

import datetime
import os
import platform
from importlib.metadata import version

from wellcond.lab.versions_and_machine import processor


def machine() -> dict[str, str | int]:
    """Processor, cores and versions."""
    return {
        "date": datetime.date.today().isoformat(),
        "processor": processor(),
        "cores": os.cpu_count() or 1,
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": version("torch"),
        "timm": version("timm"),
        "transformers": version("transformers"),
    }

"""What generic shrinking and generic inputs do not get right, per model type of transformers."""

from tests.census.overrides.both import BOTH
from tests.census.overrides.dense import DENSE
from tests.census.overrides.override import Override
from tests.census.overrides.pictures import PICTURES
from tests.census.overrides.series import SERIES
from tests.census.overrides.sound import SOUND
from tests.census.overrides.spoken import SPOKEN
from tests.census.overrides.text import TEXT

OVERRIDES: dict[str, Override] = {**TEXT, **SERIES, **SOUND, **SPOKEN, **PICTURES, **DENSE, **BOTH}

__all__ = ["OVERRIDES", "Override"]

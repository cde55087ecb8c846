"""What the library says about other people's models holds: each site is verified, or refused with a reason.

A sample runs with every change; all other models are long. `make census` writes what comes out to `docs/coverage.md`.
"""

from __future__ import annotations

import pytest

from tests.census import sample
from tests.census.__main__ import PAGE, members
from tests.census.survey import survey
from tests.census.transformers_models import CannotBuild

SAMPLE = [("transformers", name) for name in sample.TRANSFORMERS] + [("timm", name) for name in sample.TIMM]
OTHERS = [key for key in members() if key not in SAMPLE]


def hold(library: str, name: str) -> None:
    """Check that nothing in a model is wrong and unsaid."""
    found = survey(*members()[library, name](name))
    assert not found.raised
    assert not found.wrong
    assert not found.missed
    assert all(found.refused), "a refusal without a reason"


@pytest.mark.parametrize(("library", "name"), SAMPLE, ids=map(" ".join, SAMPLE))
def test_nothing_in_a_sample_is_silently_wrong(library: str, name: str) -> None:
    hold(library, name)


@pytest.mark.long
@pytest.mark.parametrize(("library", "name"), OTHERS, ids=map(" ".join, OTHERS))
def test_nothing_in_any_other_model_is_silently_wrong(library: str, name: str) -> None:
    try:
        hold(library, name)
    except CannotBuild as error:
        pytest.skip(f"{error}")


def test_the_sample_has_forty_models() -> None:
    assert len(SAMPLE) == len(set(SAMPLE)) == 40
    assert set(SAMPLE) <= set(members())


def test_the_page_has_every_model() -> None:
    page = PAGE.read_text()
    missing = [name for _, name in members() if f"`{name}`" not in page]
    assert not missing, "models are new: make census"

"""What `import wellcond` shows."""

from __future__ import annotations

import importlib.metadata
import types

import pytest

import wellcond as wc


def test_dir_has_the_public_names_and_no_other() -> None:
    shown = dir(wc)
    assert sorted(shown) == sorted([*wc.__all__, "__version__"])
    modules = {name for name in shown if isinstance(getattr(wc, name), types.ModuleType)}
    assert modules == {"errors", "jacobian", "optim"}


def test_the_version_is_that_of_the_package() -> None:
    assert wc.__version__ == importlib.metadata.version("wellcond")


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'wellcond' has no attribute 'no_such_name'"):
        wc.no_such_name  # noqa: B018
    with pytest.raises(ImportError):
        from wellcond import no_such_name  # type: ignore[attr-defined]  # noqa: F401
    from wellcond import testing  # a submodule is still imported

    assert testing.AttentionLayers is wc.AttentionLayers

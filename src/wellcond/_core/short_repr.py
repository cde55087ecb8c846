"""Values and classes in few words, for messages; torch and NumPy are recognised without being imported."""

from __future__ import annotations

import sys
from typing import Any

MAX_CHARACTERS = 80  # shown of a value
MAX_ITEMS = 10  # of a list or dict that is shown at all


def short_repr(value: Any) -> str:
    """Return a value in few words, whatever it is.

    >>> import numpy as np
    >>> from torch import nn
    >>> short_repr(3.5), short_repr(nn.ReLU()), short_repr(np.ones((2, 3)))
    ('3.5', 'a torch.ReLU', 'a numpy.ndarray of shape (2, 3)')
    """
    if is_a(value, "torch.Tensor") and value.ndim == 0 and not value.is_meta:
        value = value.item()
    if is_a(value, "torch.Tensor", "numpy.ndarray"):
        return f"{class_words(type(value))} of shape {tuple(value.shape)}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    simple = isinstance(value, (bool, int, float, complex, str, bytes, type(None))) or is_a(value, "numpy.generic")
    if simple or (isinstance(value, (tuple, list, set, dict)) and len(value) <= MAX_ITEMS):
        try:
            text = " ".join(repr(value).split())
        except Exception:  # of something inside, or a number too long to print
            text = ""
        if text and (len(text) <= MAX_CHARACTERS or simple):
            return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}…"
    return class_words(type(value))


def is_a(value: Any, *classes: str) -> bool:
    """Return whether a value is an instance of a class named as users import it; a library in use is in memory.

    >>> is_a(3, "torch.Tensor", "numpy.ndarray")
    False
    """
    found = (getattr(sys.modules.get(module), name, ()) for module, _, name in (cls.rpartition(".") for cls in classes))
    return isinstance(value, tuple(found))


def class_words(cls: Any) -> str:
    """Return a class in words, with its article.

    >>> class_words(int), class_words(ArithmeticError)
    ('a int', 'an ArithmeticError')
    """
    name = class_name(cls)
    return f"an {name}" if name[0] in "AEIOU" else f"a {name}"


def class_name(cls: Any) -> str:
    """Return the name of a class, with its library if that is torch or NumPy."""
    module, name = str(getattr(cls, "__module__", "")), str(getattr(cls, "__name__", cls))
    if (module, name) == ("torch.nn.modules.module", "Module"):
        return "torch.nn.Module"
    library = module.partition(".")[0]
    return f"{library}.{name}" if library in ("torch", "numpy") else name

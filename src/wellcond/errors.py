"""The exceptions users can catch: all are `WellcondError`, each says what to do next.

Each is also the built-in exception that a Python programmer would catch: `except ValueError` finds a scheme that does
not exist, `except OSError` a full disk.

>>> import torch, wellcond as wc
>>> try:
...     wc.init_(torch.nn.Linear(4, 4), "conditioned")
... except wc.errors.NoAttentionError as error:
...     print(str(error)[:30])
Linear has no attention layer.
"""

from wellcond._core.safe_text import one_line


class WellcondError(Exception):
    r"""Anything wellcond refuses to do, with the reason and the next step.

    Shown in one line, whatever the names and paths in it are; `args` has them as they came.

    >>> print(WellcondError("there is no layer '\x1b]0;title\x07'"))
    there is no layer '\x1b]0;title\x07'
    """

    def __str__(self) -> str:
        return one_line(super().__str__())


class ArgumentError(WellcondError, TypeError, ValueError):
    """An argument of the wrong type, or beyond its bounds; also a `TypeError` and a `ValueError`.

    Says which argument, what came, and what is allowed.
    """


class BatchError(WellcondError, RuntimeError):
    """A model that cannot be run on what it was given, its own exception being the cause; also a `RuntimeError`."""


class NoAttentionError(WellcondError, ValueError):
    """A model without an attention layer that an adapter claims; also a `ValueError`."""


class LayerFilterError(WellcondError, LookupError):
    """A layer pattern that matches nothing; also a `LookupError`."""


class WeightError(WellcondError, ValueError):
    """A weight that cannot be read or written: computed, quantised, empty, misshapen, infinite; also a `ValueError`."""


class SchemeError(WellcondError, ValueError):
    """An unknown scheme, an option it does not have, or a value the option does not take; also a `ValueError`."""


class InapplicableError(SchemeError):
    """A scheme that does not apply to a layer it was asked to initialise; also a `ValueError`."""


class ModelNameError(WellcondError, ValueError):
    """A model name that cannot be built; also a `ValueError`."""


class CheckpointError(WellcondError, RuntimeError):
    """A file of weights that is missing, damaged, or belongs to another model; a `RuntimeError`, as torch's are."""


class OptimizerError(WellcondError, ValueError):
    """An optimizer that does not go with a folded correction, or lacks the conditioned weights; also a `ValueError`."""


class NotFiniteError(WellcondError, ValueError):
    """Tokens or weights that are NaN or infinite, where a number is asked of them; also a `ValueError`."""


class DataError(WellcondError, RuntimeError):
    """A file of a data set that cannot be read, which every run on it meets; a `RuntimeError`, as torchvision's are."""


class StorageError(WellcondError, OSError):
    """A file that cannot be written: the disk is full, or the folder may not be written to; also an `OSError`."""


class AttentionWarning(UserWarning):
    """Something that a monitor found wrong while a model trains.

    Attributes:
        step: when.
        concern: what, where, and what to do: `.layer`, `.heads`, `.code`, `.severity`, `.text`, `.remedy`.
    """

    def __init__(self, step: int, concern: object) -> None:
        super().__init__(one_line(f"step {step}: {concern}"))
        self.step, self.concern = step, concern

"""The exceptions users can catch: all are `WellcondError`, each says what to do next.

>>> import torch, wellcond as wc
>>> try:
...     wc.init_(torch.nn.Linear(4, 4), "conditioned")
... except wc.errors.NoAttentionError as error:
...     print(str(error)[:30])
Linear has no attention layer.
"""

from wellcond.visible import one_line


class WellcondError(Exception):
    r"""Anything wellcond refuses to do, with the reason and the next step.

    Shown in one line, whatever the names and paths in it are; `args` has them as they came.

    >>> print(WellcondError("there is no layer '\x1b]0;title\x07'"))
    there is no layer '\x1b]0;title\x07'
    """

    def __str__(self) -> str:
        return one_line(super().__str__())


class ArgumentError(WellcondError, TypeError, ValueError):
    """An argument of the wrong type, or beyond its bounds; says which, what came, and what is allowed."""


class BatchError(WellcondError, RuntimeError):
    """A model that cannot be run on what it was given; the model's own exception is the cause."""


class NoAttentionError(WellcondError):
    """The model has no attention layer that an adapter claims."""


class LayerFilterError(WellcondError):
    """A layer pattern matches nothing."""


class WeightError(WellcondError):
    """A weight cannot be read or written: parametrised, quantised, empty, wrong shape, not finite."""


class SchemeError(WellcondError):
    """An unknown scheme, an option it does not have, or a value the option does not take."""


class InapplicableError(SchemeError):
    """A scheme that does not apply to a layer it was asked to initialise."""


class ModelNameError(WellcondError):
    """A model name on the command line that cannot be built."""


class CheckpointError(WellcondError):
    """A file of weights that is missing, damaged, or belongs to another model."""


class OptimizerError(WellcondError):
    """An optimizer that a folded correction cannot be combined with, or that does not hold the conditioned weights."""


class NotFiniteError(WellcondError):
    """Tokens or weights that are NaN or infinite, where a number is asked of them."""


class AttentionWarning(UserWarning):
    """Something that a monitor found wrong while a model trains.

    Attributes:
        step: when.
        concern: what, where, and what to do: `.layer`, `.heads`, `.code`, `.severity`, `.text`, `.remedy`.
    """

    def __init__(self, step: int, concern: object) -> None:
        super().__init__(one_line(f"step {step}: {concern}"))
        self.step, self.concern = step, concern


class DataError(WellcondError):
    """A file of a data set cannot be read; whatever else is trained on it will meet it, too."""


class StorageError(WellcondError):
    """A file could not be written: the disk is full, or the folder may not be written to."""

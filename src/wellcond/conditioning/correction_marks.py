"""Marks on weights that hold W + C in a model without a handle: loaded from a file that says so, or copied.

A mark is kept by the module that has the parameter, with a sum of the parameter's bits. It counts for as long as these
are the same, so whatever writes the weight (`wc.init_`, an optimizer, another checkpoint) takes the mark away.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wellcond._core.deferred_torch import is_dtensor
from wellcond.attention.paths import join
from wellcond.errors import CheckpointError

HEADER = "wellcond.conditioning"  # in the header of a safetensors file: what its weights hold, as JSON
_HELD = "_wellcond_held"  # in a module: parameter name -> Mark
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class CorrectionRecord:
    """The arguments of `wc.condition_` that made W + C, and make it again.

    >>> print(CorrectionRecord("shift", {"query": 1.0, "key": 1.0}, {"placement": "head"}))
    shift (query 1, key 1)
    """

    method: str
    strength: Mapping[str, float]
    options: Mapping[str, Any]

    def __str__(self) -> str:
        roles = ", ".join(f"{role} {value:g}" for role, value in self.strength.items())
        return f"{self.method} ({roles})"

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> CorrectionRecord:
        """Read plain values, which may come from anywhere."""
        strength = {str(role): float(value) for role, value in dict(found["strength"]).items()}
        return CorrectionRecord(str(found["method"]), strength, dict(found["options"]))


class Mark:
    """A record and the bits it belongs to; a handle's follows its weight, and a copy of that has the bits of then.

    Attributes:
        follows: the module and name of the weight, where the mark is a handle's.
    """

    def __init__(self, record: CorrectionRecord, bits: int | None, place: tuple[nn.Module, str] | None = None) -> None:
        self.record, self._bits, self.follows = record, bits, place

    @property
    def bits(self) -> int | None:
        """The sum of the bits."""
        return self._bits if self.follows is None else bits_of(self.follows[0]._parameters.get(self.follows[1]))

    def __reduce__(self) -> Any:
        return Mark, (self.record, self.bits)


def bits_of(tensor: Tensor | None) -> int | None:
    """Return the sum of a tensor's numbers as whole numbers, the same on every device; None on meta.

    Of a sharded tensor only this rank's part, since copies and state dictionaries may be made by one rank alone.
    """
    if tensor is None or tensor.is_meta:
        return None
    local = tensor.detach()
    local = (local.to_local() if is_dtensor(local) else local).contiguous()
    return int(local.view(_BITS[local.element_size()]).sum(dtype=torch.int64))


def mark_(owner: nn.Module, name: str, record: CorrectionRecord, *, follow: bool = False) -> None:
    """Note that a parameter holds W + C; `follow` while a handle knows, whatever is written."""
    if not follow and followed(owner, name):
        return  # the handle knows
    bits = None if follow else bits_of(owner._parameters.get(name))
    mark = Mark(record, bits, (owner, name) if follow else None)
    restore_marks_(owner, marks_of(owner) | {name: mark})


def unmark_(owner: nn.Module, name: str) -> None:
    """Take the mark of a parameter away."""
    restore_marks_(owner, {key: mark for key, mark in marks_of(owner).items() if key != name})


def held(owner: nn.Module, name: str, *, live: bool = False) -> CorrectionRecord | None:
    """Return the record of a parameter that is known to hold W + C, else None.

    A `live` one is written to a file as W + C whatever W is by now.
    """
    mark = marks_of(owner).get(name)
    if mark is None:
        return None
    same = live or mark.follows or (mark.bits is not None and mark.bits == bits_of(owner._parameters.get(name)))
    return mark.record if same else None


def followed(owner: nn.Module, name: str) -> bool:
    """Return whether a parameter has the mark of a handle."""
    mark = marks_of(owner).get(name)
    return mark is not None and mark.follows is not None


def marks_of(owner: nn.Module) -> dict[str, Mark]:
    """Return the marks of a module, for putting them back; see `restore_marks_`."""
    return dict(owner.__dict__.get(_HELD, {}))


def restore_marks_(owner: nn.Module, marks: Mapping[str, Mark]) -> None:
    """Put back what `marks_of` gave, with the hook that tells a state dictionary of it."""
    owner.__dict__.pop(_HELD, None)
    for key in [key for key, hook in owner._state_dict_hooks.items() if hook is tell]:
        del owner._state_dict_hooks[key]
    if marks:
        owner.__dict__[_HELD] = dict(marks)
        owner._register_state_dict_hook(tell)  # type: ignore[no-untyped-call]


def tell(owner: nn.Module, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any]) -> None:
    """Write what parameters hold into the metadata that torch keeps beside a state dictionary; a hook of `nn.Module`.

    It holds plain values, so it survives `torch.save` and `torch.load(weights_only=True)`, and adds no key.
    """
    live = owner.__dict__.get("_wellcond", {})
    records = {name: held(owner, name, live=name in live) for name in marks_of(owner)}
    found = {name: asdict(record) for name, record in records.items() if record is not None}
    if found:
        local_metadata[HEADER] = found


def header_from_metadata(state_dict: object) -> dict[str, str]:
    """Return the header of a state dictionary, from what `tell` wrote."""
    metadata = getattr(state_dict, "_metadata", None)
    if not isinstance(metadata, Mapping):
        return {}
    return header_of(
        (join(str(path), str(name)), CorrectionRecord.from_json(record))
        for path, local in metadata.items()
        for name, record in (local.get(HEADER, {}) if isinstance(local, Mapping) else {}).items()
    )


def header_of(records: Iterable[tuple[str, CorrectionRecord]]) -> dict[str, str]:
    """Return the header of a file from `(tensor name, record)`; empty if it holds nothing but W."""
    groups: dict[str, list[str]] = {}
    for name, record in records:
        groups.setdefault(json.dumps(asdict(record)), []).append(name)
    found = [json.loads(record) | {"weights": names} for record, names in groups.items()]
    return {HEADER: json.dumps(found)} if found else {}


def records_in(header: Mapping[str, str], where: object) -> dict[str, CorrectionRecord]:
    """Return the records of a file by tensor name."""
    if HEADER not in header:
        return {}
    try:
        return {
            str(name): CorrectionRecord.from_json(found)
            for found in json.loads(header[HEADER])
            for name in found["weights"]
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"the header of '{where}' says in '{HEADER}' what its weights hold, but cannot be read ({error!r}): make "
            "the file again, or take that entry out of its header"
        ) from error

"""Shrink a configuration of transformers to a model of a few thousand numbers, by the names of its fields.

Equal sizes stay equal (every model width becomes `WIDTH`), so that towers still fit together; stages keep their ratios;
grouped queries stay grouped; every kind of layer that the full model has appears at least once.
"""

from __future__ import annotations

import copy
import re
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from tests.census.shrink_fit import cover_layers, fit_rotary, fit_sections, head_width, regroup
from tests.census.shrink_rules import (
    HEADS,
    UNSET,
    WIDTH,
    moved_tokens,
    small_patch,
    smaller,
    smaller_list,
)


def default(field: Field[Any]) -> Any:
    if field.default is not MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not MISSING else None


def tiny(
    config_class: Any,
    *,
    head_dim: int = 16,
    grouped: bool = True,
    depth: int = 0,
    given: dict[str, Any] | None = None,
    usual: dict[str, Any] | None = None,
) -> Any:
    """Build the configuration of a tiny model, its parts included.

    Args:
        head_dim: width of a head where a configuration names it.
        grouped: whether fewer keys than queries are asked for where a configuration leaves that open.
        given: values that are set as they are; a dict for a part sets fields of that part.
        usual: defaults that take the place of the class's own, shrunk like them.
    """
    given = dict(given or {})
    assert is_dataclass(config_class)
    own = {f.name: default(f) for f in fields(config_class) if f.init} | (usual or {})
    parts = getattr(config_class, "sub_configs", {})
    patch = own.get("patch_size") or own.get("patch_sizes") or 16
    patch = patch if isinstance(patch, int) else max(patch)
    new: dict[str, Any] = moved_tokens(own)
    for name, value in own.items():
        if isinstance(value, bool) or name in parts or name in new:
            continue
        if isinstance(value, int):
            new[name] = small_patch(value) if name == "patch_size" else smaller(name, value, head_dim, patch)
        elif isinstance(value, (list, tuple)):
            if re.search(r"image_size$|img_size$|patch_size$", name) and len(value) == 2:
                new[name] = type(value)(small_patch(v) if "patch" in name else 4 * small_patch(patch) for v in value)
            else:
                new[name] = smaller_list(name, value)
    if isinstance(own.get("backbone"), str) and own["backbone"].startswith("resnet"):
        new["backbone"] = "resnet18"  # the smallest with the same interface
    if grouped and "kv_lora_rank" not in own:
        regroup(own, new)
    if own.get("head_dim", 0) is None and head_dim == WIDTH // HEADS:
        new["head_dim"] = head_dim
    if "qk_rope_head_dim" in own and own.get("head_dim") is not None:
        new["head_dim"] = new["qk_rope_head_dim"]
    cover_layers(config_class, own, new)
    if isinstance(own.get("rope_parameters"), dict):
        new["rope_parameters"] = copy.deepcopy(own["rope_parameters"])
        fit_sections(new["rope_parameters"], head_width({**own, **new, **given}) or head_dim)
    for name, value in UNSET.items():
        if name in own and own[name] is None:
            new[name] = value
    for name in parts:
        part_class, by_whole = part_defaults(config_class, name, given.get(name))
        if part_class is not None and depth < 4:
            wanted = {k: v for k, v in (given.pop(name, None) or {}).items() if k != "model_type"}
            new[name] = tiny(
                part_class, head_dim=head_dim, grouped=grouped, depth=depth + 1, given=wanted, usual=by_whole
            )
    new.update(given)
    new = {**(usual or {}), **new}
    return fit_rotary(config_class(**new))


def part_defaults(config_class: Any, name: str, given: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
    """Return the class of a part's configuration, and what the whole sets in it against that class's own defaults."""
    from transformers import CONFIG_MAPPING

    named = (given or {}).get("model_type")
    if named:
        return CONFIG_MAPPING[named], {}
    try:
        part = getattr(config_class(), name, None)
    except Exception:  # a configuration that cannot be built without its parts: its class may name them
        part = None
    if part is None or not is_dataclass(part):
        direct = config_class.sub_configs[name]
        return (direct, {}) if is_dataclass(direct) and getattr(direct, "model_type", "") else (None, {})
    plain = {f.name: default(f) for f in fields(part) if f.init}
    set_here = {k: vars(part).get(k, v) for k, v in plain.items()}
    # A list in the place of a number is derived, and would not fit the smaller model.
    set_here = {k: v for k, v in set_here.items() if type(v) is type(plain[k]) or isinstance(v, str)}
    return type(part), {k: v for k, v in set_here.items() if v != plain[k]}

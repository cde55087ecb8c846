"""Make the parts of a shrunk configuration fit each other again: groups, kinds of layers, rotary sections."""

from __future__ import annotations

import re
from typing import Any

from tests.census.shrink_rules import KINDS_OF_LAYERS, KV_HEADS


def regroup(own: dict[str, Any], new: dict[str, Any]) -> None:
    """Keep fewer key heads than query heads where the configuration has fewer, or leaves it open."""
    for name in own:
        if re.search(r"(key_value|kv)_(attention_)?heads$", name) and own.get("num_attention_heads"):
            full = own["num_attention_heads"]
            if isinstance(full, int) and (own[name] is None or (isinstance(own[name], int) and 1 < own[name] < full)):
                new[name] = KV_HEADS


def cover_layers(config_class: Any, own: dict[str, Any], new: dict[str, Any]) -> None:
    """Let every kind of layer of the full model appear, two layers at least."""
    for name in KINDS_OF_LAYERS:
        if name not in own or "num_hidden_layers" not in own:
            continue
        try:
            kinds = list(getattr(config_class(), name) or ())
        except Exception:  # a configuration that cannot be built without its parts says nothing about its layers
            continue
        if kinds and all(isinstance(k, str) for k in kinds):
            distinct = list(dict.fromkeys(kinds))
            new[name] = distinct if len(distinct) > 1 else distinct * 2
            new["num_hidden_layers"] = max(new.get("num_hidden_layers", 0), len(new[name]))
    for name in KINDS_OF_LAYERS:
        if name in new and isinstance(new[name], list) and "num_hidden_layers" in new:
            new[name] = (new[name] * new["num_hidden_layers"])[: new["num_hidden_layers"]]


def fit_rotary(config: Any) -> Any:
    """Let the sections of a rotary embedding add up to half of the small head again."""
    rope = vars(config).get("rope_parameters")
    width = head_width(vars(config))
    if isinstance(rope, dict) and width:
        fit_sections(rope, width)
    return config


def head_width(values: dict[str, Any]) -> int:
    heads, hidden = values.get("num_attention_heads"), values.get("hidden_size")
    named = values.get("head_dim")
    if isinstance(named, int):
        return named
    return hidden // heads if isinstance(heads, int) and isinstance(hidden, int) else 0


def fit_sections(rope: dict[str, Any], width: int) -> None:
    for one in [rope, *(v for v in rope.values() if isinstance(v, dict))]:
        sections = one.get("mrope_section") or ((1, 1, 1) if "rope_type" in one else ())
        if sections:
            half = int(width * one.get("partial_rotary_factor", 1.0)) // 2
            if sum(sections) == half:
                continue
            first = max(1, half // len(sections))
            one["mrope_section"] = [half - first * (len(sections) - 1)] + [first] * (len(sections) - 1)

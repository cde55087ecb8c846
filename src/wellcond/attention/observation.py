"""Layers of a model while one batch verifies them: what rebuilds each, what replaces it, what is left out and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from wellcond.attention.blocks import find_blocks
from wellcond.attention.capture import capture
from wellcond.attention.layers import AttentionLayers, Unclaimed
from wellcond.attention.logit_scale import logit_scale
from wellcond.attention.own_code import as_guess, has_hooks
from wellcond.attention.paths import inside, resolve, walk
from wellcond.attention.recorded.describe import Described, repeat_queries
from wellcond.attention.recorded.discover import Discovery, Undescribable
from wellcond.attention.recorded.replay import verified_replay
from wellcond.attention.replay import Call, Replay
from wellcond.attention.roles import QKV
from wellcond.attention.undisturbed import undisturbed
from wellcond.attention.verify import Verification, check_call
from wellcond.attention.view import AttentionLayer


@dataclass(frozen=True)
class Observed:
    """Layers of a model and the first call of each on a batch, None for one that was not called.

    A call has the replay that rebuilt its output, or the reason why none did.
    """

    layers: AttentionLayers
    calls: list[Call | None]


class Observation:
    """Layers and calls of one batch while they are being verified."""

    def __init__(
        self, root: nn.Module, layers: Sequence[AttentionLayer], calls: Sequence[Call | None], *, complete: bool
    ) -> None:
        self.root, self.layers, self.calls, self.complete = root, list(layers), list(calls), complete
        self.unclaimed: list[Unclaimed] = []
        self.followed: set[str] = set()  # modules in which a recorded pass has followed an average
        for index, call in enumerate(self.calls):
            if call is not None:
                if has_hooks(call.module):  # which may change what a class computes
                    self.layers[index] = call.layer = as_guess(call.layer)
                call.verification = found = check_call(call.layer, call)
                call.replay = call.layer.replay if found and found.conclusive else None

    @property
    def refused(self) -> list[Call]:
        """Calls that nothing has rebuilt."""
        return [call for call in self.calls if call is not None and call.replay is None]

    def doubt(self, changed: list[nn.Module]) -> None:
        """Take back the replay of a guess whose module keeps something, such as keys of earlier calls."""
        for call in self.calls:
            if call is not None and call.replay is not None and call.replay.guess:
                call.replay = None if any(module in changed for module in call.module.modules()) else call.replay

    def accept(self) -> None:
        """Take a replay that has rebuilt its output, though queries hardly matter there, if its class is known."""
        for call in self.refused:
            assert call.verification is not None
            if not call.verification:
                continue
            if call.layer.replay is None or call.layer.replay.guess:
                reason = "its queries hardly matter on this batch, which shows nothing of its replay"
                call.verification = replace(call.verification, error=math.inf, detail=reason)
            else:
                call.replay = call.layer.replay

    def list_rest(self, paths: list[str]) -> None:
        """List modules in which values are averaged and of which nothing has been said."""
        said = [*(layer.path for layer in self.layers), *(item.name for item in self.unclaimed)]
        for path in dict.fromkeys(paths):
            if self.complete and path not in self.followed and not any(inside(path, one) for one in said):
                self.miss(
                    Undescribable(path, "it averages by normalised scores that the pass does not show the origin of")
                )

    def explains(self, path: str) -> bool:
        """Return whether a module lies in a layer that was rebuilt."""
        done = (call.layer.path for call in self.calls if call is not None and call.replay is not None)
        return any(inside(path, layer) for layer in done)

    def use(self, discovery: Discovery, inputs: Any) -> None:
        """Verify by the recorded steps what no replay has rebuilt; add, or replace, what the pass shows otherwise."""
        self.followed |= {site.site.softmax_module for site in discovery.described}
        self.followed |= {site.module for site in discovery.undescribable}
        missed = [site for site in discovery.undescribable if not self.explains(site.module)]
        sites = [site for site in discovery.described if not self.explains(site.site.mixture.step.module)]
        rest: list[list[Described]] = []
        for site in sites:
            together = [other for other in sites if site.shares_queries(other)]
            if together[0] is not site:  # the first speaks for all
                continue
            if not all(site.is_one_with(other) for other in together):
                reason = f"one call of it averages in {len(together)} products, of other keys, values or heads"
                missed.append(Undescribable(site.site.mixture.step.module, reason))
                continue
            if repeat_queries(together):
                reason = f"one call of it averages {len(together)} times with the same queries"
                missed.append(Undescribable(site.site.mixture.step.module, reason))
                continue
            index = next((i for i, layer in enumerate(self.layers) if same_weights(layer, site.layer)), None)
            if index is None:
                rest.append(together)
                continue
            layer = self.layers[index]
            call = self.calls[index] or Call(layer, layer.module, {})
            if call.replay is None:  # the first call of a module that was called twice
                replay, verification = verified_replay(layer, together)
                if replay is None and call.verification:
                    continue
                call.replay, call.verification = replay, verification
                known = layer.replay is not None and not layer.replay.guess
                kind = layer.kind if known else site.layer.kind  # adapters have words of their own
                own = replace(layer, kind=kind, output=site.layer.output)
                self.layers[index] = own.bind(self.root, layer.block)
                self.calls[index] = call
        if self.complete:
            self._add(rest, inputs)
        for one in dict.fromkeys(missed):
            self.miss(one)

    def _add(self, sites: list[list[Described]], inputs: Any) -> None:
        """Give each further site a layer of its own, in the place of a refused view of the same module."""
        found: list[tuple[AttentionLayer, Replay, Verification]] = []
        for together in sites:
            site = together[0]
            layer = site.layer.bind(self.root)
            if any(same_weights(layer, known) for known, _, _ in found):  # a module that was called twice
                continue
            replay, verification = verified_replay(layer, together)
            if replay is None:
                self.miss(Undescribable(site.site.mixture.step.module, verification.words))
                continue
            taken = sum(known.path == layer.name for known, _, _ in found)
            layer = replace(layer, name=f"{layer.name}#{taken + 1}") if taken else layer
            found.append((layer, replay, verification))
        if not found:
            return
        with undisturbed(self.root):
            calls = capture([layer for layer, _, _ in found], inputs)
        kept = [
            (layer, call)
            for layer, call in zip(self.layers, self.calls, strict=True)
            if (call is not None and call.replay is not None) or not any(_meet(layer, new) for new, _, _ in found)
        ]
        for (layer, replay, verification), known in zip(found, calls, strict=True):
            call = known or Call(layer, layer.module, {})
            call.replay, call.verification = replay, verification
            kept.append((layer, call))
        place = {path: index for index, (path, _) in enumerate(walk(self.root))}
        kept.sort(key=lambda pair: place[pair[0].path])
        self.layers, self.calls = [layer for layer, _ in kept], [call for _, call in kept]

    def miss(self, site: Undescribable) -> None:
        """Add the reason to the refused layers around a site, or list the site itself."""
        within = [call for call in self.refused if inside(site.module, call.layer.path)]
        self.explain(within, f"in the pass, {site.reason}")
        if not within and self.complete:
            name = type(resolve(self.root, site.module)).__name__
            self.unclaimed.append(Unclaimed(site.module, name, site.reason))

    def explain(self, calls: list[Call], reason: str) -> None:
        """Add a reason to the refusal of calls, once."""
        for call in calls:
            assert call.verification is not None
            if not call.verification and reason not in call.refusal:
                call.verification = replace(call.verification, detail=f"{call.refusal}; {reason}")

    def result(self, given: AttentionLayers) -> Observed:
        """Return the layers, each with its standing, and their calls."""
        blocks = find_blocks(self.root, self.layers)
        layers = []
        for layer, call, block in zip(self.layers, self.calls, blocks, strict=True):
            standing = layer.standing if call is None else "refused" if call.replay is None else "verified"
            reason = "" if call is None else call.refusal
            one = replace(layer.bind(self.root, layer.block or block), standing=standing, reason=reason)
            if call is not None and call.replay is not None and (call.replay.guess or call.replay is not layer.replay):
                one = replace(one, scale=logit_scale(call))
            layers.append(one)
            if call is not None:
                call.layer = one
        names = [layer.path for layer in layers]
        left = [item for item in given.unclaimed if not any(inside(name, item.name) for name in names)]
        known = {item.name for item in self.unclaimed}
        unclaimed = [*(item for item in left if item.name not in known), *self.unclaimed]
        return Observed(AttentionLayers(layers, unclaimed, filtered=given.filtered), self.calls)


def _meet(a: AttentionLayer, b: AttentionLayer) -> bool:
    return inside(a.path, b.path) or inside(b.path, a.path)


def same_weights(a: AttentionLayer, b: AttentionLayer) -> bool:
    """Return whether two views read the same numbers as Q, K and V, head by head."""
    pairs = [(getattr(a, role), getattr(b, role)) for role in QKV]
    return all((p and p.weight) == (q and q.weight) for p, q in pairs)

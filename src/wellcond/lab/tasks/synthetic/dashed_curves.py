"""Dashed curves that do not touch each other: the geometry and the drawing of Pathfinder."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

PADDLE_LENGTH, PADDLE_GAP = 2.0, 1.0  # in pixels
CURVE_DISTANCE = 2.5  # least distance between two curves, more than the gap within one: so connection can be seen
OWN_DISTANCE = 2.0  # least distance of a curve to its own earlier paddles, the last one left out
BORDER_WIDTH = 1.5
SEED_DISTANCE = 7.0  # between the beginnings of the two long curves
DIRECTIONS_TRIED, PLACES_TRIED = 16, 48  # for each paddle of a long curve, and for each short curve
PADDLE_WIDTH, DISC_RADIUS = 1.0, 1.5
PADDLE_GREY, DISC_GREY = 0.75, 1.0
OUTSIDE = -99.0  # the place of a short curve for which there is no room


@dataclass(frozen=True)
class Scene:
    """Dashed curves of some images."""

    paddles: Tensor  # `(B, paddles, 2, 2)`, begin and end of each, `(x, y)` in pixels
    curves: Tensor  # `(paddles,)`, the curve that each belongs to; 0 and 1 are the long ones

    def ends(self, curve: int) -> Tensor:
        """Return begin and end of a whole curve, `(B, 2, 2)`."""
        own = self.paddles[:, self.curves == curve]
        return torch.stack([own[:, 0, 0], own[:, -1, 1]], 1)


def grow_curves(
    batch: int, generator: torch.Generator, *, size: int, paddles: int, distractors: int, short: int
) -> Scene:
    """Grow two long curves in turn, then put short ones where there is room; fewer images than asked for succeed.

    Each paddle turns by an angle Δ of density ∝ cos²Δ from the one before, and is the first of some tries that keeps
    its distance. After D. Linsley et al., arXiv 1805.08315, whose generator has the same sizes.

    >>> scene = grow_curves(8, torch.Generator().manual_seed(0), size=32, paddles=6, distractors=2, short=3)
    >>> scene.paddles.shape[1:], scene.curves.tolist()
    (torch.Size([18, 2, 2]), [0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 2, 2, 2, 3, 3, 3])
    """
    grown = torch.zeros(batch, 0, 2, 2, dtype=torch.float32)
    for step in range(2 * paddles):
        own = torch.arange(step) % 2 == step % 2
        if step < 2:
            tries = _begun(len(grown), DIRECTIONS_TRIED, size, generator, around=grown[:, 0] if step else None)
        else:
            tries = _continued(grown[:, -2, None].expand(-1, DIRECTIONS_TRIED, -1, -1), generator)
        worth = _fits(tries[:, :, None], grown, own, size) * (1 + _room(tries, grown, size))
        best = tries[torch.arange(len(tries)), worth.argmax(1)]
        grown = torch.cat([grown, best[:, None]], 1)[worth.any(1)]
    for _ in range(distractors):  # a short curve is made whole and then looked for a place for
        pieces = [_begun(len(grown), PLACES_TRIED, size, generator)]
        while len(pieces) < short:
            pieces.append(_continued(pieces[-1], generator))
        tries = torch.stack(pieces, 2)
        fits = _fits(tries, grown, torch.zeros(grown.shape[1], dtype=torch.bool), size)
        best = tries[torch.arange(len(tries)), fits.int().argmax(1)]
        grown = torch.cat([grown, best.where(fits.any(1)[:, None, None, None], OUTSIDE)], 1)
    curves = [0, 1] * paddles + [2 + number for number in range(distractors) for _ in range(short)]
    return Scene(grown, torch.tensor(curves))


def draw_scene(scene: Scene, marks: Tensor, *, size: int, scale: int = 1) -> Tensor:
    """Draw grey images, uint8 `(B, size · scale, size · scale)`, antialiased; discs at the marks `(B, marks, 2)`.

    >>> scene = Scene(torch.tensor([[[[1.5, 2.5], [3.5, 2.5]]]]), torch.tensor([0]))
    >>> draw_scene(scene, torch.zeros(1, 0, 2), size=5)[0, 2]
    tensor([  0, 191, 191, 191,   0], dtype=torch.uint8)
    """
    side = (torch.arange(size * scale) + 0.5) / scale
    y, x = (grid.reshape(-1, 1) for grid in torch.meshgrid(side, side, indexing="ij"))
    images = []
    for paddles, discs in zip(scene.paddles.float(), marks.float(), strict=True):
        begin, along = paddles[:, 0], paddles[:, 1] - paddles[:, 0]
        right, down = x - begin[:, 0], y - begin[:, 1]
        part = ((right * along[:, 0] + down * along[:, 1]) / along.square().sum(-1).clamp(min=1e-9)).clamp(0, 1)
        away = (right - part * along[:, 0]).square() + (down - part * along[:, 1]).square()
        bright = PADDLE_GREY * ((PADDLE_WIDTH / 2 - away.amin(1).sqrt()) * scale + 0.5).clamp(0, 1)
        if len(discs):
            away = (x - discs[:, 0]).square() + (y - discs[:, 1]).square()
            bright = torch.maximum(bright, DISC_GREY * ((DISC_RADIUS - away.amin(1).sqrt()) * scale + 0.5).clamp(0, 1))
        images.append((bright * 255).round().to(torch.uint8).view(len(side), len(side)))
    return torch.stack(images) if images else torch.zeros(0, len(side), len(side), dtype=torch.uint8)


def _begun(batch: int, tries: int, size: int, generator: torch.Generator, around: Tensor | None = None) -> Tensor:
    """First paddles, `(B, tries, 2, 2)`: anywhere, or on a circle around the beginning of another."""
    across, down, turn = torch.rand(3, batch, tries, generator=generator, dtype=torch.float32)
    if around is None:
        begin = size * torch.stack([across, down], -1)
    else:
        begin = around[:, None, 0] + SEED_DISTANCE * _direction(2 * math.pi * across)
    return torch.stack([begin, begin + PADDLE_LENGTH * _direction(2 * math.pi * turn)], -2)


def _continued(last: Tensor, generator: torch.Generator) -> Tensor:
    """A paddle after each of `(B, tries, 2, 2)`."""
    radius, angle = torch.rand(2, *last.shape[:2], generator=generator, dtype=torch.float32)
    # cos²Δ dΔ = √(1 − s²) ds with s = sin Δ: the distribution of a coordinate of a point in a disc.
    turn = (radius.sqrt() * (2 * math.pi * angle).cos()).asin()
    heading = _heading(last)
    begin = last[..., 1, :] + PADDLE_GAP * _direction(heading + turn / 2)
    return torch.stack([begin, begin + PADDLE_LENGTH * _direction(heading + turn)], -2)


def _fits(tries: Tensor, grown: Tensor, own: Tensor, size: int) -> Tensor:
    """Which tries `(B, tries, paddles, 2, 2)` stay inside and keep their distance, `(B, tries)`."""
    inside = ((tries >= BORDER_WIDTH) & (tries <= size - BORDER_WIDTH)).flatten(2).all(2)
    if not grown.shape[1]:
        return inside
    least = torch.where(own, OWN_DISTANCE, CURVE_DISTANCE)
    if own.any():
        least[own.nonzero().max()] = 0.0  # the paddle that is continued
    new, old = _points(tries).flatten(1, 3), _points(grown).flatten(1, 2)
    apart = (_distances(new, old) >= least.repeat_interleave(3)).all(2)
    return inside & apart.view(*tries.shape[:2], 3 * tries.shape[2]).all(2)


def _room(tries: Tensor, grown: Tensor, size: int) -> Tensor:
    """Count the free ones of three ways on from each try, `(B, tries)`: without looking ahead most curves get stuck."""
    ahead = _heading(tries)[..., None] + torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float32)
    points = tries[..., 1:, :] + (PADDLE_GAP + PADDLE_LENGTH) * _direction(ahead)
    inside = ((points >= BORDER_WIDTH) & (points <= size - BORDER_WIDTH)).all(-1)
    if grown.shape[1]:
        away = _distances(points.flatten(1, 2), _points(grown).flatten(1, 2)).amin(2)
        inside &= (away >= CURVE_DISTANCE).view(inside.shape)
    return inside.sum(-1)


def _distances(some: Tensor, others: Tensor) -> Tensor:
    return torch.cdist(some, others, compute_mode="donot_use_mm_for_euclid_dist")


def _points(paddles: Tensor) -> Tensor:
    """Begin, middle and end, `(…, 3, 2)`."""
    return torch.stack([paddles[..., 0, :], paddles.mean(-2), paddles[..., 1, :]], -2)


def _heading(paddles: Tensor) -> Tensor:
    along = paddles[..., 1, :] - paddles[..., 0, :]
    return torch.atan2(along[..., 1], along[..., 0])


def _direction(angle: Tensor) -> Tensor:
    return torch.stack([angle.cos(), angle.sin()], -1)

"""Views of real models: each is held to a perturbation of every head, and rebuilds what the model computed."""

from __future__ import annotations

import pytest
import torch

from tests.attention.recorded.models import built, entries_moved, rebuilt_error
from wellcond.attention.recorded.discover import discover

# Latent, fused by heads, grouped, positional, windowed, channel attention; each with the sites of its tiny member.
SITES = {
    "deepseek_v3": 2,
    "mpt": 2,
    "deberta": 2,
    "deberta_v2": 2,
    "codegen": 2,
    "gptj": 2,
    "dbrx": 2,
    "llama": 2,
    "llama4": 2,
    "gpt_oss": 2,
    "qwen3_next": 1,
    "xlnet": 2,
    "funnel": 4,
    "longformer": 2,
    "albert": 2,
    "bart": 3,
    "convit_tiny": 2,
    "nest_tiny": 2,
    "samvit_base_patch16": 2,
    "edgenext_xx_small": 3,
    "cait_xxs24_224": 3,
    "xcit_nano_12_p16_224": 4,
    "vit_tiny_patch16_224": 2,
    "mvitv2_tiny": 2,
    "lilt": 4,
}
ROUNDING = 1e-5  # of single precision, through the few products of one site


@pytest.mark.parametrize("name", SITES)
def test_every_site_is_rebuilt_from_its_view(name: str) -> None:
    model, inputs = built(name)
    found = discover(model, inputs)
    assert [u.reason for u in found.undescribable] == []
    assert len(found.described) == SITES[name]
    assert found.described[0].site.origins.unfollowed == []
    for described in found.described:
        assert rebuilt_error(described, model) < ROUNDING, described.layer.name


@pytest.mark.parametrize("name", [n for n in SITES if n not in ("albert", "mvitv2_tiny")])
def test_noise_in_one_head_of_the_view_moves_that_head_alone(name: str) -> None:
    model, inputs = built(name)
    described = discover(model, inputs).described[-1]
    layer = described.layer.bind(model)
    for role in ("query", "key", "value"):
        heads = getattr(described.site, role).head
        for head in range(getattr(layer, role).heads):
            moved = entries_moved(described, lambda: discover(model, inputs).described[-1], layer, role, head)
            assert moved == set((heads == head).nonzero().flatten().tolist()), (role, head)


@torch.no_grad()
def test_the_output_projection_reads_what_its_head_mixed() -> None:
    model, inputs = built("mpt")
    described = discover(model, inputs).described[0]
    layer = described.layer.bind(model)
    assert layer.output is not None
    mixed = described.site.mixture.result[described.site.head.argsort(stable=True)].unflatten(0, (4, 2))
    wanted = torch.einsum("hbnd,hed->bne", mixed, layer.output.read())
    result = next(s.step.result for s in described.site.origins.sources if s.step.module == "blocks.0.attn.out_proj")
    assert torch.allclose(result.reshape(wanted.shape), wanted, atol=1e-5)

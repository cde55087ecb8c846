"""Adapters: the only place that names foreign classes. The first that claims a module wins; `generic` is last."""

from wellcond.attention.adapters import generic, lab, timm, torch_nn, torchvision, transformers

ADAPTERS = (
    torch_nn.describe,
    torchvision.describe,
    timm.describe,
    transformers.describe,
    lab.describe,
    generic.describe,
)

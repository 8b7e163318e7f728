"""The laws of trainables."""

from __future__ import annotations

import torch
from torch import Tensor

from cotune.backbone import Backbone, Loaded
from cotune.backbone.bind import bind
from cotune.core.contracts import Trainable
from cotune.core.part import Capability
from cotune.core.spec import Spec
from cotune.core.state import Personal, Theta, digest
from cotune.core.view import NamedTensors
from cotune.laws.toy import same

DECODER, ENCODER = "random:llama?layers=2&hidden=16&heads=2", "random:bert?layers=2&hidden=16&heads=2"


def _refs(part: Trainable) -> tuple[str, ...]:
    """The backbones that a part is tried on."""
    return (DECODER,) if Capability.DECODER in part.needs else (DECODER, ENCODER)


def _attached(part: Trainable, ref: str, seed: int, share: str = "all") -> tuple[Loaded, Theta, Personal, Spec]:
    backbone = Backbone(ref=ref).load("classification", 2, seed=5)
    return (backbone, *part.attach(backbone, seed, share))


def _logits(backbone: Loaded, named: NamedTensors, spec: Spec) -> Tensor:
    ids = torch.arange(10, 22).reshape(2, 6)
    with torch.no_grad(), bind(backbone.model, named, spec) as bound:
        logits: Tensor = bound(named, input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    return logits


def is_derived(part: Trainable) -> None:
    """Its start is a function of the seed: both sides derive the same theta, whatever was drawn before."""
    for ref in _refs(part):
        first = _attached(part, ref, seed=1)
        torch.rand(3)
        second = _attached(part, ref, seed=1)
        same("theta", second[1].sha256(), first[1].sha256())
        same("spec", second[3].digest, first[3].digest)


def says_what_it_trains(part: Trainable) -> None:
    """Its table, its tensors and the model's parameters agree in names and shapes, and `none` shares nothing."""
    for ref in _refs(part):
        backbone, theta, personal, spec = _attached(part, ref, seed=1)
        own = {**theta, **personal}
        same("names", sorted(own), sorted(spec.names))
        parameters = dict(backbone.model.named_parameters())
        for entry in spec:
            same(f"shape of {entry.name}", tuple(own[entry.name].shape), entry.shape)
            same(f"parameter {entry.name}", tuple(parameters[entry.name].shape), entry.shape)
            same(f"dtype of {entry.name}", own[entry.name].dtype, torch.float32)
        scope = part.scope(spec, 1)
        assert set(scope.up) | set(scope.down) <= set(spec.shared), "something personal travels"
        assert set(scope.train) <= set(spec.names), "something unknown trains"
        same("shared under 'none'", len(_attached(part, ref, seed=1, share="none")[1]), 0)


def starts_at_the_backbone(part: Trainable) -> None:
    """At its start the model computes what the backbone computes, and afterwards the backbone is as it was."""
    for ref in _refs(part):
        plain = Backbone(ref=ref).load("classification", 2, seed=5)
        backbone, theta, personal, spec = _attached(part, ref, seed=1)
        frozen = digest(dict(backbone.model.named_parameters()))
        own = {**theta, **personal}
        assert torch.equal(_logits(backbone, own, spec), _logits(plain, {}, Spec(()))), f"other logits on {ref}"
        _logits(backbone, {name: tensor + 1 for name, tensor in own.items()}, spec)
        same("frozen parameters", digest(dict(backbone.model.named_parameters())), frozen)


def reaches_the_loss(part: Trainable) -> None:
    """Every tensor that trains reaches the loss, and nothing else in the model asks for a gradient."""
    for ref in _refs(part):
        backbone, theta, personal, spec = _attached(part, ref, seed=1)
        own = {name: tensor.clone().requires_grad_() for name, tensor in {**theta, **personal}.items()}
        asking = [name for name, parameter in backbone.model.named_parameters() if parameter.requires_grad]
        same("parameters that ask for a gradient", asking, [])
        ids = torch.arange(10, 22).reshape(2, 6)
        with bind(backbone.model, own, spec) as bound:
            loss = bound(own, input_ids=ids, attention_mask=torch.ones_like(ids)).logits.square().sum()
            train = part.scope(spec, 1).train
            grads = torch.autograd.grad(loss, [own[name] for name in train], allow_unused=True)
        unreached = [name for name, grad in zip(train, grads, strict=True) if grad is None]
        same("unreached", unreached, [])


LAWS = (
    is_derived,
    says_what_it_trains,
    starts_at_the_backbone,
    reaches_the_loss,
)

"""What low-rank training made as a plain peft folder: one rank, one alpha, no patterns, and the same bytes each time.

Readers of such folders other than peft know one rank and one alpha for all layers, and drop what else they are told.
So every scale but the common one is folded into B, ranks are padded with zeros, and what was added to the backbone is
stacked onto the factors. Weights that no file has, the head above all, come along in whole.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cotune.core.contracts import Trained
from cotune.core.errors import Code, CotuneError
from cotune.core.part import Capability
from cotune.core.seeds import torch_generator
from cotune.core.state import to_bytes
from cotune.trainable import plain

PREFIX = "base_model.model"
EXACT = 1e-6  # what folding may change of a layer's output, relative to the parts that it is a sum of
Term = tuple[float, Tensor, Tensor]


def adapter(trained: Trained) -> dict[str, bytes]:
    """`adapter_config.json` and `adapter_model.safetensors`.

    Raises:
        CotuneError: E_MODEL when the folded factors compute something else than what was trained.
    """
    layers = plain.modules(trained.backbone.model)
    carried = _carried(trained)
    adapted = [module for module in plain.changed(trained) if not _within(module, carried)]
    factors = {module: _stack(plain.terms(trained, module)) for module in adapted}
    rank = max((a.shape[0] for _, _, a in factors.values()), default=1)
    scales = {scale for scale, _, _ in factors.values()}
    scale = scales.pop() if len(scales) == 1 else 1.0
    scale = scale if (scale * rank).is_integer() else 1.0

    whole = plain.weights(trained, partial(_within, roots=carried))
    tensors = {f"{PREFIX}.{name}": tensor for name, tensor in whole.items()}
    for module, (own, b, a) in factors.items():
        b, a = _padded(b if own == scale else _times(b, own / scale), a, rank)  # noqa: PLW2901  # the same, folded
        _check(module, plain.terms(trained, module), (scale, b, a))
        tensors |= {f"{PREFIX}.{module}.lora_A.weight": a, f"{PREFIX}.{module}.lora_B.weight": b}
    config = _config(
        trained,
        r=rank,
        lora_alpha=round(scale * rank),
        target_modules=_targets(adapted, [name for name in layers if name not in factors]),
        modules_to_save=carried or None,
        fan_in_fan_out=any(plain.transposed(layers[module]) for module in adapted),
    )
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    return {
        "adapter_config.json": text.encode(),
        "adapter_model.safetensors": to_bytes(tensors, {"format": "pt"}),
    }


def _config(trained: Trained, **fields: Any) -> dict[str, Any]:
    """The configuration of peft as plain values; its sets have no order, so they are sorted."""
    from peft import LoraConfig

    config: Any = LoraConfig(
        task_type=_task_type(trained),
        base_model_name_or_path=trained.origin,
        revision=trained.revision,
        inference_mode=True,
        bias="none",
        lora_dropout=0.0,
        **fields,
    )
    return {name: sorted(value) if isinstance(value, set) else value for name, value in config.to_dict().items()}


def _task_type(trained: Trained) -> str | None:
    if Capability.CAUSAL in trained.backbone.gives:
        return "CAUSAL_LM"
    return "SEQ_CLS" if "SequenceClassification" in type(trained.backbone.model).__name__ else None


def _carried(trained: Trained) -> list[str]:
    """Modules that come along in whole: the head, and whatever else no file has."""
    head = {name.partition(".")[0] for name in trained.backbone.head}
    return sorted(head | {name.rpartition(".")[0] for name in trained.backbone.drawn})


def _within(name: str, roots: Sequence[str]) -> bool:
    return any(name == root or name.startswith(f"{root}.") for root in roots)


def _targets(adapted: Sequence[str], others: Sequence[str]) -> list[str]:
    """For each adapted module the shortest end of its name that no other module has; sorted."""
    ends = {end for other in others for end in _ends(other)}
    return sorted({next(end for end in _ends(name) if end not in ends) for name in adapted})


def _ends(name: str) -> list[str]:
    """`c`, `b.c`, `a.b.c` of `a.b.c`."""
    parts = name.split(".")
    return [".".join(parts[start:]) for start in reversed(range(len(parts)))]


def _stack(terms: Sequence[Term]) -> Term:
    """Several products as one: their ranks stacked, or a dense matrix beside an identity where that is smaller."""
    if len(terms) == 1:
        return terms[0]
    b = torch.cat([_times(b, scale) for scale, b, _ in terms], dim=1)
    a = torch.cat([a for _, _, a in terms], dim=0)
    d_out, d_in = b.shape[0], a.shape[1]
    if a.shape[0] <= min(d_out, d_in):
        return 1.0, b, a
    dense: Tensor = torch.stack([scale * (b.double() @ a.double()) for scale, b, a in terms]).sum(0).float()
    return 1.0, *plain.factored(dense)


def _times(b: Tensor, scale: float) -> Tensor:
    return (b.double() * scale).float()


def _padded(b: Tensor, a: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    more = rank - a.shape[0]
    return torch.cat([b, b.new_zeros(b.shape[0], more)], dim=1), torch.cat([a, a.new_zeros(more, a.shape[1])], dim=0)


def _check(module: str, terms: Sequence[Term], folded: Term) -> None:
    """Refuse factors that differ from what they were folded from, on one input."""
    x = torch.randn(folded[2].shape[1], generator=torch_generator(0), dtype=torch.float64)
    parts = [_applied(term, x) for term in terms]
    got, expected = _applied(folded, x), torch.stack(parts).sum(0)
    size = sum(float(part.norm()) for part in parts)
    error = float((got - expected).norm())
    if not error <= EXACT * size:
        raise CotuneError(
            Code.MODEL,
            "the folded factors compute something else",
            where=module,
            got=f"a difference of {error / size if size else error:.1e}",
            expected=f"at most {EXACT:.0e}",
        )


def _applied(term: Term, x: Tensor) -> Tensor:
    scale, b, a = term
    return scale * (b.double() @ (a.double() @ x))

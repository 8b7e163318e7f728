from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cotune.backbone import Backbone
from cotune.core.errors import CotuneError
from cotune.trainable import Memory
from cotune.trainable.memory import Rules, chunked, scan
from cotune.trainable.memory.fused import check_kernel
from cotune.trainable.memory.rule import Pair


def rounded(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor | None = None, state: Tensor | None = None
) -> Pair:
    return scan(q.bfloat16(), k.bfloat16(), v.bfloat16(), beta, decay, state)


def scaled(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor | None = None, state: Tensor | None = None
) -> Pair:
    return chunked(q * q.shape[-1] ** -0.5, k, v, beta, decay, state)


def stateless(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor | None = None, state: Tensor | None = None
) -> Pair:
    return chunked(q, k, v, beta, decay)


def undecayed(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor | None = None, state: Tensor | None = None
) -> Pair:
    return chunked(q, k, v, beta, None, state)


def test_a_kernel_that_only_rounds_its_inputs_is_believed() -> None:
    check_kernel(rounded, torch.device("cpu"))


@pytest.mark.parametrize("wrong", [scaled, stateless, undecayed])
def test_a_kernel_that_computes_something_else_is_found_out(wrong: object) -> None:
    with pytest.raises(CotuneError, match="computes something else"):
        check_kernel(wrong, torch.device("cpu"))  # type: ignore[arg-type]


def test_the_fused_kernel_is_never_chosen_silently_and_refused_where_it_cannot_run() -> None:
    backbone = Backbone(ref="random:llama").load("causal", 0, seed=1)
    with pytest.raises(CotuneError, match="cannot run here"):
        Memory(rules=Rules(kernel="fla"), factors=False).attach(backbone, 0, "all")
    for fields in ({"rule": "titans"}, {"rule": "hebbian"}, {"beta": "vector"}):
        with pytest.raises(ValueError, match="kernel 'fla'"):
            Rules.model_validate({"kernel": "fla", **fields})

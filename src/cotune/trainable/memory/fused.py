"""The public fused kernels for GPUs (fla-core, extra `fla`), tried against our own form before they are believed.

They round q, k and v to bfloat16 and so give other bits; which kernel runs is therefore an option of the method, part
of the experiment's hash, and clients with another one are refused like clients of another run. Nothing chooses it by
itself.

Layout there: (batch, tokens, heads, width), states transposed (batch, heads, d_k, d_v), one state a query head, and
reads scaled by d_k^-½ unless told otherwise; there is no step size by channel, and no momentum.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import torch
from torch import Tensor

from cotune.core.errors import Code, CotuneError
from cotune.core.seeds import torch_generator
from cotune.trainable.memory.chunkwise import chunked
from cotune.trainable.memory.rule import Pair

TOLERANCE = 0.03  # relative: three times what rounding inputs to bfloat16 costs with unit keys
Kernel = Callable[[Tensor, Tensor, Tensor, Tensor, "Tensor | None", "Tensor | None"], Pair]


def fused(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor | None = None, state: Tensor | None = None
) -> Pair:
    """`chunked(...)` of the delta rule by fla's kernels, q, k and v rounded to bfloat16, the state in float32."""
    from fla.ops.delta_rule import chunk_delta_rule
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    group = q.shape[1] // k.shape[1]
    q, k, v = (x.transpose(1, 2).bfloat16() for x in (q, _each(k, group), _each(v, group)))
    steps = _each(beta, group).transpose(1, 2).float()
    start = None if state is None else _each(state, group).mT.contiguous()
    given = {"scale": 1.0, "initial_state": start, "output_final_state": True}
    if decay is None:
        o, after = chunk_delta_rule(q, k, v, steps, **given)
    else:
        logs = _each(decay, group).transpose(1, 2).float().log()
        o, after = chunk_gated_delta_rule(q, k, v, g=logs, beta=steps, **given)
    return o.transpose(1, 2).float(), after[:, ::group].mT.float()  # a group's states are one and the same


def check_kernel(kernel: Kernel, device: torch.device) -> None:
    """Raise E_MODEL unless a kernel agrees with our form: decayed or not, from a state or none, in groups or not."""
    draw = torch_generator(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw).to(device)

    for heads, queries in ((2, 2), (1, 3)):
        q, k = (torch.nn.functional.normalize(normal(2, n, 80, 64), dim=-1) for n in (queries, heads))
        v, beta = normal(2, heads, 80, 64), normal(2, heads, 80).sigmoid()
        for decay in (None, (normal(2, heads, 80) + 4).sigmoid()):
            for state in (None, normal(2, heads, 64, 64)):
                ours, theirs = (form(q, k, v, beta, decay, state) for form in (chunked, kernel))
                errors = [float((b - a).norm() / a.norm()) for a, b in zip(ours, theirs, strict=True)]
                if not max(errors) <= TOLERANCE:
                    raise CotuneError(
                        Code.MODEL,
                        "the fused kernel computes something else here",
                        where="trainable.rules.kernel",
                        got=f"a relative error of {max(errors):.1e}",
                        expected=f"at most {TOLERANCE:g}",
                        fix='set kernel = "torch"',
                    )


def check_installed(device: torch.device) -> None:
    """Raise E_MODEL where fla cannot run: no GPU, or not installed."""
    there = importlib.util.find_spec("fla") is not None
    if device.type != "cuda" or not there:
        raise CotuneError(
            Code.MODEL,
            "the fused kernel cannot run here",
            where="trainable.rules.kernel",
            got=f"device {device.type}" + ("" if there else ", fla not installed"),
            expected="a CUDA device and fla-core",
            fix="pip install 'cotune[fla]'" if device.type == "cuda" else 'set kernel = "torch"',
        )


def _each(x: Tensor, group: int) -> Tensor:
    """Each head `group` times, for the queries that share it."""
    return x if group == 1 else x.repeat_interleave(group, dim=1)

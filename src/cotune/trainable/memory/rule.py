"""The memory's rule, token by token: what every faster form has to equal.

    delta     S_t = a_t S_{t-1} + (v_t − a_t S_{t-1} k_t) (β_t ⊙ k_t)ᵀ      the error is taken after the decay
    hebbian   S_t = a_t S_{t-1} + v_t (β_t ⊙ k_t)ᵀ
    titans    Z_t = m_t Z_{t-1} + (v_t − S_{t-1} k_t) (β_t ⊙ k_t)ᵀ          the error is taken before the decay
              S_t = a_t S_{t-1} + Z_t

and o_t = S_t q_t: a token reads what it has just written. Shapes, in all of this folder:

    q (batch, hq, T, d_k), hq a multiple of h: query head j reads the state of head j // (hq // h)
    k (batch, h, T, d_k); v (batch, h, T, d_v); beta (batch, h, T), or by channel (batch, h, T, d_k)
    decay, momentum (batch, h, T) in [0, 1]; state (batch, h, d_v, d_k); o (batch, hq, T, d_v)

Arithmetic, state and output are float32, or float64 where q, k or v is. No input is written to.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from cotune.core.errors import Code, CotuneError

Rule = Literal["delta", "hebbian"]
Pair = tuple[Tensor, Tensor]


class Tokens(NamedTuple):
    """Inputs in the dtype of the arithmetic.

    Attributes:
        q: (batch, hq, T, d_k).
        k: (batch, h, T, d_k).
        v: (batch, h, T, d_v).
        beta: (batch, h, T, 1 or d_k).
        decay: (batch, h, T, 1), or None for 1.
        state: (batch, h, d_v, d_k).
    """

    q: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor
    decay: Tensor | None
    state: Tensor


def scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    decay: Tensor | None = None,
    state: Tensor | None = None,
    rule: Rule = "delta",
) -> Pair:
    """`(S_t q_t for every t, S_T)` by the definition, one token after the other.

    Raises:
        CotuneError: E_SHAPE when shapes do not fit each other.
    """
    given = tokens(q, k, v, beta, decay, state)
    now, read = given.state, []
    decays = [None] * k.shape[2] if given.decay is None else given.decay.unbind(2)
    # unbind, not x[:, :, t]: the gradient of every index would be a whole zero tensor, which is quadratic in T.
    for q_t, k_t, v_t, w_t, a_t in zip(*_steps(given), decays, strict=True):
        if a_t is not None:
            now = a_t[..., None] * now
        target = v_t if rule == "hebbian" else v_t - (now @ k_t[..., None])[..., 0]
        now = now + target[..., None] * w_t[..., None, :]
        read.append(q_t @ now.mT)
    return torch.stack(read, 3).flatten(1, 2), now


def titans(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    momentum: Tensor,
    decay: Tensor | None = None,
    state: Pair | None = None,
    valid: Tensor | None = None,
) -> tuple[Tensor, Pair]:
    """`(S_t q_t for every t, (S_T, Z_T))` of the rule with momentum, one token after the other.

    Args:
        q: and k, v, beta, as at the top of this file.
        k: (batch, h, T, d_k).
        v: (batch, h, T, d_v).
        beta: learning rates.
        momentum: (batch, h, T), what is kept of the last change.
        decay: (batch, h, T), what is kept of the state; None for 1.
        state: (S, Z), both (batch, h, d_v, d_k); zeros by default.
        valid: (batch, T) bool; where it is False, S and Z stay as they are. A zero beta alone would not do: S would
            take Z in once more.

    Raises:
        CotuneError: E_SHAPE when shapes do not fit each other.
    """
    given, m, now, change = titans_tokens(q, k, v, beta, momentum, decay, state, valid)
    decays = torch.ones_like(m) if given.decay is None else given.decay[..., 0]
    real = torch.ones_like(m, dtype=torch.bool) if valid is None else valid[:, None].expand(m.shape)
    read = []
    for q_t, k_t, v_t, w_t, a_t, m_t, is_real in zip(
        *_steps(given), *(x[..., None, None].unbind(2) for x in (decays, m, real)), strict=True
    ):
        target = v_t - (now @ k_t[..., None])[..., 0]
        changed = m_t * change + target[..., None] * w_t[..., None, :]
        now, change = torch.where(is_real, a_t * now + changed, now), torch.where(is_real, changed, change)
        read.append(q_t @ now.mT)
    return torch.stack(read, 3).flatten(1, 2), (now, change)


def _steps(given: Tokens) -> tuple[tuple[Tensor, ...], ...]:
    """q, k, v and the writing keys, token by token; the queries of a state are rows of one matrix."""
    rows = given.q.reshape(len(given.k), given.k.shape[1], -1, *given.q.shape[2:])
    return rows.unbind(3), given.k.unbind(2), given.v.unbind(2), (given.beta * given.k).unbind(2)


def compute_dtype(*given: Tensor) -> torch.dtype:
    """float64 where one of these is, else float32."""
    return torch.float64 if any(x.dtype == torch.float64 for x in given) else torch.float32


def tokens(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor | None, state: Tensor | None) -> Tokens:
    """The inputs, checked and in the dtype of the arithmetic.

    Raises:
        CotuneError: E_SHAPE when shapes do not fit each other.
    """
    now, dtype = checked(q, k, v, beta, decay, state), compute_dtype(q, k, v)
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    rate = (beta if beta.ndim == 4 else beta[..., None]).to(dtype)
    return Tokens(q, k, v, rate, None if decay is None else decay[..., None].to(dtype), now.to(dtype))


def titans_tokens(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    momentum: Tensor,
    decay: Tensor | None,
    state: Pair | None,
    valid: Tensor | None,
) -> tuple[Tokens, Tensor, Tensor, Tensor]:
    """(tokens, momentum, S, Z), checked and in the dtype of the arithmetic.

    Raises:
        CotuneError: E_SHAPE when shapes do not fit each other.
    """
    given = tokens(q, k, v, beta, decay, None if state is None else state[0])
    expected = {"momentum": tuple(k.shape[:3]), "Z": tuple(given.state.shape), "valid": (k.shape[0], k.shape[2])}
    for name, x in (("momentum", momentum), ("Z", None if state is None else state[1]), ("valid", valid)):
        if x is not None and tuple(x.shape) != expected[name]:
            _refuse(name, tuple(x.shape), expected[name])
    change = torch.zeros_like(given.state) if state is None else state[1].to(given.k.dtype)
    return given, momentum.to(given.k.dtype), given.state, change


def checked(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor | None, state: Tensor | None) -> Tensor:
    """The state to start from, zeros where none is given, if the shapes fit each other.

    Raises:
        CotuneError: E_SHAPE, with the input that does not fit.
    """
    if k.ndim != 4 or k.shape[2] == 0:
        _refuse("k", tuple(k.shape), "(batch, h, T, d_k) with T of 1 or more")
    batch, heads, length, d_k = k.shape
    if q.ndim != 4 or (q.shape[0], *q.shape[2:]) != (batch, length, d_k) or q.shape[1] == 0 or q.shape[1] % heads:
        _refuse("q", tuple(q.shape), f"({batch}, a multiple of {heads}, {length}, {d_k})")
    if v.ndim != 4 or tuple(v.shape[:3]) != (batch, heads, length):
        _refuse("v", tuple(v.shape), f"({batch}, {heads}, {length}, d_v)")
    if tuple(beta.shape) not in ((batch, heads, length), (batch, heads, length, d_k)):
        _refuse("beta", tuple(beta.shape), f"({batch}, {heads}, {length}), or with {d_k} channels at the end")
    if decay is not None and tuple(decay.shape) != (batch, heads, length):
        _refuse("decay", tuple(decay.shape), (batch, heads, length))
    if state is None:
        return k.new_zeros(batch, heads, v.shape[-1], d_k, dtype=compute_dtype(q, k, v))
    if tuple(state.shape) != (batch, heads, v.shape[-1], d_k):
        _refuse("state", tuple(state.shape), (batch, heads, v.shape[-1], d_k))
    return state


def _refuse(name: str, got: object, expected: object) -> None:
    raise CotuneError(Code.SHAPE, "shapes of the memory's inputs do not fit", where=name, got=got, expected=expected)

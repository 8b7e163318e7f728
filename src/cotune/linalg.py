"""Low-rank algebra on factor pairs: distances, Gram matrices, truncated sums and rotations, never a whole product.

A pair (B, A), with B (d_out, r) and A (r, d_in), stands for the matrix B A; pairs of several ranks go together. What is
differentiated keeps the dtype of its inputs; everything else is float64, because sums of products cancel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from cotune.core.errors import Code, CotuneError
from cotune.core.seeds import derive, torch_generator

Factors = tuple[Tensor, Tensor]
# Where the singular values go: √σ into both factors, all into B beside A Aᵀ = I, or all into A beside Bᵀ B = I.
Split = Literal["balanced", "orthonormal-a", "orthonormal-b"]

STACKED = 96  # ranks in all up to which QR of the stacked factors is as fast as iterating on them
OVERSAMPLE = 8  # columns of a sketch beyond the rank
PASSES = 8  # most iterations
SETTLED = 2e-3  # iterating stops when the energy captured grows by less than this share of what is left
NULL = 1e-12  # a singular value below this share of the largest is rounding


def squared_distance(left: Factors, right: Factors) -> Tensor:
    """‖B A − B' A'‖² as a 0-dim tensor, in O((d_out + d_in) r²); differentiable once, in reverse.

    From B A − B' A' = [B − B', B'] [A; A − A'], where nothing large cancels when the pairs are close: expanding the
    square into three traces loses every float32 digit at gaps of 1e-4. Exactly 0 for equal pairs, with zero gradient.
    """
    value: Tensor = _SquaredDistance.apply(*_alike(left, right))[0]  # type: ignore[no-untyped-call]
    return value


def inner(left: Factors, right: Factors) -> Tensor:
    """⟨B A, B' A'⟩ = tr((Bᵀ B') (A' Aᵀ)), 0-dim float64."""
    return ((left[0].double().mT @ right[0].double()) * (left[1].double() @ right[1].double().mT)).sum()


def norm(pair: Factors) -> Tensor:
    """‖B A‖, 0-dim float64."""
    return inner(pair, pair).clamp_min(0).sqrt()


def cosine(left: Factors, right: Factors) -> Tensor:
    """⟨B A, B' A'⟩ / (‖B A‖ ‖B' A'‖), 0-dim float64; 0 where a product is 0."""
    size = norm(left) * norm(right)
    return torch.where(size > 0, inner(left, right) / size, 0.0)


def gram(pairs: Sequence[Factors]) -> Tensor:
    """⟨B_i A_i, B_j A_j⟩ of every two pairs, (K, K) float64, in O((d_out + d_in) R²) with R = Σ r_k.

    Norms, cosines, ‖Σ w B A‖² = wᵀ G w and distances of K products all follow from it.
    """
    b, a = stacked(pairs)
    products = (b.mT @ b) * (a @ a.mT)
    owner = torch.repeat_interleave(torch.tensor([pair[1].shape[0] for pair in pairs]))
    rows = products.new_zeros(len(pairs), len(products)).index_add_(0, owner, products)
    return products.new_zeros(len(pairs), len(pairs)).index_add_(1, owner, rows)


def weighted_norm(pairs: Sequence[Factors], weights: Sequence[float]) -> float:
    """‖Σ w_k B_k A_k‖, as exact as float64 sums are."""
    b, a = stacked(pairs, weights)
    return float(norm((b, a)))


def stacked(pairs: Sequence[Factors], weights: Sequence[float] | None = None) -> Factors:
    """[B_1 … B_K] (d_out, R) and [w_1 A_1; …; w_K A_K] (R, d_in) in float64: their product is Σ w_k B_k A_k.

    Raises:
        CotuneError: E_SHAPE when the pairs are not of one matrix's shape, or there is none.
    """
    shapes = {(b.shape[0], a.shape[1]) for b, a in pairs}
    if len(shapes) != 1 or any(b.shape[1] != a.shape[0] for b, a in pairs):
        got = ", ".join(f"{tuple(b.shape)} {tuple(a.shape)}" for b, a in pairs)
        raise CotuneError(Code.SHAPE, "factors of different matrices cannot be added", got=got or "none")
    scaled = [a.double() for _, a in pairs]
    if weights is not None:
        scaled = [weight * a for weight, a in zip(weights, scaled, strict=True)]
    return torch.cat([b.double() for b, _ in pairs], dim=1), torch.cat(scaled, dim=0)


def truncate(
    pairs: Sequence[Factors],
    weights: Sequence[float],
    rank: int,
    split: Split = "balanced",
    *,
    cap: float | None = None,
    restore: bool = False,
    start: Tensor | None = None,
) -> Factors:
    """The best (B, A) of a rank for Σ w_k B_k A_k, in the dtype of the pairs; d_out × d_in is never formed.

    Args:
        pairs: (B_k, A_k); ranks may differ.
        weights: w_k; they are not normalised.
        rank: of the result; directions that the sum does not have count as singular values of 0.
        split: where the singular values go.
        cap: the largest ‖Σ w_k B_k A_k‖; a longer sum is shortened to it.
        restore: multiply both factors with √(‖Σ w_k B_k A_k‖ / ‖B A‖), so that truncation costs no length.
        start: (d_in, any) columns to begin the iteration with, such as last round's A, transposed.

    Raises:
        CotuneError: E_SHAPE when the pairs do not go together.
    """
    u, sigma, v = leading(pairs, weights, rank, start=start)
    gain = 1.0
    if cap is not None or restore:
        total, kept = weighted_norm(pairs, weights), float(sigma.norm())
        sigma = sigma * (cap / total if cap is not None and total > cap else 1.0)
        gain = math.sqrt(total / kept) if restore and kept else 1.0
    b, a = factors_of(u, sigma, v, split)
    return (gain * b).to(pairs[0][0].dtype), (gain * a).to(pairs[0][1].dtype)


def leading(
    pairs: Sequence[Factors], weights: Sequence[float], rank: int, *, start: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """U (d_out, rank), σ (rank,), V (d_in, rank) in float64, with U diag(σ) Vᵀ the best of its rank for Σ w_k B_k A_k.

    While R = Σ r_k is small: QR of the stacked factors and the SVD of their R × R core, exact. Beyond: subspace
    iteration on the factors from a fixed start and `start`, until the captured energy has settled.
    """
    b, a = stacked(pairs, weights)
    if len(a) <= max(STACKED, 2 * rank):
        (q_b, r_b), (q_a, r_a) = torch.linalg.qr(b), torch.linalg.qr(a.mT)
        left, sigma, right = torch.linalg.svd(r_b @ r_a.mT, full_matrices=False)
        return _sized(q_b @ left[:, :rank], sigma[:rank], q_a @ right[:rank].mT, rank)
    single = torch.float64 if pairs[0][0].dtype is torch.float64 else torch.float32
    narrow_b, narrow_a = b.to(single), a.to(single)
    omega = probe(a.shape[1], rank, start).to(single)
    image = narrow_b @ (narrow_a @ omega)
    total = float(image[:, -OVERSAMPLE:].square().sum()) / OVERSAMPLE  # E ‖M ω‖² = ‖M‖², near enough to stop by
    basis, energy = omega, 0.0
    for _ in range(PASSES):
        basis, core = torch.linalg.qr(narrow_a.mT @ (narrow_b.mT @ _orthonormal(image)))
        image = narrow_b @ (narrow_a @ basis)
        before, energy = energy, float(torch.linalg.svdvals(core)[:rank].square().sum())
        if energy - before <= max(SETTLED * (total - energy), 1e-9 * energy):
            break
    q = _orthonormal(b @ (a @ basis.double()))
    return spectrum(q, a.mT @ (b.mT @ q), rank)


def factors_of(u: Tensor, sigma: Tensor, v: Tensor, split: Split) -> Factors:
    """(B, A) with B A = U diag(σ) Vᵀ; under `balanced` a direction of σ = 0 keeps its row of A: it can train.

    Raises:
        CotuneError: E_CONFIG for an unknown split.
    """
    match split:
        case "orthonormal-b":
            return u, sigma[:, None] * v.mT
        case "orthonormal-a":
            return u * sigma, v.mT
        case "balanced":
            root = sigma.sqrt()
            return u * root, torch.where(sigma > 0, root, 1.0)[:, None] * v.mT
    raise CotuneError(Code.CONFIG, "unknown split", got=split, expected=" | ".join(get_args(Split)))


def probe(d_in: int, rank: int, start: Tensor | None = None) -> Tensor:
    """Ω (d_in, rank + 8): the columns to look at a sum through, fixed normal numbers, the first of them `start`."""
    width = rank + OVERSAMPLE
    omega = torch.randn(d_in, width, generator=torch_generator(derive(0, "probe", d_in, width)), dtype=torch.float64)
    return omega if start is None else torch.cat([start.double()[:, :rank], omega], dim=1)[:, :width]


def range_term(pair: Factors, omega: Tensor) -> Tensor:
    """B (A Ω), float64: a client's share of Y = Σ w B (A Ω), the first of the two sums of the sketch."""
    return pair[0].double() @ (pair[1].double() @ omega)


def range_basis(y: Tensor) -> Tensor:
    """Q with orthonormal columns that span Y's: what comes down between the two sums."""
    return _orthonormal(y)


def core_term(pair: Factors, q: Tensor) -> Tensor:
    """Aᵀ (Bᵀ Q), float64: a client's share of Z = Σ w Aᵀ (Bᵀ Q), the second sum."""
    return pair[1].double().mT @ (pair[0].double().mT @ q)


def spectrum(q: Tensor, z: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """U, σ, V of Q Zᵀ at a rank, which is the sum as far as Q spans it."""
    right, sigma, left = torch.linalg.svd(z, full_matrices=False)
    return _sized(q @ left[:rank].mT, sigma[:rank], right[:, :rank], rank)


def sketched(
    pairs: Sequence[Factors],
    weights: Sequence[float],
    rank: int,
    split: Split = "balanced",
    *,
    start: Tensor | None = None,
) -> Factors:
    """`truncate` by two sums over the clients, each of one term a client: what masked sums allow, O(1) in clients."""
    omega = probe(pairs[0][1].shape[1], rank, start)
    y = sum((w * range_term(pair, omega) for w, pair in zip(weights, pairs, strict=True)), torch.zeros(()))
    q = range_basis(y)
    z = sum((w * core_term(pair, q) for w, pair in zip(weights, pairs, strict=True)), torch.zeros(()))
    b, a = factors_of(*spectrum(q, z, rank), split)
    return b.to(pairs[0][0].dtype), a.to(pairs[0][1].dtype)


def procrustes(moving: Tensor, reference: Tensor) -> Tensor:
    """R (r_k, r) that minimises ‖moving R − reference‖ with R Rᵀ = I, for moving (d, r_k) and reference (d, r ≥ r_k).

    Float64; R = U Vᵀ of movingᵀ reference = U Σ Vᵀ. What the reference does not decide stays as it is.
    """
    cross = moving.double().mT @ reference.double()
    stay = torch.eye(*cross.shape, dtype=torch.float64)
    size = float(torch.linalg.matrix_norm(cross))
    left, _, right = torch.linalg.svd(cross + (1e-9 * size or 1.0) * stay, full_matrices=False)
    rotation: Tensor = left @ right
    return rotation


class _SquaredDistance(Function):
    """With T = [B − B', B']ᵀ, W = [A; A − A'], G = T Tᵀ, H = W Wᵀ: the value is ⟨G, H⟩.

    The product's difference is D = Tᵀ W, and 2 D Aᵀ, 2 Bᵀ D, −2 D A'ᵀ, −2 B'ᵀ D are sums of blocks of G and H times T
    and W: half the work of differentiating step by step.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(b: Tensor, a: Tensor, b_ref: Tensor, a_ref: Tensor) -> tuple[Tensor, ...]:
        """The value, and T, W, G, H."""
        tall = torch.cat([(b - b_ref).mT, b_ref.mT])  # long rows make the faster Gram matrix
        wide = torch.cat([a, a - a_ref])
        g, h = tall @ tall.mT, wide @ wide.mT
        return (g * h).sum(), tall, wide, g, h

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        """Keep all but the value."""
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*output[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        """The gradients of B, A, B' and A'."""
        tall, wide, g, h = ctx.saved_tensors
        if slope is None:
            return None, None, None, None
        rank, twice, wanted = tall.shape[0] // 2, 2 * slope, ctx.needs_input_grad
        return (
            ((twice * h[:rank]) @ tall).mT if wanted[0] else None,
            (twice * (g[:rank] + g[rank:])) @ wide if wanted[1] else None,
            ((twice * (h[rank:] - h[:rank])) @ tall).mT if wanted[2] else None,
            (-twice * g[rank:]) @ wide if wanted[3] else None,
        )


def _alike(left: Factors, right: Factors) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """B, A, B', A' at the larger rank, the smaller filled up with zeros."""
    more = left[1].shape[0] - right[1].shape[0]
    if more > 0:
        right = pad(right[0], (0, more)), pad(right[1], (0, 0, 0, more))
    elif more < 0:
        left = pad(left[0], (0, -more)), pad(left[1], (0, 0, 0, -more))
    return *left, *right


def _orthonormal(columns: Tensor) -> Tensor:
    q: Tensor = torch.linalg.qr(columns).Q
    return q


def _sized(u: Tensor, sigma: Tensor, v: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """The same at exactly `rank` directions: σ filled up with 0, bases with what is orthogonal to them.

    Rounding in σ counts as 0. Signs are fixed by the largest number in each column of U, so that they do not depend on
    the path.
    """
    sigma = torch.where(sigma > NULL * sigma.max(), sigma, 0.0)
    u, v = _filled(u, rank), _filled(v, rank)
    largest = u.gather(0, u.abs().argmax(0, keepdim=True))[0]
    signs = torch.where(largest < 0, -1.0, 1.0).to(u.dtype)
    return u * signs, pad(sigma, (0, rank - len(sigma))), v * signs


def _filled(basis: Tensor, rank: int) -> Tensor:
    """(d, rank): the columns, then others orthonormal to them, then zeros where d < rank."""
    side, have = basis.shape
    if have >= rank:
        return basis
    more = min(rank, side) - have
    fresh = torch.randn(side, more, generator=torch_generator(derive(0, "fill", side, more)), dtype=torch.float64)
    for _ in range(2):  # twice is enough for orthogonality to rounding
        fresh = _orthonormal(fresh - basis @ (basis.mT @ fresh))
    return pad(torch.cat([basis, fresh], dim=1), (0, rank - have - more))

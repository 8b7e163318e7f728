"""The direction stream against integers in plain Python: the same bits by every path, in any chunks, and its sums."""

from __future__ import annotations

import math
from importlib.util import find_spec

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cotune import noise
from cotune.core.errors import Code, CotuneError
from cotune.core.seeds import derive, torch_generator
from cotune.noise import Direction, Draw, Path

PATHS = [
    pytest.param("compiled", marks=pytest.mark.skipif(find_spec("numba") is None, reason="needs the extra `fast`")),
    "numpy",
    "torch",
]
SEEDS = st.integers(0, 2**64 - 1)
STARTS = st.one_of(st.integers(0, 400), st.integers(2**32 * 128 - 300, 2**32 * 128 + 300), st.integers(0, 2**70))
SEED, STREAM = 0x0123456789ABCDEF, 5 * 2**32 + 3
# (seed, stream, block) -> words: version 1 of the stream.
KNOWN = {
    (0, 0, 0): (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    (SEED, STREAM, 0): (0x7A0EF614, 0x984CCB03, 0xD9A830F0, 0xFB2C4F7F),
    (SEED, STREAM, 1): (0xE60B54F1, 0xF9C796B8, 0x758D56C5, 0xC0560595),
    (SEED, STREAM, 2**32): (0x71D0D61D, 0xA05B9A7F, 0xE824C3B6, 0xC13D4B75),
    (2**64 - 1, 2**64 - 1, 2**64 - 1): (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
}


def philox(counter: tuple[int, ...], key: tuple[int, int]) -> tuple[int, ...]:
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b % 2**32, (a >> 32) ^ c[3] ^ k[1], a % 2**32]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return tuple(c)


def block(seed: int, stream: int, index: int) -> tuple[int, ...]:
    halves = [(x % 2**32, x >> 32) for x in (index, stream, seed)]
    return philox(halves[0] + halves[1], halves[2])


def oracle(seed: int, stream: int, start: int, count: int) -> Tensor:
    made = []
    for i in range(start, start + count):
        word = block(seed, stream, i // 128)[i % 128 // 32]
        made.append(1 - 2 * (word >> (i % 32) & 1))
    return torch.tensor(made, dtype=torch.int8)


def values(count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(count, generator=torch_generator(3), dtype=torch.float64).to(dtype)


def fresh(path: Path | None, coefficients: list[float], tensor: Tensor, start: int = 0) -> Tensor:
    ways = range(len(coefficients))
    return noise.apply_many_(
        tensor, coefficients, [SEED + i for i in ways], [STREAM + i for i in ways], start, path=path
    )


# The stream.


def test_the_rounds_are_those_of_the_published_known_answers() -> None:
    full = 2**32 - 1
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    assert philox((0,) * 4, (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert philox((full,) * 4, (full, full)) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
    assert philox(pi, (0xA4093822, 0x299F31D0)) == (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)


@pytest.mark.parametrize("path", PATHS)
def test_the_stream_is_the_committed_one(path: Path) -> None:
    for (seed, stream, index), words in KNOWN.items():
        assert block(seed, stream, index) == words
        signs = noise.signs(seed, stream, 128 * index, 128, path=path)
        assert signs.dtype is torch.int8
        bits = (1 - signs.long()) // 2
        assert tuple(int((bits[32 * j :][:32] << torch.arange(32)).sum()) for j in range(4)) == words


@pytest.mark.parametrize("path", PATHS)
@given(SEEDS, SEEDS, STARTS, st.integers(0, 300))
def test_every_path_gives_the_stream_of_the_definition(
    path: Path, seed: int, stream: int, start: int, count: int
) -> None:
    assert torch.equal(noise.signs(seed, stream, start, count, path=path), oracle(seed, stream, start, count))


@given(st.integers(0, 2**40), st.lists(st.integers(0, 500), max_size=6))
def test_any_chunking_gives_the_same_stream(start: int, sizes: list[int]) -> None:
    chunks, at = [torch.empty(0, dtype=torch.int8)], start
    for size in sizes:
        chunks.append(noise.signs(SEED, STREAM, at, size))
        at += size
    assert torch.equal(torch.cat(chunks), noise.signs(SEED, STREAM, start, sum(sizes)))


def test_the_last_elements_of_a_stream_are_there_and_none_after_them() -> None:
    end = 2**71
    for path in ("numpy", "torch"):
        assert torch.equal(noise.signs(1, 2, end - 130, 130, path=path), oracle(1, 2, end - 130, 130))
    with pytest.raises(CotuneError, match="outside the stream"):
        noise.signs(1, 2, end - 130, 131)


def test_signs_are_fair_and_streams_are_not_alike() -> None:
    count, drawn = 2**16, [noise.signs(seed, s, 0, 2**16).double() for seed in (1, 2) for s in (0, 1, 2**32)]
    gram = torch.stack(drawn) @ torch.stack(drawn).T / count
    assert float((gram - torch.eye(len(drawn))).abs().max()) < 5 / math.sqrt(count)
    assert max(abs(float(signs.mean())) for signs in drawn) < 5 / math.sqrt(count)


@pytest.mark.parametrize(("seed", "stream"), [(-1, 1), (2**64, 1), (1, -1), (1, 2**64)])
def test_a_seed_or_a_stream_that_is_no_unsigned_64_bit_integer_is_refused(seed: int, stream: int) -> None:
    with pytest.raises(CotuneError) as drawn:
        noise.signs(seed, stream, 0, 1)
    with pytest.raises(CotuneError) as added:
        noise.apply_(torch.zeros(1), 1.0, seed, stream)
    assert drawn.value.code is added.value.code is Code.SEED


# Adding.


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(st.integers(0, 700), STARTS, st.floats(-4, 4, width=32))
def test_adding_rounds_once_whatever_the_path(
    path: Path, dtype: torch.dtype, count: int, start: int, coefficient: float
) -> None:
    tensor = values(count, dtype)
    expected = tensor + torch.tensor(coefficient, dtype=dtype) * noise.signs(SEED, STREAM, start, count)
    got = noise.apply_(tensor, coefficient, SEED, STREAM, start, path=path)
    assert got is tensor
    assert torch.equal(got, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_adding_to_a_narrow_dtype_rounds_the_coefficient_and_then_the_sum(dtype: torch.dtype) -> None:
    tensor, c = values(1000, dtype), 1e-3
    exact = tensor.double() + float(torch.tensor(c, dtype=dtype)) * noise.signs(SEED, STREAM, 7, 1000)
    assert torch.equal(noise.apply_(tensor, c, SEED, STREAM, 7), exact.to(dtype))


@pytest.mark.parametrize("path", PATHS)
def test_many_directions_are_one_after_another_whatever_the_path_and_the_chunks(path: Path) -> None:
    start, count = 131, 200_003
    coefficients = [float(c) for c in values(21)]
    expected = values(count)
    for i, c in enumerate(coefficients):
        noise.apply_(expected, c, SEED + i, STREAM + i, start, path="torch")
    assert torch.equal(fresh(path, coefficients, values(count), start), expected)
    chunks = values(count)
    for low in range(0, count, 70_001):
        fresh(path, coefficients, chunks[low : low + 70_001], start + low)
    assert torch.equal(chunks, expected)


@pytest.mark.skipif(find_spec("numba") is None, reason="needs the extra `fast`")
def test_the_fast_paths_agree_over_more_elements_than_they_take_at_once() -> None:
    count = 2**21 + 77
    arrived = [noise.apply_(values(count), 1e-3, SEED, STREAM, 5, path=path) for path in ("compiled", "numpy")]
    assert torch.equal(*arrived)


def test_the_order_of_the_directions_is_part_of_the_result() -> None:
    forth, back = values(4096), values(4096)
    noise.apply_many_(forth, [0.3, 1e-4, 0.7], [1, 2, 3], [0, 0, 0])
    noise.apply_many_(back, [0.7, 1e-4, 0.3], [3, 2, 1], [0, 0, 0])
    assert not torch.equal(forth, back)


@pytest.mark.parametrize("path", PATHS)
def test_a_coefficient_of_zero_changes_no_bit(path: Path) -> None:
    tensor = torch.full((300,), -0.0)
    noise.apply_many_(tensor, [0.0, -0.0, 1e-60], [1, 2, 3], [0, 0, 0], path=path)
    assert bool(tensor.signbit().all())


def test_elements_are_counted_in_the_order_of_the_shape_whatever_the_strides() -> None:
    plain = values(60).reshape(5, 12)
    turned = plain.T.contiguous().T
    assert not turned.is_contiguous()
    assert torch.equal(noise.apply_(turned, 0.1, 1, 2, 3), noise.apply_(plain, 0.1, 1, 2, 3))
    with pytest.raises(CotuneError) as caught:
        noise.apply_(torch.zeros(1).expand(3), 0.1, 1, 2)
    assert caught.value.code is Code.SHAPE


@pytest.mark.parametrize("path", PATHS)
def test_autograd_notices_that_a_tensor_was_changed(path: Path) -> None:
    leaf = torch.ones(200, requires_grad=True)
    product = (leaf * leaf).sum()
    noise.apply_(leaf, 0.1, 1, 2, path=path)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, 1e39])
def test_a_coefficient_that_is_not_finite_in_the_dtype_is_refused_before_anything_moves(wrong: float) -> None:
    tensor = torch.zeros(10)
    for kind in Direction:
        with pytest.raises(CotuneError) as caught:
            noise.add_many_(tensor.view(2, 5), [1.0, wrong], [Draw(kind, 1, 2)] * 2)
        assert caught.value.code is Code.SCALAR
        assert not tensor.any()


def test_lists_of_different_lengths_and_whole_numbers_are_refused() -> None:
    with pytest.raises(CotuneError) as caught:
        noise.apply_many_(torch.zeros(3), [1.0, 2.0], [1], [2])
    assert caught.value.code is Code.COUNT
    with pytest.raises(CotuneError) as caught:
        noise.apply_(torch.zeros(3, dtype=torch.int64), 1.0, 1, 2)
    assert caught.value.code is Code.DTYPE


# Other directions.


@given(st.integers(2, 9), st.integers(2, 9), st.integers(0, 500))
def test_a_rank_one_direction_is_the_outer_product_of_two_runs_of_signs(rows: int, columns: int, start: int) -> None:
    matrix = values(rows * columns).view(rows, columns)
    u, v = noise.signs(1, 2, start, rows), noise.signs(1, 2, start + rows, columns)
    expected = matrix + torch.tensor(0.1) * torch.outer(u, v)
    assert torch.equal(Draw(Direction.RANK1, 1, 2).add_(matrix, 0.1, start), expected)


@pytest.mark.parametrize("shape", [(7,), (1, 7), (7, 1), (2, 3, 4)])
def test_what_is_no_matrix_takes_plain_signs_instead_of_rank_one(shape: tuple[int, ...]) -> None:
    got = Draw(Direction.RANK1, 1, 2).add_(torch.zeros(shape), 1.0, 9)
    assert torch.equal(got, Draw(Direction.SIGN, 1, 2).add_(torch.zeros(shape), 1.0, 9))


@given(st.integers(0, 2**40), st.lists(st.integers(0, 200), max_size=5))
def test_normal_numbers_are_the_same_in_any_chunks(start: int, sizes: list[int]) -> None:
    chunks, at = [torch.empty(0)], start
    for size in sizes:
        chunks.append(noise.normals(SEED, STREAM, at, size))
        at += size
    assert torch.equal(torch.cat(chunks), noise.normals(SEED, STREAM, start, sum(sizes)))


def test_normal_numbers_are_box_and_muller_s_of_the_words() -> None:
    expected = []
    for index in range(10):
        a = block(SEED, STREAM, index)
        for upper, lower in ((a[0], a[1]), (a[2], a[3])):
            radius, angle = math.sqrt(-2 * math.log((upper + 1) / 2**32)), 2 * math.pi * lower / 2**32
            expected += [radius * math.cos(angle), radius * math.sin(angle)]
    torch.testing.assert_close(noise.normals(SEED, STREAM, 0, 40).double(), torch.tensor(expected, dtype=torch.float64))


def test_normal_numbers_have_the_moments_of_a_normal_distribution() -> None:
    z = noise.normals(SEED, STREAM, 0, 2**17).double()
    moments = [float((z**power).mean()) for power in (1, 2, 3, 4)]
    assert moments == pytest.approx([0, 1, 0, 3], abs=0.05)


def test_a_direction_on_the_sphere_has_the_length_of_a_sign_direction_over_all_tensors_of_its_block() -> None:
    sizes, total = (70_000, 1, 40), 70_041
    draw, parts, at = Draw.of(Direction.SPHERE, 1, 2, total), [], 0
    for size in sizes:
        parts.append(draw.add_(torch.zeros(size), 1.0, at))
        at += size
    assert float(torch.cat(parts).double().norm()) == pytest.approx(math.sqrt(total), rel=1e-6)
    whole = Draw(Direction.GAUSSIAN, 1, 2).add_(torch.zeros(total), 1.0)
    assert float(torch.nn.functional.cosine_similarity(torch.cat(parts), whole, dim=0)) == pytest.approx(1)


@pytest.mark.parametrize("kind", list(Direction))
def test_every_direction_has_unit_covariance(kind: Direction) -> None:
    rows, columns, draws = 3, 4, 4000
    total = torch.zeros(12, 12, dtype=torch.float64)
    for i in range(draws):
        z = Draw.of(kind, derive(0, i), 1, 12).add_(torch.zeros(rows, columns, dtype=torch.float64), 1.0).view(-1)
        total += torch.outer(z, z)
    assert float((total / draws - torch.eye(12)).abs().max()) < 0.12


@pytest.mark.parametrize("kind", list(Direction))
def test_directions_of_any_kind_are_added_one_after_another(kind: Direction) -> None:
    draws = [Draw.of(kind, seed, 3, 20) for seed in (1, 2, 3)]
    together, apart = values(20).view(4, 5), values(20).view(4, 5)
    noise.add_many_(together, [0.1, -0.2, 0.3], draws, 7)
    for draw, c in zip(draws, [0.1, -0.2, 0.3], strict=True):
        draw.add_(apart, c, 7)
    assert torch.equal(together, apart)


@pytest.mark.parametrize("kind", list(Direction))
def test_directions_of_any_kind_do_not_care_about_strides(kind: Direction) -> None:
    draw, plain = Draw.of(kind, 1, 2, 20), values(20).view(4, 5)
    turned = plain.T.contiguous().T
    assert torch.equal(draw.add_(turned, 0.1, 7), draw.add_(plain, 0.1, 7))


def test_only_signs_may_be_repeated_on_another_machine() -> None:
    for kind in (Direction.SIGN, Direction.RANK1):
        kind.check_exact("uplink")
    for kind in (Direction.GAUSSIAN, Direction.SPHERE):
        with pytest.raises(CotuneError) as caught:
            kind.check_exact("uplink")
        assert caught.value.code is Code.CONFLICT

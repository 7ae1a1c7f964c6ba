"""Bucket policies, and how named sizes follow from shapes."""

from __future__ import annotations

from typing import Any

import pytest

import trnx
from trnx.core import DimError, dim
from trnx.core.dims import DimVar
from trnx.runtime.buckets import Listed, as_buckets, multiples, powers_of_two
from trnx.runtime.dynamic_sizes import DynamicAxes, Signature, above_one, every_axis, path_of

N, M = dim("n", 0, 100), dim("m")


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (powers_of_two(), {0: 1, 1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 1000: 1024, 1024: 1024}),
        (powers_of_two(16), {0: 16, 1: 16, 17: 32}),
        (multiples(12), {0: 12, 1: 12, 12: 12, 13: 24}),
        (Listed((4, 10)), {0: 4, 4: 4, 5: 10, 10: 10}),
    ],
    ids=str,
)
def test_policies(policy: Any, expected: dict[int, int]) -> None:
    assert {size: policy.bucket("n", size) for size in expected} == expected


def test_what_jit_takes_as_buckets() -> None:
    assert as_buckets(None).policy("n") == powers_of_two()
    assert as_buckets(trnx.powers_of_two).policy("n") == powers_of_two()
    assert as_buckets([64, 16, 64]).policy("n") == Listed((16, 64))
    mixed = as_buckets({"n": multiples(8), "m": [3]})
    assert [str(mixed.policy(name)) for name in "nmk"] == [
        "multiples of 8", "the buckets 3", "powers of two"
    ]  # fmt: skip
    assert mixed.bucket(DimVar("n", 0, 20), 17) == 20  # never above the bound


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: powers_of_two(12), ValueError, "12 is no power of two"),
        (lambda: multiples(0), ValueError, "multiples of 0"),
        (lambda: as_buckets([]), ValueError, r"buckets=\[\] has no size"),
        (lambda: as_buckets([0, 4]), ValueError, "no size of at least 1"),
        (lambda: as_buckets("pow2"), TypeError, r"'pow2' is no bucket policy.*Use powers_of_two"),
        (lambda: as_buckets([1.5]), TypeError, "is no bucket policy"),
        (lambda: Listed((4,)).bucket("n", 5), DimError, "n = 5 is above its largest bucket 4"),
    ],
)
def test_bad_buckets(make: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


# ---------------------------------------------------------------- sizes from shapes
def read(shapes: list[Any], actual: list[Any]) -> dict[str, int] | str:
    sizes: dict[str, int] = {}
    problem = Signature(shapes, [f"x{i}" for i in range(len(shapes))]).problem(actual, sizes)
    return problem or sizes


@pytest.mark.parametrize(
    ("shapes", "actual", "expected"),
    [
        ([(N, 3), (M, N)], [(5, 3), (7, 5)], {"n": 5, "m": 7}),
        ([(2 * N + 1,)], [(9,)], {"n": 4}),
        ([(2 * N + 1,), (N,)], [(9,), (4,)], {"n": 4}),
        ([(N * M,), (N,), (M,)], [(12,), (3,), (4,)], {"n": 3, "m": 4}),
        ([(N, N)], [(0, 0)], {"n": 0}),
    ],
    ids=str,
)
def test_sizes_follow_from_shapes(shapes: Any, actual: Any, expected: dict[str, int]) -> None:
    assert read(shapes, actual) == expected


@pytest.mark.parametrize(
    ("shapes", "actual", "text"),
    [
        (
            [(N,), (3, N)],
            [(5,), (3, 6)],
            (
                "Sizes do not agree: n is 5 in x0, axis 0 of shape (5,), "
                "but n is 6 in x1, axis 1 of shape (3, 6)"
            ),
        ),
        ([(N,)], [(101,)], "Size n = 101 (x0, axis 0) is outside its bounds 0..100"),
        ([(M,)], [(0,)], "Size m = 0 (x0, axis 0) is outside its bounds 1.."),
        ([(2 * N,)], [(5,)], "x0, axis 0, has size 5, which is no 2*n"),
        ([(N, 3)], [(5, 4)], "x0, axis 1, has size 4 and was traced with 3"),
        (
            [(N * M,), (N,), (M,)],
            [(13,), (3,), (4,)],
            (
                "Sizes do not agree: m is 4 in x2, axis 0 of shape (4,) and n is 3 in x1, axis 0 "
                "of shape (3,), but m*n is 13 in x0, axis 0 of shape (13,)"
            ),
        ),
    ],
    ids=str,
)
def test_sizes_that_do_not_fit(shapes: Any, actual: Any, text: str) -> None:
    assert read(shapes, actual) == text


def test_a_size_must_follow_from_some_axis() -> None:
    with pytest.raises(DimError, match=r"value of size n does not follow from n\^2|n\*n"):
        Signature([(N * N,)], ["x"])


# ---------------------------------------------------------------- the `dynamic` argument
def test_paths() -> None:
    assert path_of("batch['x'][0].w") == path_of("batch.x.0.w") == ("batch", "x", "0", "w")


PATHS = ["x", "batch['a']", "batch['b'][0]", "batch['b'][1]"]
SHAPES: list[Any] = [(5, 3), (5,), (4, 2), (6, 2)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"x": {0: "n"}}, ["(n,3)", "(5)", "(4,2)", "(6,2)"]),
        ({"x": "n", "batch.a": "n"}, ["(n,3)", "(n)", "(4,2)", "(6,2)"]),
        ({0: {-1: "m"}}, ["(5,m)", "(5)", "(4,2)", "(6,2)"]),
        ({"batch.b[1]": {0: "k"}}, ["(5,3)", "(5)", "(4,2)", "(k,2)"]),
        ({1: {0: "k"}}, ["(5,3)", "(k)", "(k,2)", "(k,2)"]),
        ({"x": {0: 2 * N + 1, 1: M}}, ["(2*n+1,m)", "(5)", "(4,2)", "(6,2)"]),
        ({"x": {0: N}, "batch.a": "n"}, ["(n,3)", "(n)", "(4,2)", "(6,2)"]),
    ],
    ids=str,
)
def test_dynamic_axes(given: Any, expected: list[str]) -> None:
    found = DynamicAxes(given, "f").shapes(PATHS, SHAPES, ["x", "batch"])
    assert [f"({','.join(map(str, shape))})" for shape in found] == expected


def test_names_share_the_bounds_of_their_dim() -> None:
    (shape, other, *_) = DynamicAxes({"x": {0: N}, "batch.a": "n"}, "f").shapes(
        PATHS, SHAPES, ["x", "batch"]
    )
    assert trnx.core.bounds(shape[0]) == trnx.core.bounds(other[0]) == (0, 100)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"y": "n"}, DimError, "dynamic names 'y', but f is called with no such array.*Use one of"),
        ({2: "n"}, DimError, "dynamic names 2"),
        ({"x": {2: "n"}}, DimError, r"axis 2 of x, which has shape \(5, 3\)"),
        ({"x": {0: 5}}, TypeError, "does not say which axes are dynamic"),
        ({"x": {0: "no name"}}, DimError, "not a size name"),
        ({"x": {0: N}, "batch.a": {0: dim("n", 2)}}, DimError, "two bounds, 0..100 and 2.."),
    ],
)
def test_bad_dynamic_axes(given: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        DynamicAxes(given, "f").shapes(PATHS, SHAPES, ["x", "batch"])


def test_every_axis_by_equal_sizes() -> None:
    shapes = every_axis(["x", "batch['y']", "argument 2"], [(5, 3), (3, 1), ()])
    assert [tuple(map(str, shape)) for shape in shapes] == [
        ("x_0", "x_1"), ("x_1", "batch_y_1"), ()
    ]  # fmt: skip
    narrow = above_one(shapes, [(5, 3), (3, 1), ()])
    assert [tuple(map(str, shape)) for shape in narrow] == [("x_0", "x_1"), ("x_1", "1"), ()]
    assert trnx.core.bounds(narrow[0][0]) == (2, None)

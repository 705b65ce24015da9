"""The signature checks of the test run accept and refuse what jaxtyping's own decorator accepts and refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any

import jaxtyping
import pytest
import signatures
import torch
from beartype import beartype
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import AbstractArray, Bool, Float, Int, Int64, Shaped
from jaxtyping._storage import get_shape_memo
from torch import Tensor

import multihead
from multihead.attention import MultiHeadAttention
from multihead.data.batching import Batch

if TYPE_CHECKING:
    from nowhere import Unknown

DECORATORS = [signatures.checked, signatures.jaxtyped]


@pytest.fixture(params=DECORATORS, ids=["ours", "jaxtyping"])
def checked(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    return lambda thing: request.param(thing, typechecker=beartype)


def refused(call: Callable[[], Any]) -> bool:
    """Whether a signature is violated."""
    try:
        call()
    except jaxtyping.TypeCheckError as error:
        return isinstance(error, TypeError)
    return False


def plain(number: int, words: list[str] | None = None, *rest: int, last: str = "") -> str:
    return last if number else None  # type: ignore[return-value]


def test_classes_of_arguments_and_results(checked):
    call = checked(plain)
    assert call(1, ["a"], 2, 3, last="b") == "b"
    for wrong in (
        lambda: call("1"),
        lambda: call(1, [2]),
        lambda: call(1, None, "2"),
        lambda: call(1, last=2),
        lambda: call(0),
    ):
        assert refused(wrong)
    with pytest.raises(TypeError):
        call()


def product(left: Float[Tensor, "rows inner"], right: Float[Tensor, "inner columns"]) -> Float[Tensor, "rows columns"]:
    return left @ right if left.shape[0] else left


def test_sizes_agree_between_arguments_and_result(checked):
    call = checked(product)
    assert call(torch.ones(2, 3), torch.ones(3, 4)).shape == (2, 4)
    assert refused(lambda: call(torch.ones(2, 3), torch.ones(2, 4)))
    assert refused(lambda: call(torch.ones(0, 3), torch.ones(3, 4)))
    assert refused(lambda: call(torch.ones(2, 3).double().long(), torch.ones(3, 4)))


def test_sizes_of_a_call_are_its_own(checked):
    """A function may be called with other sizes by a function that uses the same names."""

    def outer(x: Float[Tensor, "rows inner"]) -> Float[Tensor, "rows inner"]:
        checked(product)(torch.ones(5, 6), torch.ones(6, 7))
        return x[1:] if len(x) == 9 else x

    assert checked(outer)(torch.ones(2, 3)).shape == (2, 3)
    assert refused(lambda: checked(outer)(torch.ones(9, 3)))


def split(x: Float[Tensor, "rows width"], parts: int) -> Float[Tensor, "rows {parts} part"]:
    return x.unflatten(1, (-1, parts) if parts == 3 else (parts, -1))


def test_sizes_that_are_arguments(checked):
    call = checked(split)
    assert call(torch.ones(2, 6), 2).shape == (2, 2, 3)
    assert refused(lambda: call(torch.ones(2, 6), 3))


def count(x: Float[Tensor, " n"]) -> Iterator[int]:
    yield from range(len(x))


def test_a_generator_is_compared_when_it_is_called(checked):
    assert list(checked(count)(torch.ones(3))) == [0, 1, 2]
    assert refused(lambda: checked(count)(torch.ones(3, 3)))


def unknown(x: Unknown, y: int) -> Unknown:
    return x


def test_a_name_for_type_checkers_only_may_be_anything(checked):
    assert checked(unknown)("x", 1) == "x"
    assert refused(lambda: checked(unknown)("x", "y"))


def test_classes(checked):
    @checked
    @dataclass
    class Sizes:
        rows: int
        weights: Float[Tensor, "n n"]

        @checked
        @staticmethod
        def double(number: int) -> int:
            return 2 * number

        @checked
        @classmethod
        def of(cls, rows: int) -> Sizes:
            return cls(rows, torch.ones(rows, rows))

        @property
        @checked
        def name(self) -> str:
            return self.rows  # type: ignore[return-value]

    assert Sizes.of(2).rows == 2
    assert Sizes.double(2) == 4
    for wrong in (
        lambda: Sizes("2", torch.ones(2, 2)),
        lambda: Sizes(2, torch.ones(2, 3)),
        lambda: Sizes.double("2"),
        lambda: Sizes.of("2"),
        lambda: Sizes.of(2).name,
    ):
        assert refused(wrong)


def test_the_checks_can_be_disabled(checked, without_checks):
    with without_checks():
        assert checked(plain)("1") == ""
        assert checked(product)(torch.ones(0, 3), torch.ones(3, 4)).shape == (0, 3)
    assert refused(lambda: checked(plain)("1"))


def test_a_function_looks_as_before(checked):
    call = checked(product)
    assert (call.__name__, call.__doc__, call.__wrapped__) == ("product", None, product)
    assert call.__annotations__ == product.__annotations__


SHAPES = ["", "n", "n n", "n m", "m n", "n 2", "_ n", "_m n", "#n m", "#n #n", "2", "... n", "n ...", "*a", "*a n",
          "n *a n", "n *a m", "*a 2", "*#a n", "#2 n", "n+1 n", "*_a m", "n=2 m", "n {n}"]  # fmt: skip
ARRAYS = st.builds(
    lambda kind, array, shape: kind[array, shape],
    st.sampled_from([Float, Int, Int64, Bool, Shaped]),
    st.sampled_from([Tensor, Any]),
    st.sampled_from(SHAPES),
)
TENSORS = st.builds(
    lambda sizes, dtype: torch.empty(sizes, dtype=dtype),
    st.lists(st.integers(0, 2), max_size=4),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.bool]),
)
VALUES = st.one_of(
    TENSORS,
    TENSORS.map(lambda tensor: torch.nn.Parameter(tensor, requires_grad=False)),
    TENSORS.filter(lambda tensor: tensor.dtype != torch.bfloat16).map(Tensor.numpy),
    st.sampled_from([None, 2, "n", [1.0]]),
)


def noted(compare: Callable[[Any, Any], bool], pairs: list[tuple[Any, Any]]) -> list[Any]:
    """Whether the values of one call fit, and which sizes are known after each of them."""
    found: list[Any] = []
    with signatures.jaxtyped("context"):
        for hint, value in pairs:
            try:
                found.append(compare(hint, value))
            except jaxtyping.AnnotationError:  # "n+1" before "n"
                found.append("unknown")
            sizes, several, *_ = get_shape_memo()
            found.append((dict(sizes), dict(several)))
    return found


@given(st.lists(st.tuples(ARRAYS, VALUES), min_size=1, max_size=4))
def test_a_tensor_fits_as_jaxtyping_says(pairs: list[tuple[Any, Any]]) -> None:
    """For any values seen before in the same call."""
    assert noted(signatures.fits, pairs) == noted(signatures.compared_by_jaxtyping, pairs)


def test_tensors_are_compared_by_us() -> None:
    assert type(AbstractArray).__instancecheck__ is signatures.fits
    for shape in ("batch heads query dim", "1 #key", "*axes width", "..."):
        assert signatures._recognizer(Float[Tensor, shape])


def test_the_package_is_checked():
    """Functions, methods and dataclasses of the package, by our decorator."""
    for call in (
        lambda: multihead.train(say=3),
        lambda: MultiHeadAttention(8, 2)(torch.ones(2, 3, 8), torch.ones(3, 3, 8)),
        lambda: Batch(1, 2, 3, 4, 5, 6, 7),
    ):
        assert refused(call)
    forward = MultiHeadAttention.forward
    assert isinstance(forward, FunctionType)
    assert forward.__code__.co_filename == signatures.__file__


def test_repeated_calls_are_checked_now_and_then():
    """The first four of a test and every sixteenth; what is not checked calls functions that are not checked either."""
    inner = signatures.checked(plain, typechecker=beartype)

    def repeated(word: str) -> str:
        return inner(word)

    call = signatures._some_of(signatures.checked(repeated, typechecker=beartype))
    assert [number for number in range(1, 40) if refused(lambda: call("wrong"))] == [1, 2, 3, 4, 16, 32]
    assert refused(lambda: inner("wrong"))

"""The CPU fallback: exact counts, one warning with the user's line, mixed devices refused."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator

import pytest

torch = pytest.importorskip("torch")

import trnx_torch  # noqa: E402
from trnx_torch import report  # noqa: E402

# Operators whose only kernel here is the fallback.
NDTRI = "aten::special_ndtri"


@pytest.fixture(autouse=True)
def clean_counts() -> Iterator[None]:
    trnx_torch.clear_op_tracking()
    yield
    trnx_torch.clear_op_tracking()


def test_counts_are_exact() -> None:
    x = torch.ones(4, device="neuron")
    for _ in range(3):
        torch.special.ndtri(x)
    torch.special.ndtri(x, out=torch.empty(4, device="neuron"))
    torch.polygamma(2, x)
    assert trnx_torch.get_fallback_ops() == {
        "aten::special_ndtri": 3,
        "aten::special_ndtri.out": 1,
        "aten::polygamma": 1,
    }
    trnx_torch.clear_op_tracking()
    assert trnx_torch.get_fallback_ops() == {}
    torch.special.ndtri(x)
    assert trnx_torch.get_fallback_ops() == {NDTRI: 1}


def test_work_on_the_cpu_is_not_counted() -> None:
    torch.special.ndtri(torch.ones(4)).sum().item()
    assert trnx_torch.get_fallback_ops() == {}


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x.view(3, 2).t()[1].expand(4, 3).unsqueeze(0),
        lambda x: x.cpu(),
        lambda x: x.clone(),
        lambda x: x.to(torch.int64).contiguous(),
        lambda x: x[0, 0].item(),
        lambda x: x.tolist(),
        lambda x: repr(x),
        lambda x: x.split(1)[0].copy_(x[1]),
        lambda x: torch.zeros_like(x).fill_(3).zero_(),
        lambda x: torch.full((2, 2), 1.5, device="neuron"),
        lambda x: x.detach().requires_grad_().view(-1)[2:4],
        lambda x: torch.equal(x, x),
        lambda x: bool(x[0, 0]),
    ],
)
def test_views_copies_and_factories_are_no_fallbacks(use: Callable) -> None:
    use(torch.arange(6.0).view(2, 3).to("neuron"))
    assert trnx_torch.get_fallback_ops() == {}


def test_backward_counts_too() -> None:
    x = torch.ones(3, device="neuron", requires_grad=True)
    torch.polygamma(2, x).backward(torch.ones(3, device="neuron"))
    assert trnx_torch.get_fallback_ops()["aten::polygamma"] >= 1
    assert sum(trnx_torch.get_fallback_ops().values()) > 1


def test_one_warning_per_operator_with_the_users_line() -> None:
    x = torch.ones(3, device="neuron")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        line = inspect.currentframe().f_lineno + 1
        torch.special.airy_ai(x)
        torch.special.airy_ai(x)
        trnx_torch.clear_op_tracking()
        torch.special.airy_ai(x)
    ours = [w for w in caught if w.category is trnx_torch.FallbackWarning]
    assert len(ours) == 1
    assert ours[0].filename == __file__
    assert ours[0].lineno == line
    assert str(ours[0].message) == (
        "aten::special_airy_ai has no neuron kernel yet and runs on the CPU. Results are right "
        "but slower; trnx_torch.get_fallback_ops() counts such calls."
    )


def test_warning_as_error_reaches_the_caller() -> None:
    x = torch.ones(3, device="neuron")
    with warnings.catch_warnings():
        warnings.simplefilter("error", trnx_torch.FallbackWarning)
        with pytest.raises(trnx_torch.FallbackWarning, match="aten::igamma has no"):
            torch.igamma(x, x)
    torch.testing.assert_close(torch.igamma(x, x).cpu(), torch.igamma(torch.ones(3), torch.ones(3)))


def test_user_frame_skips_torch() -> None:
    seen = []

    class Probe(torch.nn.Module):
        def forward(self, x: object) -> object:
            return x

    model = Probe()
    model.register_forward_hook(lambda *_: seen.append(report.user_frame()))
    model(1)
    assert seen[0].f_code.co_filename == __file__


MIXED = [
    (lambda n, c: torch.mm(n, c), "aten::mm", "self", "neuron:0", "mat2", "cpu"),
    (lambda n, c: n + c, "aten::add.Tensor", "self", "neuron:0", "other", "cpu"),
    (lambda n, c: torch.angle(n, out=c), "aten::angle.out", "self", "neuron:0", "out", "cpu"),
    (lambda n, c: torch.hypot(c, n), "aten::hypot", "self", "cpu", "other", "neuron:0"),
    (lambda n, c: torch.cat([n, c]), "aten::cat", "tensors", "neuron:0", "tensors", "cpu"),
    (lambda n, c: c.hypot_(n), "aten::hypot_", "self", "cpu", "other", "neuron:0"),
]


@pytest.mark.parametrize("case", MIXED, ids=lambda case: case[1])
def test_mixed_devices_are_one_sentence(case: tuple) -> None:
    call, op, first, first_device, second, second_device = case
    on_device, on_host = torch.ones(2, 2, device="neuron"), torch.ones(2, 2)
    with pytest.raises(RuntimeError) as error:
        call(on_device, on_host)
    text = str(error.value).splitlines()[0]
    assert text == (
        f"Expected all tensors to be on the same device, but {op} got '{first}' on {first_device} "
        f"and '{second}' on {second_device}. Move one with .to(\"neuron:0\")."
    )


def test_numbers_on_the_cpu_may_meet_neuron_tensors() -> None:
    x = torch.full((3,), 2.0, device="neuron")
    torch.testing.assert_close((x * torch.tensor(3.0)).cpu(), torch.full((3,), 6.0))
    torch.testing.assert_close(torch.hypot(x, torch.tensor(0.0)).cpu(), torch.full((3,), 2.0))
    with pytest.raises(RuntimeError, match="same device"):
        torch.tensor(3.0).add_(x.sum())


def test_operator_without_any_kernel_says_so() -> None:
    library = torch.library.Library("trnx_test", "FRAGMENT")
    library.define("nowhere(Tensor x) -> Tensor")
    with pytest.raises(NotImplementedError, match="trnx_test::nowhere has no kernel for device"):
        torch.ops.trnx_test.nowhere(torch.ones(1, device="neuron"))


def test_operator_of_another_library_falls_back_and_counts() -> None:
    library = torch.library.Library("trnx_test", "FRAGMENT")
    library.define("thrice(Tensor x) -> Tensor")
    library.impl("thrice", lambda x: x * 3, "CPU")
    out = torch.ops.trnx_test.thrice(torch.ones(2, device="neuron"))
    assert out.device.type == "neuron"
    assert out.tolist() == [3.0, 3.0]
    assert trnx_torch.get_fallback_ops() == {"trnx_test::thrice": 1}


def test_returned_view_of_an_input_is_the_inputs_storage() -> None:
    library = torch.library.Library("trnx_test", "FRAGMENT")
    library.define("first(Tensor(a) x) -> Tensor(a)")
    library.impl("first", lambda x: x[:1], "CPU")
    x = torch.zeros(3, device="neuron")
    with torch.no_grad():
        view = torch.ops.trnx_test.first(x)
    view.fill_(4)
    assert x.tolist() == [4.0, 0.0, 0.0]
    assert view.untyped_storage()._cdata == x.untyped_storage()._cdata

"""Registered kernels: operands, promotion, layouts, lists, reductions, matrix products, misses.

The operators are the test's own, so that the kernels of the package stay as they are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

import trnx_torch  # noqa: E402
from tests.torch import loops  # noqa: E402
from trnx_torch import registration  # noqa: E402
from trnx_torch.registration import Kernel, KernelRequest  # noqa: E402

LIBRARY = torch.library.Library("trnx_kernels", "DEF")
REQUESTS: list[KernelRequest] = []
OPS = torch.ops.trnx_kernels


def define(schema: str, on_cpu: Callable) -> str:
    """A new operator with a CPU kernel; returns its full name."""
    LIBRARY.define(schema)
    name = schema.split("(")[0]
    LIBRARY.impl(name, on_cpu, "CPU")
    return f"trnx_kernels::{name}"


def noted(make: Callable[[KernelRequest], Kernel | None]) -> Callable:
    def maker(request: KernelRequest) -> Kernel | None:
        REQUESTS.append(request)
        return make(request)

    return maker


def scaled_sum(b, v):
    floating = v["self"].type in (loops.TYPES[torch.float32], loops.TYPES[torch.float64])
    if floating:
        return b.fadd(v["self"], b.fmul(v["alpha"], v["other"]))
    return b.add(v["self"], b.mul(v["alpha"], v["other"]))


ADD = define(
    "add(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
    lambda self, other, alpha=1: torch.add(self, other, alpha=alpha),
)
ADD_ = define(
    "add_(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)",
    lambda self, other, alpha=1: self.add_(other, alpha=alpha),
)
ADD_OUT = define(
    "add.out(Tensor self, Tensor other, *, Scalar alpha=1, Tensor(a!) out) -> Tensor(a!)",
    lambda self, other, alpha=1, *, out: torch.add(self, other, alpha=alpha, out=out),
)
registration.pointwise(ADD, ADD_, ADD_OUT)(noted(lambda r: loops.pointwise(r, scaled_sum)))

DIV = define("div(Tensor self, Tensor other) -> Tensor", torch.div)
registration.pointwise(DIV, integers_to_float=True)(
    noted(lambda r: loops.pointwise(r, lambda b, v: b.fdiv(v["self"], v["other"])))
)

LESS = define("less(Tensor self, Tensor other) -> Tensor", torch.lt)


def less(b, v):
    return b.zext(b.fcmp_ordered("<", v["self"], v["other"]), loops.TYPES[torch.bool])


registration.pointwise(LESS, output=torch.bool)(noted(lambda r: loops.pointwise(r, less)))


@pytest.fixture(autouse=True)
def clean() -> None:
    REQUESTS.clear()
    trnx_torch.clear_op_tracking()


def both(call: Callable, *tensors: torch.Tensor) -> torch.Tensor:
    """Runs `call` on cpu and neuron copies, compares, returns the neuron result."""
    expected = call(*(t.clone() if t._is_view() is False else t for t in tensors))
    actual = call(*(to_device(t) for t in tensors))
    assert actual.device.type == "neuron"
    assert actual.dtype == expected.dtype
    assert actual.stride() == expected.stride()
    torch.testing.assert_close(actual.cpu(), expected)
    return actual


def to_device(tensor: torch.Tensor) -> torch.Tensor:
    """A neuron tensor with the same values and the same strides."""
    size = max(1, tensor.untyped_storage().nbytes() // tensor.element_size())
    whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage(), 0, (size,), (1,))
    moved = whole.clone().to("neuron")
    return moved.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


# ---- pointwise -----------------------------------------------------------------------------------
SHAPES = [
    ((4,), (4,)),
    ((3, 4), (3, 4)),
    ((3, 4), (4,)),
    ((3, 1), (1, 4)),
    ((2, 3, 4), (3, 1)),
    ((), (3,)),
    ((), ()),
    ((0, 3), (0, 3)),
    ((2, 0), (1,)),
    ((5, 1, 1), (5, 1, 1)),
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_broadcasting(shapes: tuple) -> None:
    a, b = (torch.randn(shape) for shape in shapes)
    both(OPS.add, a, b)
    assert trnx_torch.get_executed_ops()[ADD] == 1
    assert trnx_torch.get_fallback_ops() == {}


LAYOUTS = {
    "transposed": lambda: (torch.randn(4, 3).t(), torch.randn(3, 4)),
    "both transposed": lambda: (torch.randn(4, 3).t(), torch.randn(4, 3).t()),
    "sliced": lambda: (torch.randn(6, 8)[::2, 1::2], torch.randn(3, 4)),
    "expanded": lambda: (torch.randn(1, 4).expand(3, 4), torch.randn(3, 1).expand(3, 4)),
    "channels last": lambda: tuple(
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last) for _ in range(2)
    ),
    "permuted": lambda: (torch.randn(2, 3, 4).permute(2, 0, 1), torch.randn(4, 2, 3)),
    "offset": lambda: (torch.randn(10)[3:7], torch.randn(9)[5:]),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_strided_operands(name: str) -> None:
    both(OPS.add, *LAYOUTS[name]())


def test_ranks_are_collapsed_and_layouts_told() -> None:
    name = define("told(Tensor self, Tensor other) -> Tensor", torch.add)
    registration.pointwise(name)(
        noted(lambda r: loops.pointwise(r, lambda b, v: b.fadd(v["self"], v["other"])))
    )
    n = {"device": "neuron"}
    OPS.told(torch.ones(2, 3, 4, **n), torch.ones(2, 3, 4, **n))
    OPS.told(torch.ones(5, 6, **n), torch.ones(6, **n))
    OPS.told(torch.ones(5, 6, **n).t(), torch.ones(6, 5, **n))
    OPS.told(torch.ones(4, 8, **n)[:, ::2], torch.ones(4, 4, **n))
    told = [(r.ranks, tuple(o.layout for o in (*r.outputs, *r.inputs))) for r in REQUESTS]
    assert told == [
        ((1,), ("contiguous",) * 3),
        ((2,), ("contiguous",) * 3),
        ((2,), ("contiguous", "contiguous", "strided")),
        ((1,), ("contiguous", "strided", "contiguous")),
    ]


def test_a_kernel_is_made_once_per_key() -> None:
    for size in (5, 6, 7):
        x = torch.ones(size, device="neuron")
        OPS.div(x, x)
    assert len(REQUESTS) == 1
    OPS.div(x.double(), x)
    OPS.div(torch.ones(3, 3, device="neuron").t(), torch.ones(3, 3, device="neuron"))
    assert len(REQUESTS) == 3
    OPS.div(x.double(), x)
    assert len(REQUESTS) == 3


DTYPES = [torch.float32, torch.float64, torch.int64, torch.int32]


@pytest.mark.parametrize("pair", list(itertools.product(DTYPES, DTYPES)), ids=str)
def test_promotion(pair: tuple) -> None:
    a, b = (torch.arange(1, 5).to(dtype) for dtype in pair)
    both(OPS.add, a, b)
    both(OPS.div, a, b)
    both(OPS.add, a, b[0])  # a 0-dimensional tensor promotes less


def test_numbers() -> None:
    both(lambda x: OPS.add(x, torch.tensor(2.5)), torch.randn(3))
    both(lambda x: OPS.add(x, torch.tensor(2.5)), torch.arange(3))
    both(lambda x: OPS.add(x, torch.tensor(2)), torch.arange(3))
    both(lambda x: OPS.add(torch.tensor(2, dtype=torch.float64), x), torch.randn(3))
    both(lambda x, y: OPS.add(x, y, alpha=2.5), torch.randn(3), torch.randn(3))
    both(lambda x, y: OPS.add(x, y, alpha=3), torch.arange(3), torch.arange(3))
    assert [s.name for s in REQUESTS[0].scalars] == ["other", "alpha"]


def test_in_place_and_out() -> None:
    both(lambda x, y: OPS.add_(x, y), torch.randn(3, 4), torch.randn(4))
    both(lambda x, y: OPS.add_(x.t(), y, alpha=2).t(), torch.randn(4, 3), torch.randn(3, 4))
    both(lambda x, y: OPS.add_(x, x[:1].clone()), torch.randn(3), torch.randn(3))
    x, y = torch.randn(3, device="neuron"), torch.randn(3, device="neuron")
    before = x.data_ptr()
    assert OPS.add_(x, y) is x
    assert x.data_ptr() == before
    out = torch.empty(0, device="neuron")
    assert OPS.add(x, y, out=out) is out
    torch.testing.assert_close(out.cpu(), x.cpu() + y.cpu())
    wide = torch.empty(3, dtype=torch.float64, device="neuron")
    OPS.add(x, y, out=wide)
    torch.testing.assert_close(wide.cpu(), (x.cpu() + y.cpu()).double())
    with pytest.raises(RuntimeError, match="result type Float can't be cast"):
        OPS.add_(torch.ones(3, dtype=torch.int64, device="neuron"), x)
    with pytest.raises(RuntimeError, match="single memory location"):
        OPS.add_(torch.ones(1, device="neuron").expand(3), x)
    with pytest.raises(RuntimeError, match="Please clone"):
        OPS.add_(x[1:], x[:-1])
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        OPS.add_(torch.ones(1, device="neuron"), x)


def test_output_dtype_rule() -> None:
    assert both(OPS.less, torch.randn(5), torch.randn(5)).dtype == torch.bool


def test_mixed_devices() -> None:
    with pytest.raises(RuntimeError, match="trnx_kernels::add got 'self' on neuron:0 and 'other'"):
        OPS.add(torch.ones(2, device="neuron"), torch.ones(2))


# ---- misses, failures ----------------------------------------------------------------------------
def test_no_kernel_falls_back_and_is_counted() -> None:
    name = define("never(Tensor self) -> Tensor", torch.neg)
    registration.pointwise(name)(noted(lambda request: None))
    x = torch.ones(3, device="neuron")
    for _ in range(2):
        assert OPS.never(x).tolist() == [-1.0] * 3
    assert len(REQUESTS) == 1
    assert trnx_torch.get_fallback_ops() == {name: 2}
    assert name not in trnx_torch.get_executed_ops()


def test_exception_in_the_maker_reaches_the_caller() -> None:
    name = define("broken(Tensor self) -> Tensor", torch.neg)

    @registration.pointwise(name)
    def make(request: KernelRequest) -> Kernel:
        raise ZeroDivisionError("no kernel today")

    with pytest.raises(ZeroDivisionError, match="no kernel today"):
        OPS.broken(torch.ones(2, device="neuron"))


def test_status_becomes_an_error() -> None:
    name = define("status(Tensor self) -> Tensor", torch.neg)
    registration.pointwise(name)(lambda r: loops.pointwise(r, lambda b, v: v["self"], status=7))
    with pytest.raises(RuntimeError, match="trnx_kernels::status: the device kernel stopped with"):
        OPS.status(torch.ones(2, device="neuron"))


def test_operator_without_kernel_keeps_torchs_dtype_rules() -> None:
    """abs of complex numbers asks its out= form for a float result, which no cast could give."""
    name = define(
        "size.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        lambda self, *, out: torch.abs(self, out=out),
    )
    registration.pointwise(name)(lambda r: None)
    out = torch.empty(2, device="neuron")
    OPS.size(torch.tensor([3 + 4j, 1j], device="neuron"), out=out)
    assert out.tolist() == [5.0, 1.0]


def test_unknown_operator_and_argument() -> None:
    with pytest.raises(ValueError, match="has no operator trnx_kernels::missing"):
        registration.pointwise("trnx_kernels::missing")(lambda r: None)
    with pytest.raises(ValueError, match="has no argument 'others' to promote"):
        registration.pointwise(ADD, promote=["others"])(lambda r: None)


def test_options_are_part_of_the_key() -> None:
    name = define(
        "moded(Tensor self, str mode, bool flag=False, int? n=None, int[] dims=[]) -> Tensor",
        lambda self, mode, flag=False, n=None, dims=(): self,
    )
    registration.pointwise(name)(noted(lambda r: loops.pointwise(r, lambda b, v: v["self"])))
    x = torch.ones(2, device="neuron")
    for arguments in (("a",), ("b",), ("a", True), ("a", True, 3), ("a", True, 3, [1, 2]), ("a",)):
        OPS.moded(x, *arguments)
    assert len(REQUESTS) == 5
    assert REQUESTS[4].options == (("mode", "a"), ("flag", True), ("n", 3), ("dims", [1, 2]))
    assert REQUESTS[0].option("n", 5) is None
    assert REQUESTS[0].option("absent", 5) == 5


def test_makers_run_from_autograds_thread() -> None:
    name = define("twice(Tensor self, Tensor other) -> Tensor", torch.add)
    registration.pointwise(name)(
        noted(lambda r: loops.pointwise(r, lambda b, v: b.fadd(v["self"], v["other"])))
    )

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            return OPS.twice(g, g)

    x = torch.ones(3, device="neuron", requires_grad=True)
    Twice.apply(x).sum().backward()
    assert x.grad.tolist() == [2.0] * 3
    assert len(REQUESTS) == 1


def test_threads_share_kernels() -> None:
    import threading

    x = torch.ones(64, device="neuron")
    failures = []

    def work() -> None:
        for _ in range(200):
            if OPS.add(x, x)[0].item() != 2.0:
                failures.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert trnx_torch.get_executed_ops()[ADD] == 800


# ---- lists ---------------------------------------------------------------------------------------
def nothing(_: object) -> None:
    """What an operator without results returns."""


LIST_ADD_ = define(
    "list_add_(Tensor(a!)[] self, Tensor[] other, *, Scalar alpha=1) -> ()",
    lambda self, other, alpha=1: nothing(torch._foreach_add_(self, other, alpha=alpha)),
)
LIST_ADD = define(
    "list_add(Tensor[] self, Tensor[] other, *, Scalar alpha=1) -> Tensor[]",
    lambda self, other, alpha=1: torch._foreach_add(self, other, alpha=alpha),
)
registration.pointwise(LIST_ADD, LIST_ADD_)(
    noted(lambda r: None if r.inputs[0].dtype == torch.float64 else loops.pointwise(r, scaled_sum))
)
LIST_SCALE_ = define(
    "list_scale_(Tensor(a!)[] self, Scalar[] scalars) -> ()",
    lambda self, scalars: nothing(torch._foreach_mul_(self, scalars)),
)
registration.pointwise(LIST_SCALE_)(
    noted(lambda r: loops.pointwise(r, lambda b, v: b.fmul(v["self"], v["scalars"])))
)


def lists(*dtypes: torch.dtype) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    host = [torch.arange(1.0, 2 + i).to(dtype) for i, dtype in enumerate(dtypes)]
    return host, [t.to("neuron") for t in host]


def test_lists() -> None:
    host, device = lists(torch.float32, torch.float32, torch.float32)
    results = OPS.list_add(device, device, alpha=3)
    assert [r.tolist() for r in results] == [(t * 4).tolist() for t in host]
    OPS.list_add_(device, results)
    assert [t.tolist() for t in device] == [(t * 5).tolist() for t in host]
    assert trnx_torch.get_executed_ops()[LIST_ADD] == 1
    assert trnx_torch.get_executed_ops()[LIST_ADD_] == 1
    OPS.list_scale_(device, [2.0, 3, 0.5])
    assert device[1].tolist() == (host[1] * 15).tolist()
    with pytest.raises(RuntimeError, match="Pass lists of one length"):
        OPS.list_add(device, device[:2])


def test_list_item_without_kernel_runs_the_rest_once() -> None:
    host, device = lists(torch.float32, torch.float64, torch.float32)
    OPS.list_add_(device, [t.clone() for t in device])
    assert [t.tolist() for t in device] == [(t * 2).tolist() for t in host]
    assert trnx_torch.get_fallback_ops() == {LIST_ADD_: 1}
    results = OPS.list_add(device, device)
    assert [t.tolist() for t in results] == [(t * 4).tolist() for t in host]


# ---- reductions ----------------------------------------------------------------------------------
SUM = define(
    "sum(Tensor self, int[]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
    lambda self, dim=None, keepdim=False, dtype=None: torch.sum(
        self, dim or list(range(self.dim())), keepdim, dtype=dtype
    ),
)
SUM_OUT = define(
    "sum.out(Tensor self, int[]? dim=None, bool keepdim=False, *, Tensor(a!) out) -> Tensor(a!)",
    lambda self, dim=None, keepdim=False, *, out: torch.sum(self, dim, keepdim, out=out),
)


def add(b, pair):
    floating = pair[0].type in (loops.TYPES[torch.float32], loops.TYPES[torch.float64])
    return (b.fadd if floating else b.add)(*pair)


registration.reduction(SUM, outputs=["sum"])(
    noted(lambda r: loops.reduction(r, 0.0 if r.outputs[0].dtype.is_floating_point else 0, add))
)
registration.reduction(SUM_OUT, outputs=["sum"])(noted(lambda r: loops.reduction(r, 0.0, add)))


@pytest.mark.parametrize("dims", [None, [0], [1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2], [-1]])
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize(
    "view", [lambda x: x, lambda x: x.permute(2, 0, 1), lambda x: x[:, ::2], lambda x: x[:, :1]]
)
def test_sums(dims: list[int] | None, keepdim: bool, view: Callable) -> None:
    both(lambda x: OPS.sum(view(x), dims, keepdim), torch.randn(2, 4, 3))
    assert trnx_torch.get_fallback_ops() == {}


def test_reduction_ranks_and_dtypes() -> None:
    name = define("told_sum(Tensor self, int[]? dim=None) -> Tensor", torch.sum)
    registration.reduction(name)(noted(lambda r: loops.reduction(r, 0.0, add)))
    x = torch.ones(2, 4, 3, device="neuron")
    y = torch.ones(4, 4, 3, device="neuron")[::2]
    for dims in ([2], [0, 1], [0, 2]):
        OPS.told_sum(x, dims)
    OPS.told_sum(y, [0])  # the same key as the second
    assert [r.ranks for r in REQUESTS] == [(1, 1), (1, 1), (1, 2)]
    assert [r.inputs[0].layout for r in REQUESTS] == [
        "contiguous",
        "strided",
        "contiguous",
    ]
    assert both(OPS.sum, torch.arange(6, dtype=torch.int32)).dtype == torch.int64
    assert both(OPS.sum, torch.tensor(3.0)).dim() == 0


def test_reduction_of_nothing_and_out() -> None:
    both(OPS.sum, torch.ones(0, 3))
    assert trnx_torch.get_fallback_ops() == {SUM: 1}
    out = torch.empty(0, device="neuron")
    assert OPS.sum(torch.ones(2, 3, device="neuron"), [1], out=out) is out
    assert out.tolist() == [3.0, 3.0]
    with pytest.raises(IndexError, match="Dimension out of range"):
        OPS.sum(torch.ones(2, device="neuron"), [3])
    with pytest.raises(RuntimeError, match="multiple times"):
        OPS.sum(torch.ones(2, device="neuron"), [0, 0])


# ---- matrix products -----------------------------------------------------------------------------
MM = define("mm(Tensor self, Tensor mat2) -> Tensor", torch.mm)
BMM = define("bmm(Tensor self, Tensor mat2) -> Tensor", torch.bmm)
ADDMM = define(
    "addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
    lambda self, mat1, mat2, beta=1, alpha=1: torch.addmm(self, mat1, mat2, beta=beta, alpha=alpha),
)
registration.matmul(MM, BMM, ADDMM)(noted(loops.matmul))


def test_matrix_products() -> None:
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    both(OPS.mm, a, b)
    both(lambda x, y: OPS.mm(x.t(), y), torch.randn(4, 3), b)
    both(lambda x, y: OPS.mm(x, y.t()), a, torch.randn(5, 4))
    both(lambda x, y: OPS.mm(x[:, ::2], y), torch.randn(3, 8), b)
    both(OPS.mm, torch.randn(0, 4), b)
    both(OPS.bmm, torch.randn(2, 3, 4), torch.randn(2, 4, 5))
    both(lambda x, y: OPS.bmm(x.expand(2, 3, 4), y), torch.randn(1, 3, 4), torch.randn(2, 4, 5))
    for bias in ((5,), (3, 5), (1, 5), (3, 1), ()):
        both(lambda c, x, y: OPS.addmm(c, x, y, beta=0.5, alpha=2), torch.randn(bias), a, b)
    assert trnx_torch.get_fallback_ops() == {}
    both(OPS.mm, torch.randn(3, 0), torch.randn(0, 5))  # a sum over nothing is 0, without a kernel
    assert trnx_torch.get_fallback_ops() == {}
    assert REQUESTS[1].option("left_rows") == "contiguous"
    assert REQUESTS[1].inputs[0].layout == "strided"


def test_matrix_products_that_do_not_fit() -> None:
    n = {"device": "neuron"}
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        OPS.mm(torch.ones(2, 3, **n), torch.ones(4, 2, **n))
    with pytest.raises(RuntimeError, match="'self' on neuron:0 and 'mat2' on cpu"):
        OPS.mm(torch.ones(2, 3, **n), torch.ones(3, 2))


# ---- kernels written in Python -------------------------------------------------------------------
def test_python_kernel_and_launch() -> None:
    name = define("halve(Tensor self) -> Tensor", lambda self: self / 2)
    kernel: list[Kernel] = []

    @registration.python_kernel(name)
    def halve(self: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(self)
        registration.launch(kernel[0].address, [out, self], [self.numel(), 1, 1])
        return out

    operand = registration.Operand("self", torch.float32, "contiguous")
    half = loops.ir.Constant(loops.ir.FloatType(), 0.5)
    request = KernelRequest("pointwise", name, (operand,), (operand,), (), (), torch.float32, (1,))
    kernel.append(loops.pointwise(request, lambda b, v: b.fmul(v["self"], half)))
    assert OPS.halve(torch.full((3,), 3.0, device="neuron")).tolist() == [1.5] * 3
    assert trnx_torch.get_executed_ops()[name] == 1
    with pytest.raises(TypeError, match="takes neuron tensors"):
        registration.launch(kernel[0].address, [torch.ones(2)], [1])
    with pytest.raises(ValueError, match="must not be 0"):
        registration.launch(0, [], [])


def test_python_kernel_without_code_falls_back() -> None:
    name = define(
        "maybe(Tensor self, Tensor[] more, *, float by) -> (Tensor, Tensor)",
        lambda self, more, by: (self * by + more[0], more[0].clone()),
    )

    @registration.python_kernel(name)
    def maybe(self: torch.Tensor, more: list, *, by: float) -> None:
        raise registration.NoKernel("none today")

    x = torch.ones(3, device="neuron")
    first, second = OPS.maybe(x, [x * 2], by=3.0)
    assert first.device.type == "neuron"
    assert (first.tolist(), second.tolist()) == ([5.0] * 3, [2.0] * 3)
    assert trnx_torch.get_fallback_ops()[name] == 1
    assert name not in trnx_torch.get_executed_ops()


# ---- along one dimension -------------------------------------------------------------------------
@pytest.mark.parametrize("dim", [0, 1, 2, -1])
@pytest.mark.parametrize(
    "view",
    [
        lambda x: x,
        lambda x: x.permute(2, 0, 1),
        lambda x: x[:, ::2],
        lambda x: x[:1, :, 1:2],
        lambda x: x.expand(5, 2, 4, 3)[1],
    ],
)
def test_rowwise_operators(dim: int, view: Callable) -> None:
    x, g = torch.randn(2, 4, 3), torch.randn(2, 4, 3)
    for function in (torch.softmax, torch.log_softmax):
        grads = []
        for device in ("cpu", "neuron"):
            leaf = x.clone().to(device).requires_grad_()
            out = function(view(leaf), dim)
            out.backward(view(g.to(device)))
            grads += [out.detach().cpu(), leaf.grad.cpu()]
        torch.testing.assert_close(grads[2:], grads[:2], rtol=1e-5, atol=1e-6)
    assert not {op for op in trnx_torch.get_fallback_ops() if "softmax" in op}


def test_rowwise_edges() -> None:
    n = {"device": "neuron"}
    assert torch.softmax(torch.tensor(3.0, **n), 0).item() == 1.0
    assert torch.softmax(torch.ones(0, 3, **n), 1).shape == (0, 3)
    half = torch.ones(2, 4, dtype=torch.bfloat16, **n)
    assert torch.softmax(half, 1).dtype == torch.bfloat16
    assert torch.softmax(half, 1, dtype=torch.float32).tolist() == [[0.25] * 4] * 2
    out = torch.empty(0, **n)
    assert torch.softmax(torch.ones(2, 2, **n), 0, out=out) is out
    assert out.tolist() == [[0.5, 0.5]] * 2
    with pytest.raises(IndexError, match="Dimension out of range"):
        torch.softmax(half, 2)
    with pytest.raises(ValueError, match="does not work along an argument `dim`"):
        registration.rowwise(MM)(lambda request: None)

"""jit: keys, trees, static and donated arguments, transforms around it, explanations, options."""

from __future__ import annotations

import dataclasses
import gc
import threading
import traceback
import weakref
from typing import Any, NamedTuple

import numpy as np
import pytest

from trnx import transforms
from trnx.core import config, errors
from trnx.core.tracing import Tracer
from trnx.ops import functions as F
from trnx.runtime.array import Array, DonatedError
from trnx.runtime.convert import from_host
from trnx.runtime.fallback import host_calls
from trnx.runtime.jit import Jitted, jit, make_ir
from trnx.runtime.stages import STAGES
from trnx.testing import assert_compiles, count_compiles, explain_recompiles

X = from_host(np.arange(6, dtype=np.float32).reshape(2, 3))
ONES = from_host(np.ones(3, np.float32))
HERE = "test_jit.py"


def values(tree: Any) -> Any:
    """Nested lists of an Array."""
    return tree.tolist()


# ---- evaluation op by op
def test_evaluation_compiles_once_per_type() -> None:
    """A second call of the same types compiles nothing; another type does."""
    x = from_host(np.full((3, 5), 2, np.float32))
    F.mul(x, x)
    with assert_compiles(0):
        assert values(F.mul(x, x)) == [[4.0] * 5] * 3
    with count_compiles() as count:
        F.mul(from_host(np.ones((7, 11), np.float32)), from_host(np.ones((7, 11), np.float32)))
    assert (count(), count.events[0].kind, count.events[0].name) == (1, "op", "mul")


def test_python_numbers_are_inputs() -> None:
    """Another number compiles nothing, and its weak type stays."""
    F.mul(from_host(3.0), 2.0)
    with assert_compiles(0):
        result = F.mul(from_host(3.0), 5.0)
    assert result.item() == 15.0
    assert F.mul(2.0, 3.0).weak
    assert not F.mul(from_host(2.0), 3.0).weak


def test_arrays_of_two_devices_do_not_meet() -> None:
    """One sentence with the remedy."""
    with pytest.raises(errors.UnsupportedError, match=r"on neuron and on cpu meet.*device_put"):
        F.add(X, from_host(np.ones((2, 3), np.float32), device="cpu"))


def test_results_live_on_the_device_of_the_operands() -> None:
    """A program for cpu gives arrays on cpu; NumPy operands follow."""
    y = F.add(from_host([1.0], device="cpu"), np.ones(1, np.float32))
    assert (y.device.kind, y.tolist()) == ("cpu", [2.0])


# ---- trees
class Pair(NamedTuple):
    """A named tuple is a container."""

    left: Any
    right: Any


def test_trees_in_and_out() -> None:
    """Tuples, lists, dicts, named tuples and None keep their shape."""

    @jit
    def f(tree: Any, *, scale: Any) -> Any:
        return {"a": [F.mul(tree["x"], scale)], "b": (None, Pair(tree["y"][0], tree["y"][1]))}

    out = f({"x": ONES, "y": (X, 2.0)}, scale=from_host(np.full(3, 2, np.float32)))
    assert values(out["a"][0]) == [2.0] * 3
    assert out["b"][0] is None
    assert isinstance(out["b"][1], Pair)
    assert values(out["b"][1].left) == values(X)
    assert out["b"][1].right.item() == 2.0


def test_containers_are_inputs_not_constants() -> None:
    """Results follow the contents of a list at every call."""
    f = jit(lambda ts: F.add(ts[0], 1))
    assert [int(f([from_host(i)])) for i in range(5)] == [1, 2, 3, 4, 5]


def test_unknown_container_is_an_error_with_its_path() -> None:
    """The class, the argument path and a remedy."""

    class Box:
        pass

    with pytest.raises(TypeError, match=r"argument ts\[1\] has type .*Box.*register_dataclass"):
        jit(lambda ts: ts[0])([ONES, Box()])
    with pytest.raises(TypeError, match=r"value output\['k'\] has type .*Box"):
        jit(lambda t: {"k": Box()})(ONES)


@pytest.mark.parametrize("value", [3, 2.5, True, np.float32(2), np.arange(3, dtype=np.float32)])
def test_leaves_of_every_kind(value: Any) -> None:
    """Python numbers, NumPy scalars and arrays become arrays of their own type."""
    f = jit(lambda x, y: (x, y))
    for _ in range(2):
        out, _ = f(value, ONES)
        assert isinstance(out, Array)
        np.testing.assert_array_equal(np.asarray(out), value)
    assert len(f.entries()) == 1


# ---- keys
def test_one_compile_per_key() -> None:
    """Second call: nothing. Another shape, dtype or tree: one more each."""
    f = jit(lambda *xs: F.add(xs[0], xs[-1]))
    for arguments in ((ONES,), (X,), (from_host([1, 2]),), (ONES, ONES)):
        with assert_compiles(1):
            f(*arguments)
        with assert_compiles(0):
            f(*arguments)


def test_changing_python_numbers_does_not_compile() -> None:
    """Whatever the values, also when two of them are equal."""
    f = jit(lambda w, lr, eps: F.sub(w, F.spread(F.add(lr, eps), w)))
    f(ONES, 0.1, 1e-8)
    with assert_compiles(0):
        for lr in (0.05, 1e-8, 0.0, -0.0, float("inf")):
            assert f(ONES, lr, 1e-8).tolist() == pytest.approx([1 - lr] * 3)


def test_int_and_float_are_two_keys() -> None:
    """1 and 1.0 have different types."""
    f = jit(lambda w, n: F.convert(n, np.float32))
    assert (f(ONES, 1).item(), f(ONES, 1.5).item(), f(ONES, True).item()) == (1.0, 1.5, 1.0)
    assert len(f.entries()) == 3


def test_weak_and_strong_are_two_keys() -> None:
    """A weak f32 gives way to bf16, a strong one does not."""
    f = jit(lambda w, s: s)
    assert f(ONES, 2.0).weak
    assert not f(ONES, from_host(2.0)).weak


def test_each_device_has_its_own_executable() -> None:
    """One trace serves both devices; each compiles once."""
    f = jit(lambda x: F.add(x, x))
    with assert_compiles(2) as count:
        for device in ("neuron", "cpu", "neuron", "cpu"):
            assert f(from_host([1.0], device=device)).device.kind == device
    assert len(f.entries()) == 1
    assert [event.device for event in count.events] == ["neuron", "cpu"]


def test_equal_programs_share_their_code() -> None:
    """Two functions of equal content: two executables, one key."""

    def make() -> Jitted:
        def same(x: Any) -> Any:
            return F.mul(F.add(x, x), x)

        return jit(same)

    with count_compiles() as count:
        make()(X)
        make()(X)
    assert count() == 2
    assert len(count.keys) == 1


def test_captured_arrays_are_inputs_of_the_code() -> None:
    """Two captured arrays of one type share code; each function keeps its own values."""

    def make(k: Array) -> Jitted:
        def scale(x: Any) -> Any:
            return F.mul(x, k)

        return jit(scale)

    with count_compiles() as count:
        a, b = make(from_host([1.0, 2.0, 3.0]))(ONES), make(from_host([4.0, 5.0, 6.0]))(ONES)
    assert (values(a), values(b)) == ([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])
    assert len(count.keys) == 1


def test_jit_of_zero_arguments_follows_the_default_device() -> None:
    """Without an array the device is the default of the moment."""
    from trnx.runtime.devices import use_device

    f = jit(lambda: F.full((2,), 3.0))
    assert f().device.kind == "neuron"
    with use_device("cpu"):
        assert f().device.kind == "cpu"
    assert f().tolist() == [3.0, 3.0]


# ---- static arguments
def test_equal_static_values_share_one_trace() -> None:
    """Equality decides; type counts, so 1, 1.0 and True are three."""
    f = jit(lambda x, c: F.mul(x, x), static_argnums=1)
    with assert_compiles(2):
        f(ONES, (1, 2))
        f(ONES, tuple(range(1, 3)))
        f(ONES, (1, 3))
    g = jit(lambda x, c: x, static_argnums=1)
    for value in (1, 1.0, True, 1):
        g(ONES, value)
    assert len(g.entries()) == 3


@pytest.mark.parametrize(
    "how", [{"static_argnums": 1}, {"static_argnums": -1}, {"static_argnames": "mode"}]
)
def test_a_static_parameter_is_static_however_it_is_passed(how: dict[str, Any]) -> None:
    """By position or by name, given as number or name."""
    seen = []

    def f(x: Any, mode: str) -> Any:
        seen.append(mode)
        return x if mode == "keep" else F.neg(x)

    g = jit(f, **how)
    assert values(g(ONES, "keep")) == [1.0] * 3
    assert values(g(ONES, mode="flip")) == [-1.0] * 3
    assert values(g(x=ONES, mode="flip")) == [-1.0] * 3
    assert seen == ["keep", "flip", "flip"]


def test_static_argument_in_front() -> None:
    """Order of the others is kept."""
    f = jit(lambda n, x, k, y: F.sub(F.mul(x, float(n)), F.mul(y, float(k))), static_argnums=(0, 2))
    assert values(f(3, ONES, 2, ONES)) == [1.0] * 3


def test_unhashable_static_argument() -> None:
    """Names the argument and its type, with a remedy for each case."""

    @dataclasses.dataclass
    class Config:
        n: int

    f = jit(lambda x, c: x, static_argnums=1)
    with pytest.raises(TypeError, match=r"Static argument c of <lambda>.*Config.*frozen=True"):
        f(ONES, Config(3))
    with pytest.raises(TypeError, match=r"type .*Array.*Leave it out of static_argnums"):
        f(ONES, X)
    with pytest.raises(ValueError, match="Argument 0 of identity is static and donated"):
        jit(identity, static_argnums=0, donate_argnums=0)


def identity(x: Any) -> Any:
    """Its argument."""
    return x


# ---- donation
def test_donated_argument_gives_its_memory() -> None:
    """The result takes the block; the argument is gone, the others stay."""
    f = jit(lambda w, g: F.sub(w, g), donate_argnums=0)
    for _ in range(2):
        w = from_host([1.0, 2.0, 3.0])
        address = w.address
        out = f(w, ONES)
        assert out.tolist() == [0.0, 1.0, 2.0]
        assert w.is_donated()
        assert out.address == address
    with pytest.raises(DonatedError, match=r"f32\[3\] array was donated.*donate_argnums"):
        f(w, ONES)
    assert values(ONES) == [1.0] * 3


def test_donated_tree() -> None:
    """Every leaf of a donated argument goes."""
    f = jit(lambda p, x: {k: F.add(v, x) for k, v in p.items()}, donate_argnums=(0,))
    params = {"a": from_host([1.0]), "b": from_host([2.0])}
    out = f(params, from_host([1.0]))
    assert [out[k].item() for k in "ab"] == [2.0, 3.0]
    assert all(v.is_donated() for v in params.values())


def test_donation_never_changes_what_others_see() -> None:
    """A NumPy view taken before keeps its values; one array passed twice is right."""
    f = jit(lambda w, g: F.add(w, g), donate_argnums=0)
    w = from_host([1.0, 2.0, 3.0])
    view = np.asarray(w)
    assert f(w, ONES).tolist() == [2.0, 3.0, 4.0]
    assert view.tolist() == [1.0, 2.0, 3.0]
    both = from_host([1.0, 2.0, 3.0])
    assert f(both, both).tolist() == [2.0, 4.0, 6.0]


# ---- transforms around jit and jit around transforms
def test_jit_inside_jit() -> None:
    """One executable."""
    inner = jit(lambda x: F.mul(x, x))
    outer = jit(lambda x: F.add(inner(x), inner(F.add(x, x))))
    with assert_compiles(1):
        assert values(outer(ONES)) == [5.0] * 3


def loss(w: Any, x: Any) -> Any:
    """A scalar of two arrays."""
    return F.reduce_sum(F.mul(F.mul(w, w), x), (0,))


def test_grad_of_jit_and_jit_of_grad_agree() -> None:
    """Both give 2 w x; a second call compiles nothing."""
    w, x = from_host([1.0, 2.0, 3.0]), from_host([1.0, 0.0, -1.0])
    for f in (transforms.grad(jit(loss)), jit(transforms.grad(loss))):
        assert values(f(w, x)) == [2.0, 0.0, -6.0]
        with assert_compiles(0):
            f(w, x)


def test_value_and_grad_under_jit_is_one_executable() -> None:
    """The demo's shape: one compile for value and gradient."""
    f = jit(transforms.value_and_grad(loss))
    with assert_compiles(1):
        value, gradient = f(ONES, ONES)
    assert (value.item(), values(gradient)) == (3.0, [2.0] * 3)


def test_vmap_of_jit() -> None:
    """Rows as a loop would give them; no compile at the second call."""
    f = transforms.vmap(jit(lambda row, k: F.mul(F.reduce_sum(row, (0,)), k)), in_axes=(0, None))
    assert values(f(X, from_host(2.0))) == [6.0, 24.0]
    with assert_compiles(0):
        f(X, from_host(2.0))


def test_jvp_of_jit() -> None:
    """Tangent of x*x."""
    y, t = transforms.jvp(jit(lambda x: F.mul(x, x)), (X,), (X,))
    np.testing.assert_array_equal(np.asarray(t), 2 * np.asarray(y))


def test_closure_over_a_traced_value() -> None:
    """An inner jit that captures a traced value is never kept for later calls."""
    inner_functions = []

    @jit
    def outer(x: Any) -> Any:
        inner = jit(lambda y: F.add(x, y))
        inner_functions.append(inner)
        return inner(F.mul(x, x))

    assert values(outer(ONES)) == [2.0] * 3
    assert inner_functions[0].entries() == ()


# ---- errors show the user's line
def branchy(x: Any) -> Any:
    """Asks for a truth value."""
    y = F.mul(x, x)
    if F.reduce_sum(y, (0,)):
        return x
    return y


def test_branch_on_a_traced_value() -> None:
    """The function, the line, the argument, the remedy; the traceback ends on the user's line."""
    with pytest.raises(TypeError) as caught:
        jit(branchy)(ONES)
    text = str(caught.value)
    for part in ("branchy", HERE, "it depends on x", "trnx.numpy.where or lax.cond"):
        assert part in text
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert frames[-1].line == "if F.reduce_sum(y, (0,)):"
    inner = [frame for frame in frames if not frame.filename.endswith(HERE)]
    assert len(inner) <= 1, "one frame of jit itself at most"


def test_all_frames_on_request() -> None:
    """Option traceback_filter."""
    with config.traceback_filter(False), pytest.raises(TypeError) as caught:
        jit(branchy)(ONES)
    files = {frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)}
    assert any(file.endswith("tracing.py") for file in files)


def test_leaked_value() -> None:
    """A traced value that outlives its trace names the line that made it."""
    kept: list[Any] = []
    jit(lambda x: kept.append(F.mul(x, x)))(ONES)
    assert isinstance(kept[0], Tracer)
    with pytest.raises(TypeError, match=r"leaked out of the trace of <lambda>.*Return the value"):
        F.add(kept[0], ONES)


def test_failed_trace_is_not_kept() -> None:
    """The same error again at the next call."""
    f = jit(branchy)
    for _ in range(2):
        with pytest.raises(TypeError, match="no truth value"):
            f(ONES)
    assert f.entries() == ()


def test_wrong_arguments_are_the_functions_own_error() -> None:
    """As without jit."""
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        jit(loss)(ONES)


def test_jit_needs_a_function() -> None:
    """A number is none."""
    with pytest.raises(TypeError, match="jit needs a function and got int"):
        jit(3)


# ---- explanations
def explained(f: Jitted, first: tuple[Any, ...], second: tuple[Any, ...]) -> str:
    """Why the second call is traced again."""
    f(*first)
    with explain_recompiles() as text:
        f(*second)
    return text()


def step(batch: Any, lr: Any, mode: str = "train") -> Any:
    """A function with a tree and a static argument."""
    return F.mul(batch["x"], F.spread(lr, batch["x"]))


FOUR = from_host(np.ones(4, np.float32))


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (({"x": ONES}, 0.5), ({"x": FOUR}, 0.5), "argument batch['x']: f32[3] became f32[4]"),
        (({"x": ONES}, 0.5), ({"x": ONES}, from_host(0.5)), "argument lr: f32[]~ became f32[]"),
        (
            ({"x": ONES}, 0.5, "train"),
            ({"x": ONES}, 0.5, "eval"),
            "static argument mode: 'train' became 'eval'",
        ),
        (({"x": ONES}, 0.5), ({"x": ONES, "z": ONES}, 0.5), "structure: batch['z'] is new"),
        (({"x": ONES, "z": ONES}, 0.5), ({"x": ONES}, 0.5), "structure: batch['z'] is gone"),
    ],
)
def test_a_miss_is_explained(first: tuple[Any, ...], second: tuple[Any, ...], reason: str) -> None:
    """Function with file:line, call site, and what differs from the nearest earlier call."""
    text = explained(jit(step, static_argnums=2), first, second)
    assert reason in text
    assert "trnx: step (" in text
    assert f"{HERE}:{step.__code__.co_firstlineno}" in text
    assert f"called at {HERE}:" in text


def test_the_nearest_earlier_call_is_compared() -> None:
    """Not the last one."""
    f = jit(lambda a, b: F.add(a, a))
    f(ONES, ONES)
    f(X, X)
    text = explained(f, (FOUR, from_host([1])), (ONES, FOUR))
    assert text.count("became") == 1
    assert "argument b: f32[3] became f32[4]" in text


def test_explain_option_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """TRNX_EXPLAIN=1 prints every miss, also the first."""
    f = jit(lambda a: F.add(a, a))
    with config.explain(True):
        f(ONES)
        f(FOUR)
        f(FOUR)
    lines = capsys.readouterr().err.splitlines()
    assert "is traced for the first time" in lines[0]
    assert lines[1].endswith("nearest of 1 earlier calls:")
    assert lines[2].strip() == "argument a: f32[3] became f32[4]"
    assert len(lines) == 3


def test_debug_level_1_prints_compiles(capsys: pytest.CaptureFixture[str]) -> None:
    """Kind, name, device, time and key."""
    with config.debug(1):
        jit(identity)(from_host(np.ones((2, 2, 2), np.float32)))
    assert "jit identity for neuron in" in capsys.readouterr().err


# ---- options
def test_disable_jit_runs_op_by_op() -> None:
    """Concrete values inside."""
    seen = []

    @jit
    def f(x: Any) -> Any:
        seen.append(type(x))
        return F.add(x, x)

    f(ONES)
    with config.disable_jit(True):
        f(ONES)
    assert seen[-1] is Array


def nan_maker(x: Any) -> Any:
    """The log of a negative number."""
    y = F.mul(x, x)
    return F.log(F.neg(y))  # this line


@pytest.mark.parametrize(
    "wrap", [jit, lambda f: f, lambda f: jit(jit(f))], ids=["jit", "eager", "nested"]
)
def test_debug_nans_names_the_operation_and_the_line(wrap: Any) -> None:
    """Operation, count, shape and the user's line, inside jit as well."""
    f = wrap(nan_maker)
    x = from_host([2.0, 0.0, 3.0])
    assert np.isnan(f(x).tolist()[0])
    line = nan_maker.__code__.co_firstlineno + 3
    with (
        config.debug_nans(True),
        pytest.raises(
            FloatingPointError, match=rf"log made 2 NaN in 3 values of f32\[3\] \(at {HERE}:{line}"
        ),
    ):
        f(x)


def test_debug_nans_has_no_false_alarm() -> None:
    """An infinity is none."""
    with config.debug_nans(True):
        assert jit(lambda x: F.div(ONES, x))(from_host([0.0, 1.0, 2.0])).tolist()[0] == np.inf


# ---- the object
def test_decorator_forms_and_names() -> None:
    """With and without arguments; name, doc and signature are the function's."""

    @jit
    def one(x: Any) -> Any:
        """Doc."""
        return x

    @jit(static_argnames=("n",))
    def two(x: Any, n: int) -> Any:
        return F.mul(x, float(n))

    assert (one.__name__, one.__doc__, one.__wrapped__(3)) == ("one", "Doc.", 3)
    assert values(two(ONES, n=2)) == [2.0] * 3
    assert repr(two) == "<jit of two: 1 traced>"
    two.clear_cache()
    assert two.entries() == ()


def test_methods() -> None:
    """A jitted method gets its instance; a registered one is a container."""
    from trnx.core import tree

    @dataclasses.dataclass
    class Layer:
        w: Any

        @jit
        def apply(self, x: Any) -> Any:
            return F.mul(self.w, x)

    tree.register_dataclass(Layer, ["w"])
    assert values(Layer(from_host([2.0] * 3)).apply(ONES)) == [2.0] * 3


def test_functions_are_freed() -> None:
    """Nothing global keeps a jitted function or its program alive."""
    f = jit(lambda x: F.add(x, x))
    f(ONES)
    watch = weakref.ref(f.entries()[0].program)
    del f
    gc.collect()
    assert watch() is None


def test_threads_share_a_jitted_function() -> None:
    """Concurrent first calls give right results."""
    f = jit(lambda x: F.mul(x, x))
    inputs = [from_host(np.full(17, k, np.float32)) for k in range(8)]
    results: dict[int, list[float]] = {}

    def work(k: int) -> None:
        results[k] = f(inputs[k]).tolist()

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {k: [float(k * k)] * 17 for k in range(8)}


# ---- looking inside
def test_make_ir_gives_the_program() -> None:
    """Without compiling anything."""
    with assert_compiles(0):
        program = make_ir(lambda x, k: F.mul(x, F.spread(k, x)))(ONES, 2.0)
    assert "mul" in str(program)
    assert [str(aval) for aval in program.in_avals] == ["f32[3]", "f32[]~"]


def test_lower_shows_every_stage() -> None:
    """Each pass by name, NKI source, tile program, cost, a simulated run, the executable."""
    f = jit(lambda x: F.reduce_sum(F.exp(x), (0,)))
    with assert_compiles(0):
        lowered = f.lower(ONES)
        for stage in STAGES:
            assert lowered.as_text(stage)
        assert "@nki.jit" in lowered.as_text("nki")
        assert "activation" in lowered.as_text("schedule")
        assert lowered.cost().total_us > 0
        result = lowered.simulate()
    assert result.findings == ()
    np.testing.assert_allclose(result.outputs[0], 3 * np.e, rtol=1e-6)
    assert lowered.compile()([ONES])[0].item() == pytest.approx(3 * np.e)
    with pytest.raises(errors.TraceError, match=r"no stage 'llvm'.*Use one of trace, "):
        lowered.as_text("llvm")


def test_a_fallback_is_named_when_it_is_compiled() -> None:
    """A product of int64 matrices has no kernel on neuron: the event says so; it is counted."""
    f = jit(lambda x: F.dot_general(x, x, ((1,), (0,))))
    x = np.array([[2**20, 1], [0, 3]])
    before = host_calls["dot_general"]
    with count_compiles() as count:
        assert f(from_host(x)).tolist() == (x @ x).tolist()
    assert count.events[0].fallbacks == ("dot_general",)
    assert host_calls["dot_general"] == before + 1

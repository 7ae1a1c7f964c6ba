"""Tracing: which interpretation of primitives is in force.

A context variable holds the current trace. ``primitive.bind`` hands operands to it. The default
trace evaluates; a :class:`RecordTrace` appends equations to a program; transforms add traces of
their own. A trace knows its parent. Operands that are not its own tracers are constants to it, and
rules of primitives run with the parent current, so no interpreter stack is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from trnx.core.avals import Aval, aval_of, intern, register_array_type
from trnx.core.dims import Dim, Size
from trnx.core.errors import TraceError, UnsupportedError, message
from trnx.core.program import Atom, Equation, Params, Program, Var, literal
from trnx.core.source import Source, current_source

if TYPE_CHECKING:
    from trnx.core.primitive import Primitive


class Trace:
    """One interpretation of primitives.

    Attributes:
        parent: the trace that was current when this one began; None for evaluation.
        level: distance from evaluation.
        name: name of the user's function, for error texts.
        alive: False once the trace has ended; its tracers are dead then.
    """

    __slots__ = ("parent", "level", "name", "alive")

    kind = "trace"

    def __init__(self, parent: Trace | None, name: str = "") -> None:
        self.parent = parent
        self.level: int = 0 if parent is None else parent.level + 1
        self.name = name
        self.alive = True

    def process(
        self, primitive: Primitive, operands: Sequence[Any], params: Params
    ) -> Sequence[Any]:
        """Apply `primitive`; returns one value per output."""
        raise NotImplementedError

    def end(self) -> None:
        """Mark the trace as ended; later use of its tracers raises."""
        self.alive = False

    def check_operand(self, operand: Any) -> None:
        """Raise TraceError when `operand` is a tracer this trace must not see."""
        if isinstance(operand, Tracer):
            trace = operand._trace
            if not trace.alive:
                raise leak_error(operand)
            if trace.level >= self.level and trace is not self:
                raise TraceError(
                    message(
                        f"A value {operand.aval} traced by {_described(trace)} is used outside of "
                        f"it, while it still runs",
                        None,
                        "Return it from the traced function",
                    )
                )


Evaluator = Callable[["Primitive", Sequence[Any], Params], Sequence[Any]]


class EvalTrace(Trace):
    """The default trace: computes each primitive at once through the evaluator slot."""

    __slots__ = ("evaluator",)

    kind = "evaluation"

    def __init__(self) -> None:
        super().__init__(None)
        self.evaluator: Evaluator | None = None

    def process(
        self, primitive: Primitive, operands: Sequence[Any], params: Params
    ) -> Sequence[Any]:
        for operand in operands:
            if isinstance(operand, Tracer):
                self.check_operand(operand)
        if self.evaluator is None:
            raise UnsupportedError(
                message(f"Nothing can evaluate {primitive.name} yet", None, "Import trnx first")
            )
        return self.evaluator(primitive, operands, params)


EVAL_TRACE = EvalTrace()
_current_trace: ContextVar[Trace] = ContextVar("trnx_trace", default=EVAL_TRACE)
current_trace = _current_trace


def set_evaluator(evaluator: Evaluator | None) -> Evaluator | None:
    """Install ``evaluator(primitive, operands, params) -> list of arrays``; returns the old one.

    Operands are registered arrays, NumPy arrays and scalars, or Python scalars (weak types).
    """
    old = EVAL_TRACE.evaluator
    EVAL_TRACE.evaluator = evaluator
    return old


@contextmanager
def use_trace(trace: Trace) -> Iterator[None]:
    """Make `trace` current inside the block."""
    token = _current_trace.set(trace)
    try:
        yield
    finally:
        _current_trace.reset(token)


def is_tracing() -> bool:
    """True inside any trace but evaluation."""
    return _current_trace.get() is not EVAL_TRACE


class Tracer:
    """A traced value: what user code sees instead of an array.

    Arithmetic, indexing and array methods are installed by `trnx.numpy` (see
    :func:`install_operators`). Everything that needs a concrete value raises TraceError.
    """

    __slots__ = ("_trace", "aval", "source", "__weakref__")

    # NumPy arrays and scalars on the left of an operator give way to the tracer's own operators.
    __array_priority__ = 1000

    def __init__(self, trace: Trace, aval: Aval, source: Source | None = None) -> None:
        self._trace = trace
        self.aval = aval
        self.source: Source = current_source() if source is None else source

    @property
    def shape(self) -> tuple[Size, ...]:
        """Sizes of the axes."""
        return self.aval.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""
        return self.aval.dtype

    @property
    def weak(self) -> bool:
        """True when the dtype gives way in promotion."""
        return self.aval.weak

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.aval.shape)

    @property
    def size(self) -> Size:
        """Number of elements."""
        return self.aval.size

    def __len__(self) -> int:
        if not self.aval.shape:
            raise TypeError(
                message(
                    f"A value {self.aval} has no length", None, "Only arrays with axes have one"
                )
            )
        size = self.aval.shape[0]
        return size.__index__() if isinstance(size, Dim) else size

    def __repr__(self) -> str:
        return f"<{self.aval} traced by {_described(self._trace)}>"

    def concrete(self) -> Any:
        """The array behind a traced value that is known (grad outside jit), else None.

        Only a truth value or an int may be read from it: both are constant almost everywhere, so
        no derivative is lost.
        """
        return None

    def provenance(self) -> str:
        """A few words on what the value depends on; empty when unknown."""
        return ""

    # Requests for a concrete value ----------------------------------------------------------------

    def _refuse(self, use: str, remedy: str) -> NoReturn:
        if not self._trace.alive:
            raise leak_error(self)
        origin = self.provenance()
        raise TraceError(
            message(
                f"A traced value {self.aval} in {_described(self._trace)} {use}"
                + (f"; {origin}" if origin else ""),
                None,
                remedy,
            )
        )

    def _concrete_or_refuse(self, use: str, remedy: str) -> Any:
        value = self.concrete() if self._trace.alive else None
        if value is None:
            self._refuse(use, remedy)
        return value

    def __bool__(self) -> bool:
        return bool(
            self._concrete_or_refuse(
                "has no truth value",
                "Use trnx.numpy.where or lax.cond, or make the argument static",
            )
        )

    def __int__(self) -> int:
        return int(self._concrete_or_refuse("cannot become a Python int", _NUMBER_REMEDY))

    def __float__(self) -> float:
        self._refuse("cannot become a Python float", _NUMBER_REMEDY)

    def __complex__(self) -> complex:
        self._refuse("cannot become a Python complex", _NUMBER_REMEDY)

    def __index__(self) -> int:
        self._refuse(
            "cannot be a Python index or size",
            "Make the argument static, or index arrays with it through trnx.numpy.take",
        )

    def item(self) -> NoReturn:
        """Always an error: a traced value has no Python number."""
        self._refuse("cannot become a Python number", _NUMBER_REMEDY)

    def tolist(self) -> NoReturn:
        """Always an error: a traced value has no Python list."""
        self._refuse("cannot become a list", _NUMBER_REMEDY)

    def __array__(self, dtype: Any = None, copy: Any = None) -> NoReturn:
        self._refuse("was passed to NumPy", _NUMPY_REMEDY)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> NoReturn:
        name = getattr(func, "__name__", "a function")
        self._refuse(f"was passed to numpy.{name}", f"Use trnx.numpy.{name} instead")

    def __format__(self, spec: str) -> str:
        if spec:
            self._refuse(f"cannot be formatted as {spec!r}", _NUMBER_REMEDY)
        return repr(self)

    def __setitem__(self, index: object, value: object) -> NoReturn:
        raise TypeError(
            message(
                f"A traced value {self.aval} is immutable and cannot be assigned to",
                None,
                "Make a new one: x = x.at[index].set(value)",
            )
        )

    def __copy__(self) -> Tracer:
        return self

    def __deepcopy__(self, memo: object) -> Tracer:
        return self

    def __reduce__(self) -> NoReturn:
        self._refuse("cannot be pickled", "Pickle arrays outside the traced function")

    def __hash__(self) -> int:
        raise TypeError(
            message(
                f"A traced value {self.aval} is not hashable",
                None,
                "Use a Python value as key, or make the argument static",
            )
        )


_NUMBER_REMEDY = "Keep it an array, or make the argument static"
_NUMPY_REMEDY = "Use trnx.numpy functions, or call NumPy outside the traced function"

register_array_type(Tracer, attrgetter("aval"), lambda tracer: tracer.__array__())


def install_operators(methods: dict[str, Any]) -> None:
    """Give every tracer these methods and properties (called by `trnx.numpy`)."""
    for name, value in methods.items():
        setattr(Tracer, name, value)


def _described(trace: Trace) -> str:
    return f"{trace.kind} of {trace.name}" if trace.name else trace.kind


def leak_error(tracer: Tracer) -> TraceError:
    """The error for a tracer that is used after its trace ended."""
    return TraceError(
        message(
            f"A value {tracer.aval} made at {tracer.source} leaked out of the "
            f"{_described(tracer._trace)}, which has ended",
            None,
            "Return the value from the traced function instead of storing it",
        )
    )


class RecordTracer(Tracer):
    """A tracer that stands for a variable of the program being recorded."""

    # Not `var`: that is a method arrays have.
    __slots__ = ("bound",)

    _trace: RecordTrace

    def __init__(self, trace: RecordTrace, var: Var, source: Source) -> None:
        self._trace = trace
        self.aval = var.aval
        self.source = source
        self.bound = var

    def provenance(self) -> str:
        return self._trace.provenance(self.bound)


class RecordTrace(Trace):
    """Appends every primitive to a program.

    Args:
        name: name of the function.
        parent: trace that is current outside; its values may be captured as constants.
        input_names: names of the inputs for error texts, if known.
    """

    __slots__ = ("input_names", "inputs", "equations", "_constants", "_by_id", "_keep")

    kind = "trace"

    def __init__(
        self, name: str, parent: Trace | None = None, input_names: Sequence[str] = ()
    ) -> None:
        super().__init__(_current_trace.get() if parent is None else parent, name)
        self.input_names = tuple(input_names)
        self.inputs: list[Var] = []
        self.equations: list[Equation] = []
        self._constants: list[tuple[Var, Any]] = []
        self._by_id: dict[int, tuple[Var, Any]] = {}
        self._keep: list[Any] = []  # captured objects, so that their ids stay theirs

    def add_input(self, aval: Aval) -> RecordTracer:
        """Add an input of this type and return its tracer."""
        var = Var(intern(aval))
        self.inputs.append(var)
        return RecordTracer(self, var, current_source())

    def process(
        self, primitive: Primitive, operands: Sequence[Any], params: Params
    ) -> Sequence[Any]:
        atoms: list[Atom] = []
        for operand in operands:
            if type(operand) is RecordTracer and operand._trace is self:
                atoms.append(operand.bound)
            else:
                atoms.append(self.atom(operand))
        if not self.alive:
            raise TraceError(
                message(f"The {_described(self)} has ended", None, "Do not keep traces")
            )
        avals = primitive.out_avals(tuple([atom.aval for atom in atoms]), params)
        source = current_source()
        outputs = tuple([Var(aval) for aval in avals])
        self.equations.append(Equation(primitive, tuple(atoms), outputs, params, source))
        return [RecordTracer(self, var, source) for var in outputs]

    def atom(self, value: Any) -> Atom:
        """The atom for an operand: own variable, literal for a scalar, constant for an array."""
        if isinstance(value, Tracer):
            if isinstance(value, RecordTracer) and value._trace is self:
                return value.bound
            self.check_operand(value)
            return self._capture(value, value.aval, value)
        if isinstance(value, bool | int | float | complex | np.generic):
            return literal(value)
        return self._capture(value, aval_of(value), value)

    def _capture(self, key: Any, aval: Aval, value: Any) -> Var:
        known = self._by_id.get(id(key))
        is_foreign = isinstance(value, np.ndarray)
        if known is not None and (not is_foreign or _same_bytes(known[1], value)):
            return known[0]
        if is_foreign:
            # A NumPy array can change after this line; the program keeps the value of now.
            value = np.array(value, dtype=aval.dtype, order="C")
            value.flags.writeable = False
        var = Var(intern(aval))
        self._constants.append((var, value))
        self._by_id[id(key)] = (var, value)
        self._keep.append(key)
        return var

    def build(self, outputs: Sequence[Any]) -> Program:
        """The recorded program with these outputs (tracers, arrays or scalars)."""
        atoms = tuple([self.atom(value) for value in outputs])
        return Program(
            _identifier(self.name),
            tuple(self.inputs),
            tuple(self._constants),
            tuple(self.equations),
            atoms,
        )

    def provenance(self, var: Var) -> str:
        """Which inputs a variable depends on, and the line that made it, in one short clause."""
        made_by: dict[Var, Equation] = {
            output: equation for equation in self.equations for output in equation.outputs
        }
        seen: set[Var] = set()
        stack = [var]
        while stack:
            current = stack.pop()
            if current in seen:
                continue
            seen.add(current)
            equation = made_by.get(current)
            if equation is not None:
                stack.extend(atom for atom in equation.inputs if isinstance(atom, Var))
        names = [
            self.input_names[i] if i < len(self.input_names) else f"input {i}"
            for i, item in enumerate(self.inputs)
            if item in seen
        ]
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        clause = f"it depends on {shown}" if names else ""
        equation = made_by.get(var)
        if equation is not None:
            made = f"it is the {equation.primitive.name} of {equation.source}"
            clause = f"{made}; {clause}" if clause else made
        return clause


def _identifier(name: str) -> str:
    """A name that the text of programs can hold: ``lambda`` for ``<lambda>``."""
    if name.isidentifier():
        return name
    letters = "".join(c for c in name if c.isalnum() or c == "_")
    return letters if letters.isidentifier() else f"f{letters}"


def _same_bytes(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def trace_program(
    function: Callable[..., Sequence[Any]],
    avals: Sequence[Aval],
    name: str = "main",
    input_names: Sequence[str] = (),
) -> Program:
    """Record `function` over flat traced arguments.

    Args:
        function: takes one traced value per aval, returns a sequence of values.
        avals: types of the arguments.
        name: name of the program.
        input_names: names of the arguments for error texts.

    Returns:
        The program. Arrays and values of enclosing traces that `function` closes over become its
        constants, in order of first use; scalars become literals.
    """
    trace = RecordTrace(name, input_names=input_names)
    try:
        with use_trace(trace):
            outputs = function(*[trace.add_input(aval) for aval in avals])
            return trace.build(outputs)
    finally:
        trace.end()

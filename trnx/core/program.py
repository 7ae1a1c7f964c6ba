"""The typed IR: a :class:`Program` is a list of equations in single assignment form.

Variables have no names; the printer gives them names in order of appearance, so two programs that
differ only in naming print alike. Sub-programs (loop bodies, branches, called functions) are
parameter values of equations.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from trnx.core.avals import Aval, aval_of, to_numpy
from trnx.core.dims import Dim, DimVar, variables
from trnx.core.errors import TraceError, message
from trnx.core.source import UNKNOWN_SOURCE, Source

if TYPE_CHECKING:
    from trnx.core.primitive import Primitive


class Var:
    """A value of a program: an input, a constant or the output of one equation."""

    __slots__ = ("aval",)

    def __init__(self, aval: Aval) -> None:
        self.aval = aval

    def __repr__(self) -> str:
        return f"Var({self.aval})"


class Literal:
    """A scalar written into the program.

    Attributes:
        value: a 0-d NumPy value of ``aval.dtype``.
        aval: scalar type; weak when it comes from a Python number.
    """

    __slots__ = ("value", "aval")

    def __init__(self, value: np.generic, aval: Aval) -> None:
        self.value = value
        self.aval = aval

    def same_as(self, other: Literal) -> bool:
        """True for the same type and the same bits."""
        return self.aval == other.aval and self.value.tobytes() == other.value.tobytes()

    def __repr__(self) -> str:
        return f"Literal({self.value}: {self.aval})"


Atom: TypeAlias = Var | Literal


def scalar_of(atom: Atom) -> Any:
    """A literal as an operand: a Python number when weak, else a NumPy scalar."""
    assert isinstance(atom, Literal)
    return atom.value.item() if atom.aval.weak else atom.value


def literal(value: Any, aval: Aval | None = None) -> Literal:
    """A Literal from a Python or NumPy scalar; `aval` (default: the value's own) fixes the type."""
    kind = aval_of(value) if aval is None else aval
    with np.errstate(over="ignore"):  # a float beyond the dtype's range is inf, as in arrays
        return Literal(np.asarray(value).astype(kind.dtype)[()], kind)  # type: ignore[arg-type]


def _same(a: Any, b: Any) -> bool:
    """Equality that tells ``1`` from ``1.0`` and ``True``, ``0.0`` from ``-0.0``, and knows NaN."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if type(a) is tuple:
        return len(a) == len(b) and all(map(_same, a, b))
    if type(a) is float:
        if a != a:
            return bool(b != b)
        return bool(a == b) and math.copysign(1.0, a) == math.copysign(1.0, b)
    if type(a) is complex:
        return _same(a.real, b.real) and _same(a.imag, b.imag)
    if type(a) is Dim:
        return bool(a._terms == b._terms)
    return bool(a == b)


def _hash_of(value: Any) -> int:
    """A hash that agrees with :func:`_same`: every NaN hashes alike."""
    if type(value) is float and value != value:
        return 0x7FF8
    if type(value) is complex and value != value:
        return hash((_hash_of(value.real), _hash_of(value.imag)))
    if type(value) is tuple:
        return hash(tuple(_hash_of(part) for part in value))
    return hash(value)


class Annotation:
    """Base of parameter values that do not change what an equation computes.

    A user's derivative rule is one. Text, fingerprints and :func:`equal` know only its name.
    """

    __slots__ = ()

    name: str


@dataclass(frozen=True)
class NamedAnnotation(Annotation):
    """An annotation with a name of its own; without a subclass, what is left of one in a text."""

    name: str


class Params(Mapping[str, Any]):
    """Static parameters of an equation: a frozen mapping sorted by name, with hashable values.

    Values of different type are different (``1`` is not ``1.0``), so that a cache keyed by Params
    never mixes programs up.
    """

    __slots__ = ("_items", "_values", "_hash")

    def __init__(self, values: Mapping[str, Any], owner: str = "") -> None:
        """Freeze `values`; `owner` (a primitive's name) is used in the error text."""
        self._values: dict[str, Any] = (
            dict(sorted(values.items())) if len(values) > 1 else dict(values)
        )
        self._items: tuple[tuple[str, Any], ...] = tuple(self._values.items())
        try:
            self._hash = hash(tuple([(name, _hash_of(value)) for name, value in self._items]))
        except TypeError:
            for name, value in self._items:
                if not _is_hashable(value):
                    raise TraceError(
                        message(
                            f"Parameter {name} of {owner or 'an equation'} is not hashable: "
                            f"it holds a {_unhashable_part(value)}",
                            None,
                            "Pass arrays as operands and lists as tuples",
                        )
                    ) from None
            raise

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Params):
            return NotImplemented
        if self._hash != other._hash or len(self._items) != len(other._items):
            return False
        for (name, a), (other_name, b) in zip(self._items, other._items, strict=True):
            if name != other_name or not _same(a, b):
                return False
        return True

    def keys(self) -> Any:
        return self._values.keys()

    def items(self) -> Any:
        return self._values.items()

    def replace(self, **changes: Any) -> Params:
        """A copy with some parameters changed or added."""
        return Params({**self._values, **changes})

    def __repr__(self) -> str:
        return f"Params({', '.join(f'{k}={v!r}' for k, v in self._items)})"


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _unhashable_part(value: Any) -> str:
    if isinstance(value, tuple):
        for part in value:
            if not _is_hashable(part):
                return _unhashable_part(part)
    return type(value).__name__


NO_PARAMS = Params({})


@dataclass(frozen=True, slots=True, eq=False)
class Equation:
    """One application of a primitive.

    Attributes:
        primitive: what is applied.
        inputs: operands, variables or scalar literals.
        outputs: fresh variables.
        params: static parameters.
        source: the user's line.
    """

    primitive: Primitive
    inputs: tuple[Atom, ...]
    outputs: tuple[Var, ...]
    params: Params
    source: Source = UNKNOWN_SOURCE

    def __str__(self) -> str:
        from trnx.core.printing import equation_text

        return equation_text(self)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Program:
    """A function over arrays.

    Compared and hashed by identity, so that it can be a parameter value and a cache key; use
    :func:`equal` for structure and :func:`fingerprint` for a key that is stable across processes.

    Attributes:
        name: name of the traced function.
        inputs: parameters, in order.
        constants: captured arrays with the variables that stand for them.
        equations: in execution order; each variable is assigned once, before its uses.
        outputs: results; literals and inputs are allowed.
    """

    name: str
    inputs: tuple[Var, ...]
    constants: tuple[tuple[Var, Any], ...]
    equations: tuple[Equation, ...]
    outputs: tuple[Atom, ...]

    @property
    def in_avals(self) -> tuple[Aval, ...]:
        """Types of the inputs, constants not included."""
        return tuple(var.aval for var in self.inputs)

    @property
    def out_avals(self) -> tuple[Aval, ...]:
        """Types of the outputs."""
        return tuple(atom.aval for atom in self.outputs)

    @property
    def constant_values(self) -> tuple[Any, ...]:
        """The captured arrays."""
        return tuple(value for _, value in self.constants)

    def replace(
        self,
        *,
        name: str | None = None,
        inputs: Iterable[Var] | None = None,
        constants: Iterable[tuple[Var, Any]] | None = None,
        equations: Iterable[Equation] | None = None,
        outputs: Iterable[Atom] | None = None,
    ) -> Program:
        """A copy with some parts changed."""
        return Program(
            self.name if name is None else name,
            self.inputs if inputs is None else tuple(inputs),
            self.constants if constants is None else tuple(constants),
            self.equations if equations is None else tuple(equations),
            self.outputs if outputs is None else tuple(outputs),
        )

    def __str__(self) -> str:
        from trnx.core.printing import program_text

        return program_text(self)

    def _repr_html_(self) -> str:
        from trnx.core.printing import program_html

        return program_html(self)

    def __repr__(self) -> str:
        return f"<Program {self.name}: {len(self.inputs)} in, {len(self.outputs)} out>"


def sub_programs(params: Mapping[str, Any]) -> Iterator[tuple[str, Program]]:
    """Programs among parameter values, also inside tuples, with the parameter's name."""

    def visit(name: str, value: Any) -> Iterator[tuple[str, Program]]:
        if isinstance(value, Program):
            yield name, value
        elif isinstance(value, tuple):
            for part in value:
                yield from visit(name, part)

    for name, value in params.items():
        yield from visit(name, value)


def map_sub_programs(params: Params, change: Callable[[Program], Program]) -> Params:
    """Params with every sub-program replaced by ``change(program)``."""

    def visit(value: Any) -> Any:
        if isinstance(value, Program):
            return change(value)
        if type(value) is tuple:
            return tuple(visit(part) for part in value)
        return value

    if next(sub_programs(params), None) is None:
        return params
    return Params({name: visit(value) for name, value in params.items()})


def dim_variables(program: Program) -> tuple[DimVar, ...]:
    """Named sizes that occur in types and parameters, sorted by name."""
    found: dict[DimVar, None] = {}

    def visit(value: Any) -> None:
        if isinstance(value, Dim):
            found.update(dict.fromkeys(variables(value)))
        elif isinstance(value, tuple):
            for part in value:
                visit(part)
        elif isinstance(value, Aval):
            visit(value.shape)
        elif isinstance(value, Program):
            found.update(dict.fromkeys(dim_variables(value)))

    for atom in all_atoms(program):
        visit(atom.aval.shape)
    for equation in program.equations:
        for value in equation.params.values():
            visit(value)
    return tuple(sorted(found, key=lambda v: (v.name, v.min, v.max or -1)))


def all_atoms(program: Program) -> Iterator[Atom]:
    """Every atom of a program in text order, with repeats; sub-programs not included."""
    yield from program.inputs
    for var, _ in program.constants:
        yield var
    for equation in program.equations:
        yield from equation.outputs
        yield from equation.inputs
    yield from program.outputs


def equal(p: Program, q: Program) -> bool:
    """Structural equality: the same up to variable names and sources, constants by contents."""
    if p is q:
        return True
    sizes = [(len(r.inputs), len(r.constants), len(r.equations), len(r.outputs)) for r in (p, q)]
    if p.name != q.name or sizes[0] != sizes[1]:
        return False
    pair: dict[Var, Var] = {}
    paired: set[Var] = set()

    def bind(a: Var, b: Var) -> bool:
        if a in pair or b in paired or a.aval != b.aval:
            return False
        pair[a] = b
        paired.add(b)
        return True

    def same_atom(a: Atom, b: Atom) -> bool:
        if isinstance(a, Literal) or isinstance(b, Literal):
            return isinstance(a, Literal) and isinstance(b, Literal) and a.same_as(b)
        return pair.get(a) is b

    def same_param(a: Any, b: Any) -> bool:
        if isinstance(a, Program) and isinstance(b, Program):
            return equal(a, b)
        if isinstance(a, Annotation) and isinstance(b, Annotation):
            return a.name == b.name
        if type(a) is tuple and type(b) is tuple:
            return len(a) == len(b) and all(map(same_param, a, b))
        return _same(a, b)

    if not all(map(bind, p.inputs, q.inputs)):
        return False
    for (a, x), (b, y) in zip(p.constants, q.constants, strict=True):
        if not bind(a, b) or (x is not y and array_digest(x) != array_digest(y)):
            return False
    for e, f in zip(p.equations, q.equations, strict=True):
        if e.primitive is not f.primitive or len(e.inputs) != len(f.inputs):
            return False
        if not all(map(same_atom, e.inputs, f.inputs)) or e.params.keys() != f.params.keys():
            return False
        if not all(same_param(e.params[name], f.params[name]) for name in e.params):
            return False
        if len(e.outputs) != len(f.outputs) or not all(map(bind, e.outputs, f.outputs)):
            return False
    return all(map(same_atom, p.outputs, q.outputs))


def array_digest(array: Any) -> str:
    """sha256 of dtype, shape and contents of an array operand, as hex."""
    values = np.ascontiguousarray(to_numpy(array))
    head = f"{values.dtype.name}{values.shape}".encode()
    return hashlib.sha256(head + values.tobytes()).hexdigest()


def fingerprint(program: Program) -> str:
    """sha256 (hex) over the canonical text and the contents of the constants.

    Equal programs have equal fingerprints in every process; sources and addresses do not count.
    """
    from trnx.core.printing import program_text

    return hashlib.sha256(program_text(program, full_digests=True).encode()).hexdigest()


def constants_to_inputs(program: Program) -> tuple[Program, tuple[Any, ...]]:
    """The program with its constants as leading inputs, and the constant values.

    Callers that put a program into an equation use it: constants may be traced values of an
    enclosing trace and must then be operands.
    """
    if not program.constants:
        return program, ()
    inputs = (*(var for var, _ in program.constants), *program.inputs)
    return program.replace(inputs=inputs, constants=()), program.constant_values


def prune(program: Program) -> Program:
    """The program without equations whose outputs nothing uses, and without unused constants.

    Loops, branches and checkpoints with some unused results lose these, and what only they need.
    Equations of primitives with effects stay.
    """
    live: set[Var] = {atom for atom in program.outputs if isinstance(atom, Var)}
    kept: list[Equation] = []
    changed = False
    for equation in reversed(program.equations):
        used = [var in live for var in equation.outputs]
        if not equation.primitive.has_effect:
            if not any(used):
                continue
            if not all(used) and equation.primitive.trim is not None:
                trimmed = _trimmed(equation, tuple(used))
                changed = changed or trimmed is not equation
                equation = trimmed
        kept.append(equation)
        live.update(atom for atom in equation.inputs if isinstance(atom, Var))
    constants = tuple((var, value) for var, value in program.constants if var in live)
    same = len(kept) == len(program.equations) and len(constants) == len(program.constants)
    if same and not changed:
        return program
    return program.replace(equations=reversed(kept), constants=constants)


def _trimmed(equation: Equation, used: tuple[bool, ...]) -> Equation:
    """The equation without results that nothing uses, as far as its primitive can drop them."""
    assert equation.primitive.trim is not None
    params, inputs, outputs = equation.primitive.trim(equation.params, used)
    if all(outputs) and len(inputs) == len(equation.inputs):
        return equation
    return Equation(
        equation.primitive,
        tuple([equation.inputs[i] for i in inputs]),
        tuple([var for var, flag in zip(equation.outputs, outputs, strict=True) if flag]),
        params,
        equation.source,
    )


def eval_program(program: Program, args: Sequence[Any]) -> list[Any]:
    """Run a program: bind every equation again under the current trace.

    Args:
        program: what to run.
        args: one operand per input (arrays or traced values).

    Returns:
        One value per output. New equations keep the sources of the old ones.
    """
    from trnx.core.source import _forced_source

    if len(args) != len(program.inputs):
        raise TraceError(
            message(
                f"Program {program.name} takes {len(program.inputs)} inputs but got {len(args)}",
                None,
                "Pass one value per input",
            )
        )
    values: dict[Var, Any] = dict(zip(program.inputs, args, strict=True))
    values.update(program.constants)
    token = _forced_source.set(None)
    try:
        for equation in program.equations:
            if equation.source.file:
                _forced_source.set(equation.source)
            operands = [
                values[atom] if type(atom) is Var else scalar_of(atom) for atom in equation.inputs
            ]
            results = equation.primitive.bind_all(operands, equation.params)
            values.update(zip(equation.outputs, results, strict=True))
    finally:
        _forced_source.reset(token)
    return [values[atom] if isinstance(atom, Var) else scalar_of(atom) for atom in program.outputs]


ParamValue: TypeAlias = Hashable

"""Primitives: each is one declaration that holds everything trnx knows of an operation.

A primitive has a type rule (`abstract`), a NumPy meaning (`reference`) and one rule per transform.
Rules are set with decorators or methods next to the declaration; asking for a rule that is not
there raises an error that names the primitive, the transform and the file of the declaration.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from trnx.core.avals import Aval, intern
from trnx.core.errors import RuleError, message
from trnx.core.program import NO_PARAMS, Params, sub_programs
from trnx.core.tracing import current_trace as _current_trace

Rule: TypeAlias = Callable[..., Any]
R = TypeVar("R", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Cost:
    """Work of one equation.

    Attributes:
        flops: arithmetic operations, a multiply-add counted as two.
        bytes_read: bytes read from HBM if nothing is fused.
        bytes_written: bytes written to HBM if nothing is fused.
        transcendental: elements through exp, log, tanh and the like.
    """

    flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    transcendental: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.flops + other.flops,
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
            self.transcendental + other.transcendental,
        )


@dataclass(frozen=True, slots=True)
class OpCase:
    """One call for the table tests.

    Attributes:
        shapes: shape of each operand.
        params: parameters of the call.
        ranges: value range ``(low, high)`` per operand; None draws from the test's default.
        dtypes: dtypes of the operands when the record's list does not apply.
    """

    shapes: tuple[tuple[int, ...], ...]
    params: Mapping[str, Any] = field(default_factory=dict)
    ranges: tuple[tuple[float, float] | None, ...] | None = None
    dtypes: tuple[Any, ...] | None = None


@dataclass(frozen=True, slots=True)
class TestRecord:
    """What the table tests run for a primitive.

    Attributes:
        cases: calls.
        dtypes: dtypes every case runs with.
        tolerance: relative bound per short dtype name; absent means bit-equal.
        floor: results smaller than this are compared absolutely, because sums cancel; 0: never.
        grad_order: derivatives to check: 0 none, 1 first, 2 second.
        skips: check name -> reason it does not apply.
    """

    __test__ = False  # not a pytest class, whatever its name says

    cases: Sequence[OpCase] = ()
    dtypes: tuple[Any, ...] = ()
    tolerance: Mapping[str, float] = field(default_factory=dict)
    grad_order: int = 0
    skips: Mapping[str, str] = field(default_factory=dict)
    floor: float = 0.0


@dataclass(frozen=True, slots=True)
class Linear:
    """Stands for a linear operand in a transpose rule: only its type is known."""

    aval: Aval


@dataclass(frozen=True, slots=True)
class Zero:
    """A tangent or cotangent that is zero everywhere: no array is made for it."""

    aval: Aval


primitives: dict[str, Primitive] = {}

_ABSTRACT_CACHE_LIMIT = 4096

RULE_SLOTS = ("reference", "jvp", "linearize", "transpose", "vmap", "pad", "cost")


class Primitive:
    """An operation of the IR.

    Args:
        name: unique name, an identifier.
        abstract: ``abstract(*avals, **params)`` gives the output Aval, or a tuple of them when
            `multiple_results`. It checks shapes and dtypes and raises ShapeError or DTypeError.
        multiple_results: the primitive has a list of outputs instead of one.
        doc: one sentence on what it computes.
        has_effect: the equation must stay even if its outputs are unused.
        reference: see :meth:`def_reference`.
        tests: what the table tests run.
        not_needed: rule slot -> why the primitive has no such rule.
        remedies: rule slot -> what a user can do instead, for the error about a rule that is not
            needed.
        register: enter it into the table of primitives.

    Raises:
        ValueError: another primitive has this name.
    """

    __slots__ = (
        "name", "doc", "multiple_results", "has_effect", "file", "abstract", "reference",
        "jvp_rules", "jvp_all", "linearize", "is_linear", "transpose", "transpose_all", "vmap",
        "pad", "cost", "composite", "trim", "tests", "not_needed", "remedies", "_avals",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        *,
        abstract: Callable[..., Aval | Sequence[Aval]],
        multiple_results: bool = False,
        doc: str = "",
        has_effect: bool = False,
        reference: Rule | None = None,
        tests: TestRecord | None = None,
        not_needed: Mapping[str, str] | None = None,
        remedies: Mapping[str, str] | None = None,
        register: bool = True,
    ) -> None:
        if not name.isidentifier():
            raise ValueError(f"{name!r} is not a primitive name. Use an identifier.")
        if register and name in primitives:
            raise ValueError(
                f"A primitive named {name} is declared in {primitives[name].file} already. "
                "Choose another name."
            )
        self.name = name
        self.doc = doc
        self.multiple_results = multiple_results
        self.has_effect = has_effect
        self.file: str = _declaring_file()
        self.abstract = abstract
        self.reference: Rule | None = reference
        self.jvp_rules: tuple[Rule | None, ...] | None = None
        self.jvp_all: Rule | None = None
        self.linearize: Rule | None = None
        self.is_linear = False
        self.transpose: Rule | None = None
        self.transpose_all: Rule | None = None
        self.vmap: Rule | None = None
        self.pad: Rule | None = None
        self.cost: Rule | None = None
        self.composite: Rule | None = None
        self.trim: Rule | None = None
        self.tests = tests if tests is not None else TestRecord()
        self.not_needed: dict[str, str] = dict(not_needed or {})
        self.remedies: dict[str, str] = dict(remedies or {})
        self._avals: dict[tuple[tuple[Aval, ...], Params], tuple[Aval, ...]] = {}
        if register:
            primitives[name] = self

    def __repr__(self) -> str:
        return f"Primitive({self.name})"

    # Use ------------------------------------------------------------------------------------------

    def bind(self, *operands: Any, **params: Any) -> Any:
        """Apply the primitive to arrays or traced values under the current trace.

        Returns:
            The result, or a list of results when `multiple_results`.
        """
        frozen = Params(params, self.name) if params else NO_PARAMS
        results = _current_trace.get().process(self, operands, frozen)
        return list(results) if self.multiple_results else results[0]

    def bind_all(self, operands: Sequence[Any], params: Params) -> Sequence[Any]:
        """:meth:`bind` with frozen params; always gives a sequence of results."""
        return _current_trace.get().process(self, operands, params)

    def out_avals(self, avals: tuple[Aval, ...], params: Params) -> tuple[Aval, ...]:
        """Types of the outputs, from the abstract rule; cached unless a parameter is a program."""
        key = (avals, params)
        known = self._avals.get(key)
        if known is None:
            result = self.abstract(*avals, **params)
            single = (result,) if isinstance(result, Aval) else result
            known = tuple([intern(aval) for aval in single])
            if next(sub_programs(params), None) is not None:
                return known  # the cache would keep programs alive that nothing else needs
            if len(self._avals) >= _ABSTRACT_CACHE_LIMIT:
                self._avals.clear()
            self._avals[tuple([intern(aval) for aval in avals]), params] = known
        return known

    # Rules ----------------------------------------------------------------------------------------

    def def_reference(self, rule: R) -> R:
        """``rule(*numpy_arrays, **params)``: the meaning in NumPy, for tests and for scalars."""
        self.reference = rule
        return rule

    def def_jvp(self, *rules: Rule | None) -> None:
        """One rule per operand: ``rule(t, *primals, out=out, **params)`` gives its share.

        `t` is the tangent of that operand, `out` the primal output (a list when
        `multiple_results`). None means that the operand carries no derivative. The output tangent
        is the sum of the shares. A last rule serves all further operands of a variadic primitive.
        """
        self.jvp_rules = rules

    def def_jvp_all(self, rule: R) -> R:
        """``rule(ctx, primals, tangents, **params) -> (outs, out_tangents)``, lists of values.

        Tangents may be ``Zero``. `ctx` gives ``ctx.jvp(program)`` for sub-programs.
        """
        self.jvp_all = rule
        return rule

    def def_linearize(self, rule: R) -> R:
        """``rule(ctx, primals, tangents, **params) -> (outs, out_tangents)`` for reverse mode.

        Only for primitives with sub-programs: what depends on primals alone must be bound on
        primals alone, so that it runs once and is kept as residual. Others derive it from jvp.
        """
        self.linearize = rule
        return rule

    def def_linear(self) -> None:
        """The primitive is linear in all operands together: its tangent is itself."""
        self.is_linear = True

    def def_transpose(self, rule: R) -> R:
        """``rule(ct, *operands, **params)`` gives a cotangent or None per operand.

        Linear operands arrive as :class:`Linear`. `ct` is a list when `multiple_results`; entries
        of it may be ``Zero``.
        """
        self.transpose = rule
        return rule

    def def_transpose_all(self, rule: R) -> R:
        """``rule(ctx, cts, operands, **params)`` gives a cotangent, Zero or None per operand.

        For primitives with sub-programs: `ctx` gives ``ctx.transpose(program, linear)``. `cts`
        holds a cotangent or Zero per output.
        """
        self.transpose_all = rule
        return rule

    def def_vmap(self, rule: R) -> R:
        """``rule(ctx, args, dims, size, **params) -> (outs, out_dims)``.

        `dims` holds the mapped axis of each operand or None. A primitive with one output returns
        one value and one axis, others return sequences.
        """
        self.vmap = rule
        return rule

    def def_pad(self, rule: R) -> R:
        """``rule(ctx, args, true_shapes, **params) -> outs``: see `trnx.transforms.pad`."""
        self.pad = rule
        return rule

    def def_cost(self, rule: R) -> R:
        """``rule(*avals, **params) -> Cost``."""
        self.cost = rule
        return rule

    def def_composite(self, rule: R) -> R:
        """``rule(*arrays, **params)``: array code for compilers without a lowering of its own."""
        self.composite = rule
        return rule

    def def_trim(self, rule: R) -> R:
        """``rule(params, used) -> (params, inputs, outputs)``: drop what unused results need.

        `used` flags the results that are read. Returned are the new Params, the positions of the
        operands that are kept, and flags of the results that are kept, used ones among them.
        """
        self.trim = rule
        return rule

    def has_rule(self, slot: str) -> bool:
        """True when the rule is set or follows from another one."""
        if slot == "jvp":
            return self.jvp_rules is not None or self.jvp_all is not None or self.is_linear
        if slot == "transpose":
            return self.transpose is not None or self.transpose_all is not None
        if slot == "linearize":
            return self.linearize is not None or self.has_rule("jvp")
        return getattr(self, slot) is not None

    def rule(self, slot: str) -> Rule:
        """The rule of a slot other than jvp.

        Raises:
            RuleError: there is none; names primitive, transform and file.
        """
        found: Rule | None = getattr(self, slot)
        if found is None:
            raise self.missing_rule(slot)
        return found

    def missing_rule(self, slot: str) -> RuleError:
        """The error for a rule that is not there."""
        reason = self.not_needed.get(slot)
        cause = f"Primitive {self.name} has no {slot} rule"
        if reason:
            remedy = self.remedies.get(slot, "")
            return RuleError(message(f"{cause} because {reason}", None, remedy))
        return RuleError(message(cause, None, f"Add def_{slot} to its declaration in {self.file}"))


def _declaring_file() -> str:
    """``ops/elementwise.py``: the file that declares a primitive, factories in core left out."""
    frame = sys._getframe(2)
    parts = frame.f_code.co_filename.replace("\\", "/").split("/")
    return "/".join(parts[-2:])

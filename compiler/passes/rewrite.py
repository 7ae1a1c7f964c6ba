"""What rewriting passes share: rebuilding a program equation by equation.

A `Rewriter` walks a program once, gives every equation's operands their new atoms, asks a rule
table for a replacement and records the result with types computed anew. Equal equations are
recorded once (common subexpressions), and what nothing uses is dropped at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from trnx.core import Atom, Equation, Literal, Params, Primitive, Program, Source, Var, prune

Rule: TypeAlias = "Callable[[Rewriter, Equation], Sequence[Atom] | None]"
"""Gives the atoms that replace an equation's outputs, or None to leave it."""


class Rewriter:
    """Rebuilds one program.

    Args:
        program: what to rebuild.
        rules: primitive name -> rules, tried in order until one applies.
        general: rules for every primitive, tried first.
    """

    def __init__(
        self,
        program: Program,
        rules: Mapping[str, Sequence[Rule]],
        general: Sequence[Rule] = (),
    ) -> None:
        self.program = program
        self.rules = rules
        self.general = general
        self.equations: list[Equation] = []
        self.made_by: dict[Var, Equation] = {}
        self._known: dict[tuple[object, ...], Equation] = {}
        self._names: dict[Var, Atom] = {}
        self._old_uses: dict[Var, int] = {}
        self._uses: dict[Var, int] = {}
        for atom in (*(a for e in program.equations for a in e.inputs), *program.outputs):
            if isinstance(atom, Var):
                self._old_uses[atom] = self._old_uses.get(atom, 0) + 1

    def run(self) -> Program:
        """The rebuilt program."""
        for equation in self.program.equations:
            inputs = tuple(self.new_atom(a) for a in equation.inputs)
            current = Equation(
                equation.primitive, inputs, equation.outputs, equation.params, equation.source
            )
            results = self.apply(current)
            for var, atom in zip(equation.outputs, results, strict=True):
                self._names[var] = atom
                if isinstance(atom, Var):
                    self._uses[atom] = self._uses.get(atom, 0) + self._old_uses.get(var, 0)
        outputs = tuple(self.new_atom(a) for a in self.program.outputs)
        return prune(self.program.replace(equations=self.equations, outputs=outputs))

    def new_atom(self, atom: Atom) -> Atom:
        """What an atom of the old program has become."""
        return self._names.get(atom, atom) if isinstance(atom, Var) else atom

    def apply(self, equation: Equation) -> Sequence[Atom]:
        """The atoms for an equation's outputs after the first rule that applies."""
        for rule in (*self.general, *self.rules.get(equation.primitive.name, ())):
            results = rule(self, equation)
            if results is not None:
                return results
        return self.record(equation.primitive, equation.inputs, equation.params, equation.source)

    def emit(
        self, primitive: Primitive, inputs: Sequence[Atom], params: Params, source: Source
    ) -> Sequence[Atom]:
        """Apply the rules to a new equation and record what is left of it."""
        outputs = tuple(Var(a) for a in primitive.out_avals(tuple(i.aval for i in inputs), params))
        return self.apply(Equation(primitive, tuple(inputs), outputs, params, source))

    def record(
        self, primitive: Primitive, inputs: Sequence[Atom], params: Params, source: Source
    ) -> Sequence[Atom]:
        """Add an equation, or find the equal one that is there."""
        key = (primitive, tuple(_atom_key(a) for a in inputs), params)
        known = self._known.get(key)
        if known is None or primitive.has_effect:
            avals = primitive.out_avals(tuple(a.aval for a in inputs), params)
            outputs = tuple(Var(aval) for aval in avals)
            known = Equation(primitive, tuple(inputs), outputs, params, source)
            self._known[key] = known
            self.equations.append(known)
            self.made_by.update((var, known) for var in outputs)
        return known.outputs

    def use_count(self, atom: Atom) -> int:
        """How many operands and outputs of the old program have become this atom so far."""
        return self._uses.get(atom, 0) if isinstance(atom, Var) else 0

    def definition(self, atom: Atom, *names: str) -> Equation | None:
        """The equation that makes an atom, if it is of one of these primitives."""
        equation = self.made_by.get(atom) if isinstance(atom, Var) else None
        return equation if equation is not None and equation.primitive.name in names else None


def _atom_key(atom: Atom) -> object:
    if isinstance(atom, Literal):
        return (atom.aval, atom.value.tobytes())
    return atom

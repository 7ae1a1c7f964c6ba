"""The compile pipeline: a list of named passes from a Program to a TileProgram.

Each pass names the form it takes and the form it gives, and has a verifier for what it gives.
`compile_program` runs them all; `lower_text` and `stages` show what lies between.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from trnx.compiler import kernels as kernels
from trnx.compiler.passes.fuse import fuse
from trnx.compiler.passes.groups import FusedProgram, Layouts
from trnx.compiler.passes.inline import inline
from trnx.compiler.passes.legalise import legalise
from trnx.compiler.passes.lower import lower_program
from trnx.compiler.passes.memory import plan_program
from trnx.compiler.passes.simplify import simplify
from trnx.compiler.targets import Target
from trnx.compiler.targets import target as find_target
from trnx.compiler.tile import legality, parallel, place, schedule
from trnx.compiler.tile.ir import PSUM, SBUF, Kernel, TileProgram, tiles
from trnx.compiler.tile.text import program_text as tile_text
from trnx.core import Program, TraceError, Var, config, message
from trnx.core.checking import check
from trnx.core.dtypes import short_name
from trnx.core.program import fingerprint

Form: TypeAlias = "Program | FusedProgram | TileProgram"


@dataclass(frozen=True, slots=True)
class CompileContext:
    """What passes know besides the program.

    Attributes:
        target: the hardware table's row.
        donated: positions of inputs whose memory outputs may take over.
        layouts: strides of arguments and results that are not dense.
    """

    target: Target
    donated: tuple[int, ...] = ()
    layouts: Layouts = field(default_factory=Layouts)


@dataclass(frozen=True, slots=True)
class Pass:
    """One step of the pipeline.

    Attributes:
        name: what `lower_text` and dumps call its result.
        input_form: ``program``, ``fused`` or ``tiles``.
        output_form: likewise.
        run: ``run(form, context) -> form``.
        verify: raises when the result breaks its form's rules.
        doc: what it does, in a few words.
    """

    name: str
    input_form: str
    output_form: str
    run: Callable[[Any, CompileContext], Any]
    verify: Callable[[Any, CompileContext], None]
    doc: str


def _check_program(program: Program, context: CompileContext) -> None:
    check(program)


def _check_fused(fused: FusedProgram, context: CompileContext) -> None:
    """Every value a group reads is an input, a constant or written by an earlier group."""
    written = {*fused.program.inputs, *(v for v, _ in fused.program.constants)}
    for group in fused.groups:
        inside: set[Var] = set()
        for equation in group.equations:
            for atom in equation.inputs:
                if isinstance(atom, Var) and atom not in inside:
                    view = fused.views.get(atom)
                    if view is None or view.root not in written:
                        raise AssertionError(f"{atom} is read before it is written")
            inside.update(equation.outputs)
        written.update(group.written)


def _nothing(program: TileProgram, context: CompileContext) -> None:
    """Unplaced tiles have no rules of their own; `check` verifies the finished program."""


def _each(change: Callable[..., Kernel]) -> Callable[[TileProgram, CompileContext], TileProgram]:
    def run(program: TileProgram, context: CompileContext) -> TileProgram:
        from dataclasses import replace

        return replace(program, kernels=tuple(change(k, context) for k in program.kernels))

    return run


def _check_tiles(program: TileProgram, context: CompileContext) -> TileProgram:
    legality.check_program(program, context.target)
    return program


# fmt: off
PASSES: tuple[Pass, ...] = (
    Pass("inline", "program", "program", lambda p, c: inline(p), _check_program,
         "calls of jitted functions give way to their bodies"),
    Pass("simplify", "program", "program", lambda p, c: simplify(p), _check_program,
         "rewrite by rules, share equal equations, drop unused ones"),
    Pass("legalise", "program", "program", lambda p, c: legalise(p, c.target), _check_program,
         "replace what the target does not have by what it has"),
    Pass("clean", "program", "program", lambda p, c: simplify(p), _check_program,
         "simplify what legalise wrote"),
    Pass("fuse", "program", "fused", lambda p, c: fuse(p, c.target, c.layouts), _check_fused,
         "equations become groups, one kernel each"),
    Pass("tile", "fused", "tiles", lambda f, c: lower_program(f, c.target), _nothing,
         "groups become kernels of NeuronCore instructions"),
    Pass("memory", "tiles", "tiles", lambda p, c: plan_program(p, c.donated), _nothing,
         "temporaries share an arena, outputs take over donated inputs"),
    Pass("place", "tiles", "tiles", _each(lambda k, c: place.place(k, c.target)), _nothing,
         "tiles get addresses in SBUF and PSUM, and rotating buffers"),
    Pass("parallel", "tiles", "tiles", _each(lambda k, c: parallel.mark_parallel(k)), _nothing,
         "mark loops whose iterations are proved independent"),
    Pass("schedule", "tiles", "tiles", _each(lambda k, c: schedule.schedule(k)), _nothing,
         "instructions say which others they wait for"),
    Pass("check", "tiles", "tiles", _check_tiles, _nothing,
         "verify every rule of the hardware"),
)
# fmt: on
"""The pipeline, in order."""


def compile_program(
    program: Program,
    target: str | Target,
    donated: Sequence[int] = (),
    *,
    layouts: Layouts | None = None,
    observe: Callable[[str, Form], None] | None = None,
) -> TileProgram:
    """Lower a program to kernels.

    Args:
        program: what to compile; inputs, then constants, are the input buffers.
        target: a row of `targets.TARGETS`, or its name.
        donated: positions of inputs whose memory outputs may take over.
        layouts: strides of arguments and results that are not dense row-major.
        observe: called with the name and the result of every pass.

    Returns:
        A placed, scheduled and checked tile program. On targets without f64, buffers of f64
        arrays are f32: the caller converts.

    Raises:
        LoweringError: something has no lowering; names primitive, dtypes, the user's line.
    """
    row = find_target(target) if isinstance(target, str) else target
    context = CompileContext(row, tuple(donated), layouts or Layouts())
    form: Any = program
    dump = config.dump_ir.value
    verify = config.check.value
    for number, step in enumerate(PASSES):
        form = step.run(form, context)
        if verify:
            step.verify(form, context)
        if dump:
            _dump(dump, program, number, step.name, form)
        if config.debug.value >= 5:
            print(f"# {program.name} after {step.name}\n{form_text(form)}", file=sys.stderr)
        if observe is not None:
            observe(step.name, form)
    assert isinstance(form, TileProgram)
    if config.debug.value == 4:
        print(form_text(form), file=sys.stderr)
    if config.debug.value == 3:
        print(tiles_text(form), file=sys.stderr)
    return form


def form_text(form: Form) -> str:
    """The text of a program in any form."""
    return tile_text(form) if isinstance(form, TileProgram) else str(form)


def tiles_text(program: TileProgram) -> str:
    """The chosen tiles: a line per kernel and tile, with the memory each kernel takes."""
    row = find_target(program.target)
    sizes = {SBUF: row.sbuf_partition_bytes, PSUM: row.psum_partition_bytes}
    lines = [f"# tiles of {program.name} for {program.target}"]
    for kernel in program.kernels:
        found = tiles(kernel).values()
        used = [
            f"{sum(t.free_bytes * t.copies for t in found if t.memory == memory):,} of {size:,} B "
            f"{memory}"
            for memory, size in sizes.items()
        ]
        lines.append(f"#   {kernel.name}: {', '.join(used)} per partition")
        for tile in found:
            shape = ",".join(map(str, tile.shape))
            copies = f" x{tile.copies}" if tile.copies > 1 else ""
            lines.append(f"#     {tile.memory} {short_name(tile.dtype)}[{shape}]{copies}")
    return "\n".join(lines)


def _dump(directory: str, program: Program, number: int, step: str, form: Form) -> None:
    """Write a text; the fingerprint tells programs of one name apart."""
    os.makedirs(directory, exist_ok=True)
    stem = f"{program.name}.{fingerprint(program)[:8]}"
    path = os.path.join(directory, f"{stem}.{number:02d}.{step}.txt")
    with open(path, "w", encoding="utf-8") as file:
        file.write(form_text(form) + "\n")


def stages() -> tuple[str, ...]:
    """Names that `lower_text` takes."""
    return ("trace", *(step.name for step in PASSES))


def lower_text(
    program: Program, stage: str, target: str | Target = "trn2", donated: Sequence[int] = ()
) -> str:
    """The text of a program after the pass `stage` (``trace``: as recorded).

    Raises:
        TraceError: there is no such stage; lists the names.
    """
    if stage not in stages():
        raise TraceError(
            message(f"There is no stage {stage!r}", None, f"Use one of {', '.join(stages())}")
        )
    if stage == "trace":
        return str(program)
    found: list[str] = []

    def keep(name: str, form: Form) -> None:
        if name == stage:
            found.append(form_text(form))

    compile_program(program, target, donated, observe=keep)
    return found[-1]

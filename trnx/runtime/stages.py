"""A function on its way through the compiler, for people to look at.

`jit(f).lower(x)` gives a :class:`Lowered`: the text after any pass, the tile program, NKI source,
the modelled cost, a simulated run with its timeline, and the executable.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from trnx.compiler import pipeline
from trnx.compiler.tile.ir import HostCall, TileProgram, instructions
from trnx.core.avals import to_numpy
from trnx.core.display import listing_html, table_html
from trnx.core.errors import TraceError, message
from trnx.core.program import Program, constants_to_inputs
from trnx.runtime.devices import Device
from trnx.runtime.executable import Executable
from trnx.runtime.fallback import reference_results

if TYPE_CHECKING:
    from trnx.compiler.sim import CostReport, SimResult

STAGES: tuple[str, ...] = (*pipeline.stages(), "nki")
"""What `Lowered.as_text` takes: the trace, each pass of the pipeline, the NKI source."""


class Lowered:
    """A traced function for given types, with everything the compiler makes of it.

    Args:
        program: the traced program.
        device: the device it is lowered for.
        donated: positions of inputs whose memory results may take.
        leaves: the arguments it was lowered with, for simulated runs.
        compile: makes the executable.
    """

    def __init__(
        self,
        program: Program,
        device: Device,
        donated: Sequence[int],
        leaves: Sequence[Any],
        compile: Callable[[], Executable],
    ) -> None:
        self.program = program
        self.device = device
        self._leaves = tuple(leaves)
        self._compile = compile
        self._closed, self._constants = constants_to_inputs(program)
        self._donated = tuple(position + len(self._constants) for position in donated)
        self._forms: dict[str, pipeline.Form] = {}

    def forms(self) -> dict[str, pipeline.Form]:
        """The program in every form: as traced, then after each pass of the pipeline, by name."""
        if not self._forms:
            made: dict[str, pipeline.Form] = {"trace": self.program}
            pipeline.compile_program(
                self._closed, self.device.target, self._donated, observe=made.__setitem__
            )
            self._forms = made
        return dict(self._forms)

    @property
    def tile_program(self) -> TileProgram:
        """The placed, scheduled and checked tile program."""
        last = list(self.forms().values())[-1]
        assert isinstance(last, TileProgram)
        return last

    def as_text(self, stage: str = "trace") -> str:
        """The program's text after a pass.

        Args:
            stage: one of STAGES: ``trace``, a pass of the pipeline, or ``nki`` for NKI source.

        Raises:
            TraceError: there is no such stage; lists the names.
        """
        if stage not in STAGES:
            raise TraceError(
                message(f"There is no stage {stage!r}", None, f"Use one of {', '.join(STAGES)}")
            )
        if stage == "nki":
            from trnx.compiler.nki import emit

            return emit.program_source(self.tile_program)
        if stage == "trace":
            return str(self.program)
        return pipeline.form_text(self.forms()[stage])

    def compile(self) -> Executable:
        """The executable, from the cache when it is there."""
        return self._compile()

    def cost(self) -> CostReport:
        """Modelled time per engine and bytes moved on the hardware target."""
        from trnx.compiler.sim import estimate

        return estimate(self.tile_program)

    def simulate(self, *leaves: Any) -> SimResult:
        """Run in the simulator.

        Args:
            leaves: arrays for the inputs; without them those it was lowered with.

        Returns:
            Outputs, timeline, findings and cost.
        """
        from trnx.compiler.sim import SimOptions, simulate

        operands = [*self._constants, *(leaves or self._leaves)]
        inputs = [buffer for buffer in self.tile_program.buffers if buffer.kind == "input"]
        arrays = [
            to_numpy(operand).astype(buffer.dtype, copy=False)
            for operand, buffer in zip(operands, inputs, strict=True)
        ]
        functions = {
            call.function: reference_results
            for call in self.tile_program.calls
            if isinstance(call, HostCall) and "program" in dict(call.attrs)
        }
        return simulate(self.tile_program, arrays, options=SimOptions(host_functions=functions))

    def __str__(self) -> str:
        return self.as_text()

    def __repr__(self) -> str:
        return f"<Lowered {self.program.name} for {self.device}>"

    def _repr_html_(self) -> str:
        """What each pass does and made, and the texts of the passes that changed something."""
        return _stages_html(self)


def _stages_html(lowered: Lowered) -> str:
    docs = {"trace": "the function as recorded", **{p.name: p.doc for p in pipeline.PASSES}}
    rows: list[tuple[str, str, str]] = []
    texts: list[str] = []
    last = ""
    for name, form in lowered.forms().items():
        text = pipeline.form_text(form)
        changed = text != last
        last = text
        size = _size(form)
        rows.append((f"<code>{name}</code>", docs[name], size if changed else f"{size}, unchanged"))
        if changed:
            head = f"<summary><code>{name}</code>: {size}</summary>"
            texts.append(f"<details>{head}{_form_html(form)}</details>")
    title = html.escape(f"{lowered.program.name} for {lowered.device}")
    if lowered.device.target != str(lowered.device):
        title += f" ({lowered.device.target})"
    table = table_html(("stage", "what it does", "result"), rows)
    return f"<div><b>Lowered</b> {title}{table}{''.join(texts)}</div>"


def _size(form: pipeline.Form) -> str:
    """How much of what a form consists of."""
    if isinstance(form, TileProgram):
        inside = sum(1 for kernel in form.kernels for _ in instructions(kernel))
        return f"{_count(len(form.kernels), 'kernel')}, {_count(inside, 'instruction')}"
    if isinstance(form, Program):
        return _count(len(form.equations), "equation")
    return _count(len(form.groups), "group")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _form_html(form: pipeline.Form) -> str:
    if isinstance(form, Program | TileProgram):
        return form._repr_html_()
    return listing_html((line, None) for line in str(form).split("\n"))

"""Prints tile programs as NKI 0.6 source: one ``@nki.jit`` function per kernel.

The source says what a kernel author would write: tiles are allocated where they are used, loops
are Python loops (device loops are ``nl.fori_loop`` and ``nl.while_loop``), accesses are slices of
the declared shapes, tails are ``min()`` sizes with names, and ``engine=`` appears only where it
differs from the default. It states neither addresses nor dependencies: the NKI compiler finds its
own. ``read`` turns the source back into the same kernels.

What NKI cannot say is refused with one error that names it: run-time sizes, 64-bit dtypes,
operators that do not exist on a NeuronCore, host calls, and arithmetic on registers.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trnx.compiler.nki.accesses import (
    CannotPrint,
    Names,
    hbm_text,
    hoistable,
    number_text,
    tile_text,
)
from trnx.compiler.nki.layout import (
    WIDTH,
    call_lines,
    indices,
    non_linear_atoms,
    split_commas,
    tuple_text,
)
from trnx.compiler.nki.names import (
    BOOL_ALIAS,
    BOOL_LINE,
    DTYPE_NAMES,
    HELPERS,
    INFINITY,
    INFINITY_LINE,
    NAN,
    NAN_LINE,
    OPERATOR_NAMES,
    PARAMETERS,
)
from trnx.compiler.targets import TARGETS, Target
from trnx.compiler.targets import target as find_target
from trnx.compiler.tile import isa
from trnx.compiler.tile.analysis import written_registers
from trnx.compiler.tile.build import RESERVED
from trnx.compiler.tile.expr import Call, Expr, Index, symbols
from trnx.compiler.tile.ir import (
    Access,
    Alloc,
    For,
    HbmAccess,
    HostCall,
    Instruction,
    Kernel,
    KernelCall,
    Param,
    Predicate,
    RegisterLoad,
    RegisterMove,
    RegisterValue,
    Statement,
    Tile,
    TileAccess,
    TileProgram,
    While,
    instructions,
    tiles,
    walk,
)
from trnx.core.dtypes import bool_, int32, short_name
from trnx.core.errors import UnsupportedError, message
from trnx.core.source import Source

_IMPORTS = ("import nki", "import nki.isa as nisa", "import nki.language as nl")


def program_source(program: TileProgram, *, comments: bool = True) -> str:
    """NKI source of a program: its kernels, and a driver that calls them when there are several.

    Args:
        program: a program for a NeuronCore target.
        comments: put the user's line before each group of instructions.

    Raises:
        UnsupportedError: the program uses something NKI cannot say.
    """
    row = find_target(program.target)
    for call in program.calls:
        if isinstance(call, HostCall):
            _refuse(
                f"program '{program.name}' calls host function '{call.function}'",
                call.source,
                "Move that operation out of the program",
            )
    names = function_names(program)
    bodies = [
        kernel_lines(kernel, row, name=name, comments=comments)
        for kernel, name in zip(program.kernels, names, strict=True)
    ]
    if len(program.calls) != 1:
        bodies.append(_driver(program, names))
    return _module(f"{program.name} for {row.nki_name}, printed by trnx.", bodies)


def kernel_source(kernel: Kernel, target: Target | str, *, comments: bool = True) -> str:
    """NKI source of one kernel with its imports; UnsupportedError as in ``program_source``."""
    row = find_target(target) if isinstance(target, str) else target
    program = TileProgram(kernel.name, row.name, (), (kernel,), (), ())
    lines = kernel_lines(kernel, row, name=function_names(program)[0], comments=comments)
    return _module(f"{kernel.name} for {row.nki_name}, printed by trnx.", [lines])


def function_names(program: TileProgram) -> tuple[str, ...]:
    """A function name for each kernel: its own, made unique and a legal name of a function."""
    taken: set[str] = set()
    names: list[str] = []
    for kernel in program.kernels:
        base = _function_name(kernel.name, "kernel")
        name, number = base, 1
        while name in taken:
            name, number = f"{base}_{number}", number + 1
        taken.add(name)
        names.append(name)
    return tuple(names)


def _function_name(name: str, what: str) -> str:
    """``name`` as a legal name of a function."""
    base = re.sub(r"\W", "_", name) or what
    taken = keyword.iskeyword(base) or base in RESERVED or base[0].isdigit()
    return f"{what}_{base}" if taken else base


def _module(title: str, bodies: Sequence[Sequence[str]]) -> str:
    text = "\n\n\n".join("\n".join(lines) for lines in bodies)
    head = [f'"""{title}"""', "", *_IMPORTS]
    constants = [
        line
        for word, line in ((BOOL_ALIAS, BOOL_LINE), (INFINITY, INFINITY_LINE), (NAN, NAN_LINE))
        if re.search(rf"\b{word}\b", text)
    ]
    if constants:
        head += ["", *constants]
    helpers = [
        body.strip("\n") for name, body in HELPERS.items() if re.search(rf"\b{name}\(", text)
    ]
    return "\n".join(head) + "\n\n\n" + "\n\n\n".join([*helpers, text]) + "\n"


def _refuse(cause: str, source: Source | None, remedy: str) -> None:
    raise UnsupportedError(message(f"NKI source: {cause}", source, remedy))


def kernel_lines(kernel: Kernel, target: Target, *, name: str, comments: bool) -> list[str]:
    """The lines of one ``@nki.jit`` function named ``name``."""
    if not target.nki_name:
        known = ", ".join(t.name for t in TARGETS.values() if t.nki_name)
        _refuse(
            f"kernel '{kernel.name}' is compiled for target {target.name}",
            kernel.source,
            f"Compile for one of {known}",
        )
    if kernel.registers:
        _refuse(
            f"kernel '{kernel.name}' has run-time sizes {', '.join(kernel.registers)}",
            kernel.source,
            "Compile it for one shape: NKI sizes are known when a kernel is traced",
        )
    return _Printer(kernel, name, comments).run()


class _Printer:
    """Prints one kernel."""

    def __init__(self, kernel: Kernel, name: str, comments: bool) -> None:
        self.kernel = kernel
        self.name = name
        self.comments = comments
        self.params: Mapping[str, Param] = {p.name: p for p in kernel.params}
        self.tiles: Mapping[str, Tile] = tiles(kernel)
        self.names = Names()
        self.lines: list[str] = []
        self.depth = 0
        self.registers: set[str] = set()
        self.last_source: Source | None = None
        self.used = {*self.params, *self.tiles}
        for statement in walk(kernel.body):
            if isinstance(statement, For):
                self.used.add(statement.index)
            elif isinstance(statement, RegisterLoad | RegisterMove):
                self.used.add(statement.register)

    def run(self) -> list[str]:
        self.refuse_extensions()
        arguments = [p.name for p in self.kernel.params if p.role != "out"]
        self.emit("@nki.jit")
        self.emit(f"def {self.name}({', '.join(arguments)}):")
        self.depth = 1
        for param in self.kernel.params:
            self.param(param)
        try:
            self.body(self.kernel.body, ())
        except CannotPrint as error:
            _refuse(error.cause, self.kernel.source, error.remedy)
        results = [p.name for p in self.kernel.params if p.role != "in"]
        self.emit(f"return {', '.join(results)}" if results else "return None")
        return self.lines

    def emit(self, text: str) -> None:
        self.lines.append(("    " * self.depth + text).rstrip())

    def unique(self, base: str) -> str:
        name, number = base, 1
        while name in self.used:
            name, number = f"{base}{number}", number + 1
        self.used.add(name)
        return name

    # Declarations -----------------------------------------------------------------------------

    def refuse_extensions(self) -> None:
        """Name the first extension instruction, which no NKI call has."""
        for instruction in instructions(self.kernel):
            if instruction.op in isa.EXTENSIONS:
                _refuse(
                    f"extension instruction: {instruction.op}",
                    instruction.source or self.kernel.source,
                    "Take the largest values by max8 and nc_find_index8, or sort on the host",
                )
            if isa.is_extension(instruction, self.dtype_of):
                ops = " ".join(map(str, isa.alu_ops(instruction)))
                _refuse(
                    f"extension instruction: 64-bit integer {instruction.op} {ops}".rstrip(),
                    instruction.source or self.kernel.source,
                    "Use integers of at most 32 bits",
                )

    def dtype(self, dtype: np.dtype[Any], what: str, source: Source | None) -> str:
        if dtype == bool_:
            return BOOL_ALIAS
        if dtype not in DTYPE_NAMES:
            _refuse(
                f"{what} has dtype {short_name(dtype)}, which NKI does not have",
                source or self.kernel.source,
                "Use a dtype of at most 32 bits",
            )
        return f"nl.{DTYPE_NAMES[dtype]}"

    def param(self, param: Param) -> None:
        if param.strides is not None:
            _refuse(
                f"parameter '{param.name}' has strides {list(map(str, param.strides))}",
                self.kernel.source,
                "Make the tensor contiguous: NKI arguments are dense",
            )
        dtype = self.dtype(param.dtype, f"parameter '{param.name}'", None)
        shape = tuple_text(map(str, param.shape))
        if param.role == "out":
            self.emit(f"{param.name} = nl.ndarray({shape}, dtype={dtype}, buffer=nl.shared_hbm)")
        else:
            self.emit(f"assert {param.name}.shape == {shape}")
            self.emit(f"assert {param.name}.dtype == {dtype}")

    # Statements -------------------------------------------------------------------------------

    def body(self, body: Sequence[Statement], scope: tuple[str, ...]) -> None:
        before = len(self.lines)
        self.hoist(body, scope)
        for statement in body:
            if isinstance(statement, Alloc):
                tile = statement.tile
                dtype = self.dtype(tile.dtype, f"tile '{tile.name}'", None)
                shape = tuple_text(map(str, tile.shape))
                self.emit(
                    f"{tile.name} = nl.ndarray({shape}, dtype={dtype}, buffer=nl.{tile.memory})"
                )
            elif isinstance(statement, Instruction):
                self.instruction(statement)
            elif isinstance(statement, For):
                self.loop(statement, scope)
            elif isinstance(statement, While):
                self.while_loop(statement, scope)
            else:
                self.register(statement)
        if len(self.lines) == before:
            self.emit("pass")

    def hoist(self, body: Sequence[Statement], scope: tuple[str, ...]) -> None:
        """Give names to the min, max, // and % sizes that become known at this depth."""
        rows: set[Call] = set()
        found: dict[Call, None] = {}
        for value, is_rows in indices(body):
            if isinstance(value, int):
                continue
            for atom in non_linear_atoms(value):
                known = symbols(Expr(0, ((atom, 1),))) <= set(scope)
                if known and atom not in self.names.hoisted:
                    found[atom] = None
                    if is_rows:
                        rows.add(atom)
        for atom in hoistable(found):
            name = self.unique("rows" if atom in rows else "size")
            text = self.names.call_text(atom)
            self.names.hoisted[atom] = name
            self.emit(
                f"{name} = {text.removeprefix('(').removesuffix(')') if text[0] == '(' else text}"
            )

    def loop(self, loop: For, scope: tuple[str, ...]) -> None:
        dynamic = self.names.is_dynamic(loop.low) or self.names.is_dynamic(loop.high)
        if not dynamic:
            low, high = self.names.text(loop.low), self.names.text(loop.high)
            arguments = [low, high, str(loop.step)]
            if loop.step == 1:
                arguments = [high] if loop.low == 0 else [low, high]
            self.emit(f"for {loop.index} in range({', '.join(arguments)}):")
            self.nested(loop.body, (*scope, loop.index))
            return
        self.refuse_carried(loop.body, None)
        function = self.unique(f"body_{loop.index}")
        self.names.dynamic.add(loop.index)
        self.emit("")
        self.emit(f"def {function}({loop.index}):")
        self.nested(loop.body, scope)
        step = f", step={loop.step}" if loop.step != 1 else ""
        bounds = ", ".join(self.bound(b) for b in (loop.low, loop.high))
        self.emit("")
        self.emit(f"nl.fori_loop({bounds}, {function}{step})")

    def bound(self, value: Index) -> str:
        """A bound of a device loop: a constant or one register."""
        if not self.names.is_dynamic(value):
            return self.names.text(value)
        if str(value) not in self.names.dynamic:
            raise CannotPrint(
                f"a loop bound is the register expression {value}",
                "Load the bound itself into a register; NKI registers have no arithmetic",
            )
        return str(value)

    def while_loop(self, loop: While, scope: tuple[str, ...]) -> None:
        self.refuse_carried(loop.body, loop.condition)
        function = self.unique(f"body_{loop.condition}")
        self.emit("")
        self.emit(f"def {function}({loop.condition}):")
        self.nested(loop.body, scope, f"return {loop.condition}")
        self.emit("")
        self.emit(f"nl.while_loop({loop.condition}, {function})")

    def refuse_carried(self, body: Sequence[Statement], condition: str | None) -> None:
        """A device loop keeps no register but its condition from one iteration to the next."""
        for name in sorted(written_registers(body) & self.registers):
            if name != condition:
                raise CannotPrint(
                    f"register '{name}' is changed inside a device loop and used outside",
                    "Keep the value in a [1, 1] tile and load it where it is needed",
                )

    def nested(self, body: Sequence[Statement], scope: tuple[str, ...], last: str = "") -> None:
        outer = dict(self.names.hoisted)
        self.depth += 1
        self.body(body, scope)
        if last:
            self.emit(last)
        self.depth -= 1
        self.names.hoisted = outer

    def register(self, statement: RegisterLoad | RegisterMove) -> None:
        name = statement.register
        first = name not in self.registers
        if isinstance(statement, RegisterLoad):
            if first:
                self.emit(f"{name} = nisa.register_alloc()")
            self.emit(f"nisa.register_load({name}, {self.access(statement.access)})")
        elif isinstance(statement.value, int):
            value = statement.value
            text = f"{name} = nisa.register_alloc({value})"
            self.emit(text if first else f"nisa.register_move({name}, {value})")
        else:
            if str(statement.value) not in self.registers:
                raise CannotPrint(
                    f"register '{name}' is set to the expression {statement.value}",
                    "NKI registers have no arithmetic; compute the value in a tile and load it",
                )
            if first:
                self.emit(f"{name} = nisa.register_alloc()")
            self.emit(f"nisa.register_move({name}, {statement.value})")
        self.registers.add(name)
        self.names.dynamic.add(name)

    # Instructions -----------------------------------------------------------------------------

    def access(self, access: Access) -> str:
        if isinstance(access, TileAccess):
            return tile_text(self.tiles[access.tile], access, self.names)
        index = None if access.index is None else self.access(access.index)
        return hbm_text(self.params[access.buffer], access, self.names, index)

    def dtype_of(self, access: Access) -> np.dtype[Any]:
        if isinstance(access, TileAccess):
            return self.tiles[access.tile].dtype
        return self.params[access.buffer].dtype

    def memory_of(self, access: Access) -> str:
        return self.tiles[access.tile].memory if isinstance(access, TileAccess) else "hbm"

    def instruction(self, instruction: Instruction) -> None:
        source = instruction.source
        if self.comments and source is not None and source.file and source != self.last_source:
            self.last_source = source
            self.emit(f"# {source}")
        try:
            for line in self.call(instruction):
                self.emit(line)
        except CannotPrint as error:
            _refuse(f"{instruction.op}: {error.cause}", source, error.remedy)

    def call(self, instruction: Instruction) -> list[str]:
        for name in isa.alu_ops(instruction):
            if not isa.ALU[name].native:
                raise CannotPrint(
                    f"operator '{name}' does not exist on a NeuronCore",
                    "Compose it from native operators",
                )
        exact = isa.is_exact_integer(instruction, self.dtype_of)
        if instruction.op == "tensor_scalar" and instruction.engine == isa.GPSIMD and exact:
            return self.exact_tensor_scalar(instruction)
        if instruction.op == "dma_compute":
            return self.dma_compute(instruction)
        given = self.arguments(instruction)
        if instruction.op == "activation" and "reduce_res" in given:
            given["reduce_cmd"] = "nisa.reduce_cmd.reset_reduce"
        given |= self.engine(instruction)
        order = PARAMETERS[instruction.op]
        shown = [f"{name}={given[name]}" for name in order if name in given]
        return call_lines(f"nisa.{instruction.op}", shown, 4 * self.depth)

    def arguments(self, instruction: Instruction) -> dict[str, str]:
        spec = isa.spec(instruction.op)
        given: dict[str, str] = {}
        for slot, out in zip(spec.outs, instruction.outs, strict=False):
            given[slot.name] = self.access(out)
        for slot, value in zip(spec.ins, instruction.ins, strict=True):
            if isinstance(value, TileAccess | HbmAccess):
                given[slot.name] = self.access(value)
                if slot.name == "predicate" and self.dtype_of(value) == int32:
                    # NKI predicates are unsigned; the bits are the same.
                    given[slot.name] += ".view(nl.uint32)"
            elif isinstance(value, RegisterValue):
                raise CannotPrint(
                    f"operand '{slot.name}' is the register {value.value}",
                    "NKI operands are tiles or constants; keep the value in a [P, 1] tile",
                )
            elif value is not None:
                given[slot.name] = number_text(value)
        for declared in spec.attrs:
            text = self.attribute(declared, instruction.attr(declared.name))
            if text is not None:
                given[declared.name] = text
        return given

    def attribute(self, declared: isa.AttributeSpec, value: Any) -> str | None:
        if declared.name == "accumulate":
            # Always said: without it NKI guesses from what was written before.
            if isinstance(value, Predicate):
                left, right = (self.names.text(v) for v in (value.left, value.right))
                return f"({left} {value.relation} {right})"
            return str(bool(value))
        if value is None or value is False:
            return None
        if isinstance(value, str):
            return f"nl.{OPERATOR_NAMES[value]}"
        if declared.kind == "pattern":
            pairs = (f"[{self.names.text(s)}, {self.names.text(c)}]" for s, c in value)
            return f"[{', '.join(pairs)}]"
        if declared.kind == "axes":
            return str(value[0]) if len(value) == 1 else tuple_text(map(str, value))
        if isinstance(value, bool):
            return str(value)
        if isinstance(value, float):
            return number_text(value)
        return self.names.text(value)

    def engine(self, instruction: Instruction) -> dict[str, str]:
        default = isa.default_engine(instruction, self.dtype_of, self.memory_of)
        if instruction.engine == default:
            return {}
        if not isa.spec(instruction.op).is_dma:
            return {"engine": f"nisa.engine.{instruction.engine}"}
        if instruction.engine == isa.GPSIMD:
            return {"dge_mode": "nisa.dge_mode.swdge"}
        if instruction.op != "dma_copy":
            raise CannotPrint(
                f"queue {instruction.engine} is chosen", "Leave the engine of this DMA out"
            )
        source = instruction.ins[0]
        assert isinstance(source, TileAccess | HbmAccess)
        if self.dtype_of(instruction.outs[0]) != self.dtype_of(source):
            raise CannotPrint(
                f"a DMA on queue {instruction.engine} changes the dtype",
                "Use queue gpsimd or the default: hardware descriptors keep the dtype",
            )
        return {
            "dge_mode": "nisa.dge_mode.hwdge",
            "engine": f"nisa.engine.{instruction.engine}",
        }

    def exact_tensor_scalar(self, instruction: Instruction) -> list[str]:
        """32-bit integers are exact on GpSimd for two tiles: the scalar is repeated as one."""
        if instruction.attr("op1") is not None:
            raise CannotPrint(
                "two operators on exact 32-bit integers", "Write one instruction per operator"
            )
        data, operand = instruction.ins[0], instruction.ins[1]
        assert isinstance(data, TileAccess)
        shown = self.access(data)
        if isinstance(operand, TileAccess):
            column = self.access(operand)
        else:
            assert isinstance(operand, int)
            dtype = self.dtype(self.dtype_of(instruction.outs[0]), "dst", None)
            column = f"column({int(operand)}, {self.names.text(data.partitions)}, {dtype})"
        sides = [shown, f"repeat({column}, {shown}.shape)"]
        if instruction.attr("reverse0"):
            sides.reverse()
        arguments = [
            f"dst={self.access(instruction.outs[0])}",
            f"data1={sides[0]}",
            f"data2={sides[1]}",
            f"op=nl.{OPERATOR_NAMES[str(instruction.attr('op0'))]}",
        ]
        return call_lines("nisa.tensor_tensor", arguments, 4 * self.depth)

    def dma_compute(self, instruction: Instruction) -> list[str]:
        dst, source = instruction.outs[0], instruction.ins[0]
        assert isinstance(dst, HbmAccess) and isinstance(source, TileAccess | HbmAccess)
        target = self.access(dst)
        if self.engine(instruction).keys() - {"dge_mode"}:
            raise CannotPrint("a queue is chosen", "Leave the engine of dma_compute out")
        if dst.index is None:
            arguments = [f"dst={target}", f"srcs=[{target}, {self.access(source)}]"]
            return call_lines("nisa.dma_compute", [*arguments, "reduce_op=nl.add"], 4 * self.depth)
        base, _, inside = target.partition(".ap(")
        parts = dict(part.split("=", 1) for part in split_commas(inside[:-1]))
        pattern, index = parts["pattern"], parts["vector_offset"]
        offset = parts.get("offset", "0")
        arguments = [
            f"dst={base}",
            f"pattern={pattern}",
            f"offset={offset}",
            f"index={index}",
            f"src={self.access(source)}",
        ]
        return call_lines("scatter_add", arguments, 4 * self.depth)


def _driver(program: TileProgram, names: Sequence[str]) -> list[str]:
    """A plain function that calls the kernels in order."""
    inputs = [b.name for b in program.buffers if b.kind in ("input", "constant")]
    lines = [
        f"def {_free_name(program, names)}({', '.join(inputs)}):",
        f'    """Call the {len(program.calls)} kernels in order; each returns HBM tensors."""',
    ]
    for call in program.calls:
        assert isinstance(call, KernelCall)
        kernel = program.kernels[call.kernel]
        pairs = list(zip(kernel.params, call.buffers, strict=True))
        arguments = [buffer for param, buffer in pairs if param.role != "out"]
        results = [buffer for param, buffer in pairs if param.role != "in"]
        left = f"{', '.join(results)} = " if results else ""
        line = f"    {left}{names[call.kernel]}({', '.join(arguments)})"
        if len(line) > WIDTH:
            wrapped = "".join(f"        {a},\n" for a in arguments).rstrip("\n")
            line = f"    {left}{names[call.kernel]}(\n{wrapped}\n    )"
        lines.append(line)
    lines.append(f"    return {', '.join(program.outputs)}")
    return lines


def _free_name(program: TileProgram, names: Sequence[str]) -> str:
    base = _function_name(program.name, "program")
    while base in names:
        base = f"run_{base}"
    return base

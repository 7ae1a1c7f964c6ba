"""Tiny shape-generic kernels, built with llvmlite, for the tests of kernel registration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding as llvm
import torch
from llvmlite import ir

from trnx_torch.registration import Kernel, KernelRequest

I64 = ir.IntType(64)
TYPES = {
    torch.float32: ir.FloatType(),
    torch.float64: ir.DoubleType(),
    torch.int64: ir.IntType(64),
    torch.int32: ir.IntType(32),
    torch.bool: ir.IntType(8),
}
BODY = Callable[[ir.IRBuilder, Sequence[Any]], Any]

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()


class Loops:
    """Emits one kernel: reads registers, opens loops, addresses operands."""

    def __init__(self) -> None:
        self.module = ir.Module()
        pointer = ir.PointerType(ir.PointerType(ir.IntType(8)))
        kind = ir.FunctionType(ir.IntType(32), [pointer, ir.PointerType(I64)])
        self.function = ir.Function(self.module, kind, "kernel")
        self.builder = ir.IRBuilder(self.function.append_basic_block("entry"))

    def register(self, index: int) -> Any:
        slot = self.builder.gep(self.function.args[1], [I64(index)])
        return self.builder.load(slot)

    def pointer(self, index: int, dtype: torch.dtype) -> Any:
        slot = self.builder.gep(self.function.args[0], [I64(index)])
        return self.builder.bitcast(self.builder.load(slot), ir.PointerType(TYPES[dtype]))

    def loop(self, size: Any, body: Callable[[Any], None]) -> None:
        """for (i = 0; i < size; ++i) body(i)"""
        b = self.builder
        variable = b.alloca(I64)
        b.store(I64(0), variable)
        head, inside, after = (self.function.append_basic_block() for _ in range(3))
        b.branch(head)
        b.position_at_end(head)
        index = b.load(variable)
        b.cbranch(b.icmp_signed("<", index, size), inside, after)
        b.position_at_end(inside)
        body(index)
        b.store(b.add(index, I64(1)), variable)
        b.branch(head)
        b.position_at_end(after)

    def nest(self, sizes: Sequence[Any], body: Callable[[list[Any]], None]) -> None:
        def open_loop(level: int, indices: list[Any]) -> None:
            if level == len(sizes):
                body(indices)
            else:
                self.loop(sizes[level], lambda i: open_loop(level + 1, [*indices, i]))

        open_loop(0, [])

    def offset(self, indices: Sequence[Any], strides: Sequence[Any]) -> Any:
        total: Any = I64(0)
        for index, stride in zip(indices, strides, strict=True):
            total = self.builder.add(total, self.builder.mul(index, stride))
        return total

    def cast(self, value: Any, source: torch.dtype, target: torch.dtype) -> Any:
        b = self.builder
        if source == target:
            return value
        if target == torch.bool:
            zero = ir.Constant(value.type, 0)
            test = b.fcmp_unordered if source.is_floating_point else b.icmp_signed
            return b.zext(test("!=", value, zero), TYPES[target])
        if source.is_floating_point and target.is_floating_point:
            cast = b.fpext if source == torch.float32 else b.fptrunc
        elif source.is_floating_point:
            cast = b.fptosi
        elif target.is_floating_point:
            cast = b.sitofp
        else:
            cast = b.sext if source.itemsize < target.itemsize else b.trunc
        return cast(value, TYPES[target])

    def finish(self, status: int = 0) -> Kernel:
        self.builder.ret(ir.IntType(32)(status))
        module = llvm.parse_assembly(str(self.module))
        machine = llvm.Target.from_default_triple().create_target_machine(opt=2)
        engine = llvm.create_mcjit_compiler(module, machine)
        engine.finalize_object()
        return Kernel(engine.get_function_address("kernel"), engine)


def pointwise(request: KernelRequest, body: BODY, status: int = 0) -> Kernel:
    """outputs[...] = body(inputs and scalars in the compute dtype)"""
    k = Loops()
    (rank,) = request.ranks
    operands = [*request.outputs, *request.inputs]
    sizes = [k.register(d) for d in range(rank)]
    strides = [[k.register(rank * (i + 1) + d) for d in range(rank)] for i in range(len(operands))]
    pointers = [k.pointer(i, operand.dtype) for i, operand in enumerate(operands)]
    scalars = [
        k.cast(
            k.builder.load(k.pointer(len(operands) + i, scalar.dtype)),
            scalar.dtype,
            request.compute,
        )
        for i, scalar in enumerate(request.scalars)
    ]
    outputs = len(request.outputs)

    def element(indices: list[Any]) -> None:
        places = [
            k.builder.gep(pointer, [k.offset(indices, stride)])
            for pointer, stride in zip(pointers, strides, strict=True)
        ]
        values = {
            operand.name: k.cast(k.builder.load(place), operand.dtype, request.compute)
            for operand, place in zip(request.inputs, places[outputs:], strict=True)
        }
        values |= {s.name: v for s, v in zip(request.scalars, scalars, strict=True)}
        results = body(k.builder, values)
        for operand, place, result in zip(
            request.outputs,
            places,
            results if isinstance(results, tuple) else (results,),
            strict=False,
        ):
            source = request.compute if result.type == TYPES[request.compute] else torch.bool
            k.builder.store(k.cast(result, source, operand.dtype), place)

    k.nest(sizes, element)
    return k.finish(status)


def reduction(request: KernelRequest, start: float, body: BODY) -> Kernel:
    """out[kept] = fold of body over the reduced dimensions, from `start`"""
    k = Loops()
    kept, reduced = request.ranks
    at = 0

    def take(count: int) -> list[Any]:
        nonlocal at
        at += count
        return [k.register(i) for i in range(at - count, at)]

    kept_sizes, reduced_sizes = take(kept), take(reduced)
    kept_strides, reduced_strides, out_strides = take(kept), take(reduced), take(kept)
    (source,) = request.inputs
    (target,) = request.outputs
    out, data = k.pointer(0, target.dtype), k.pointer(1, source.dtype)
    total = k.builder.alloca(TYPES[target.dtype])

    def row(indices: list[Any]) -> None:
        k.builder.store(ir.Constant(TYPES[target.dtype], start), total)
        base = k.offset(indices, kept_strides)

        def step(inner: list[Any]) -> None:
            place = k.builder.add(base, k.offset(inner, reduced_strides))
            value = k.builder.load(k.builder.gep(data, [place]))
            value = k.cast(value, source.dtype, target.dtype)
            k.builder.store(body(k.builder, (k.builder.load(total), value)), total)

        k.nest(reduced_sizes, step)
        place = k.builder.gep(out, [k.offset(indices, out_strides)])
        k.builder.store(k.builder.load(total), place)

    k.nest(kept_sizes, row)
    return k.finish()


def matmul(request: KernelRequest) -> Kernel:
    """out = beta * addend + alpha * left @ right, in float32"""
    k = Loops()
    b = k.builder
    batch, m, n, depth = (k.register(i) for i in range(4))
    addend = len(request.inputs) == 3
    strides = [[k.register(4 + 3 * i + d) for d in range(3)] for i in range(4 if addend else 3)]
    names = ["left", "right", *(["addend"] if addend else []), "out"]
    by_name = dict(zip(names, strides, strict=True))
    pointers = [k.pointer(i, torch.float32) for i in range(4 if addend else 3)]
    out, left, right = pointers[:3]
    zero, one = ir.Constant(ir.FloatType(), 0.0), ir.Constant(ir.FloatType(), 1.0)
    beta = b.load(k.pointer(4, torch.float32)) if addend else zero
    alpha = b.load(k.pointer(5, torch.float32)) if addend else one
    total = b.alloca(ir.FloatType())

    def cell(indices: list[Any]) -> None:
        i, row, column = indices
        b.store(zero, total)

        def step(p: Any) -> None:
            x = b.load(b.gep(left, [k.offset([i, row, p], by_name["left"])]))
            y = b.load(b.gep(right, [k.offset([i, p, column], by_name["right"])]))
            b.store(b.fadd(b.load(total), b.fmul(x, y)), total)

        k.loop(depth, step)
        value = b.fmul(alpha, b.load(total))
        if addend:
            z = b.load(b.gep(pointers[3], [k.offset(indices, by_name["addend"])]))
            value = b.fadd(value, b.fmul(beta, z))
        b.store(value, b.gep(out, [k.offset(indices, by_name["out"])]))

    k.nest([batch, m, n], cell)
    return k.finish()

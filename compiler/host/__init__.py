"""Native code for the CPU from tile programs, through LLVM."""

from trnx.compiler.host.load import NativeProgram, load
from trnx.compiler.host.program import HostCode, HostOptions, compile_program

__all__ = ["HostCode", "HostOptions", "NativeProgram", "compile_program", "load"]

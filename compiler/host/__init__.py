"""Native code for the CPU from tile programs, through LLVM."""

from trnx.compiler.host.load import NativeProgram, load
from trnx.compiler.host.program import (
    HostCode,
    HostIdentity,
    HostOptions,
    compile_program,
    host_identity,
)

__all__ = [
    "HostCode",
    "HostIdentity",
    "HostOptions",
    "NativeProgram",
    "compile_program",
    "host_identity",
    "load",
]

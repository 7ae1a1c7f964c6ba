"""What the CPU that runs the process can do, found at run time."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import dataclass
from functools import cache
from typing import Final

import llvmlite.binding as llvm

# Feature, vector bytes; the first present one counts.
_VECTOR_BYTES: Final = (("avx512bw", 64), ("avx", 32), ("sse2", 16), ("neon", 16))


@dataclass(frozen=True, slots=True)
class Cpu:
    """A code generation target.

    ``vector_bytes`` is the width of a vector register, ``registers`` how many there are;
    ``masked`` says whether any vector load and store may be masked at no cost (AVX-512).
    ``features`` is LLVM's feature string, with ``name`` part of every cache key.
    """

    triple: str
    name: str
    features: str
    vector_bytes: int
    registers: int
    fma: bool
    half: bool
    masked: bool
    scale: bool

    @property
    def lanes(self) -> int:
        """fp32 elements of a vector register."""
        return self.vector_bytes // 4

    @property
    def key(self) -> str:
        """Text that differs whenever generated code may."""
        return f"{self.triple}|{self.name}|{self.features}|{self.vector_bytes}"

    @property
    def tag(self) -> str:
        """A short form of ``key`` for symbols."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:12]

    def without(self, *prefixes: str) -> Cpu:
        """The CPU as if it lacked the features whose names start so (for tests and old code)."""
        table = {}
        for entry in self.features.split(","):
            feature = entry[1:]
            table[feature] = entry[0] == "+" and not feature.startswith(prefixes)
        return describe(self.triple, "x86-64" if "x86" in self.triple else "generic", table)


def describe(triple: str, name: str, features: dict[str, bool]) -> Cpu:
    """The ``Cpu`` for LLVM's triple, CPU name and feature table."""
    arch = triple.split("-", maxsplit=1)[0]
    arm = arch in ("aarch64", "arm64")
    has = {feature for feature, present in features.items() if present}
    if arm:
        # Part of the base architecture; the feature table may leave them out.
        has |= {"neon", "fma", "fullfp16"}
    width = next((size for feature, size in _VECTOR_BYTES if feature in has), 4)
    wide = width == 64
    return Cpu(
        triple=triple,
        name=name,
        features=",".join(f"{'+' if on else '-'}{f}" for f, on in sorted(features.items())),
        vector_bytes=width,
        registers=32 if wide or arm else 16,
        fma=bool(has & {"fma", "fma4"}),
        half=arm or "f16c" in has,
        masked=wide,
        scale=wide,
    )


@cache
def host_cpu() -> Cpu:
    """The CPU of this process.

    Raises:
        RuntimeError: LLVM has no code generator for it.
    """
    try:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    except RuntimeError as error:
        raise RuntimeError(
            f"LLVM cannot generate code for this processor ({platform.machine()}): {error}. "
            "Install llvmlite for x86-64 or aarch64."
        ) from error
    features = dict(llvm.get_host_cpu_features())
    return describe(llvm.get_process_triple(), llvm.get_host_cpu_name(), features)

"""Every option of trnx, declared once.

An option has a Python name, an environment variable, a type, a default and one line of doc. Read it
with ``config.debug.value``; change it for the process with ``config.debug.set(3)`` or for a block
with ``with config.debug(3):``. Options diagnose or tune, they never change what a program means.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T", bool, int, str)

_UNSET: Any = object()
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off", ""})


class Option(Generic[T]):
    """One typed option.

    Args:
        name: Python name, also the attribute of this module.
        env: environment variable that sets the value for the process.
        kind: ``bool``, ``int`` or ``str``.
        default: value when nothing sets it.
        doc: one sentence for the options table.
        choices: allowed values, if not every value of the type is.
        minimum: smallest allowed value of an int.
    """

    __slots__ = (
        "_block",
        "_process",
        "choices",
        "default",
        "doc",
        "env",
        "kind",
        "minimum",
        "name",
    )

    kind: type[T]
    default: T
    choices: tuple[T, ...] | None
    minimum: int | None

    def __init__(
        self,
        name: str,
        env: str,
        kind: type[T],
        default: T,
        doc: str,
        choices: tuple[T, ...] | None = None,
        minimum: int | None = None,
    ) -> None:
        self.name = name
        self.env = env
        self.kind = kind
        self.default = default
        self.doc = doc
        self.choices = choices
        self.minimum = minimum
        self._block: ContextVar[T] = ContextVar(f"trnx_option_{name}")
        self._process: T = default
        text = os.environ.get(env)
        if text is not None:
            self._process = self.parse(text)
        options[name] = self

    def parse(self, text: str) -> T:
        """The value a text (from the environment) stands for; ValueError when it is none."""
        value: Any = text
        if self.kind is bool:
            lowered = text.strip().lower()
            if lowered not in _TRUE | _FALSE:
                raise ValueError(f"{self.env}={text!r} is not a truth value. Use 1 or 0.")
            value = lowered in _TRUE
        elif self.kind is int:
            try:
                value = int(text)
            except ValueError:
                raise ValueError(f"{self.env}={text!r} is not an integer. Set a number.") from None
        return self.validate(value)

    def validate(self, value: Any) -> T:
        """`value` if it has the option's type and is one of its choices; else an error."""
        if self.kind is int and isinstance(value, bool):
            value = int(value)
        if not isinstance(value, self.kind):
            raise TypeError(
                f"Option {self.name} takes {self.kind.__name__}, "
                f"not {type(value).__name__}. Pass a {self.kind.__name__}."
            )
        if self.minimum is not None and int(cast(Any, value)) < self.minimum:
            raise ValueError(f"Option {self.name} cannot be {value}. Use {self.minimum} or more.")
        if self.choices is not None and value not in self.choices:
            allowed = ", ".join(map(repr, self.choices))
            raise ValueError(f"Option {self.name} cannot be {value!r}. Use one of {allowed}.")
        return value

    @property
    def value(self) -> T:
        """The value in force: innermost ``with`` block, else process value, else default."""
        return self._block.get(self._process)

    def set(self, value: T) -> None:
        """Change the value for the whole process (blocks that are open keep theirs)."""
        self._process = self.validate(value)

    @contextmanager
    def __call__(self, value: T) -> Iterator[None]:
        """Change the value inside a ``with`` block of this thread or task."""
        token = self._block.set(self.validate(value))
        try:
            yield
        finally:
            self._block.reset(token)

    def __repr__(self) -> str:
        return f"Option({self.name}={self.value!r}, {self.env})"


options: dict[str, Option[Any]] = {}

debug = Option(
    "debug",
    "TRNX_DEBUG",
    int,
    0,
    "Print more: 1 device and compiles, 2 time and bytes per program, 3 chosen tiles, "
    "4 tile program text, 5 every pass.",
    choices=(0, 1, 2, 3, 4, 5),
)
dump_ir = Option(
    "dump_ir", "TRNX_DUMP_IR", str, "", "Directory that receives the text of every compile stage."
)
explain = Option(
    "explain", "TRNX_EXPLAIN", bool, False, "Say why a call compiles again: argument, old, new."
)
check = Option(
    "check", "TRNX_CHECK", bool, False, "Verify programs by numbered constraints after each pass."
)
disable_jit = Option(
    "disable_jit", "TRNX_DISABLE_JIT", bool, False, "Run jitted functions op by op."
)
debug_nans = Option(
    "debug_nans", "TRNX_DEBUG_NANS", bool, False, "Raise when an operation makes a NaN."
)
pad_fill = Option(
    "pad_fill",
    "TRNX_PAD_FILL",
    str,
    "",
    "Fill the padding of bucketed inputs: nan, inf (integers: smallest) or -inf (largest); "
    "empty leaves garbage.",
    choices=("", "nan", "inf", "-inf"),
)
traceback_filter = Option(
    "traceback_filter", "TRNX_TRACEBACK_FILTER", bool, True, "Hide trnx frames in tracebacks."
)
cache_dir = Option(
    "cache_dir", "TRNX_CACHE_DIR", str, "", "Directory of the compile cache; empty: per user."
)
disk_cache = Option("disk_cache", "TRNX_DISK_CACHE", bool, True, "Keep compiled programs on disk.")
cache_limit = Option(
    "cache_limit",
    "TRNX_CACHE_LIMIT",
    int,
    2048,
    "MiB that compiled programs may take on disk, least recently used ones go first; 0: no limit.",
    minimum=0,
)
threads = Option(
    "threads", "TRNX_THREADS", int, 0, "Host worker threads; 0 takes every core.", minimum=0
)
target = Option(
    "target", "TRNX_TARGET", str, "trn2", "Hardware generation that tile programs are built for."
)
devices = Option(
    "devices",
    "TRNX_DEVICES",
    int,
    0,
    "Logical neuron devices in PyTorch; 0: as many as torchrun starts here, else 1.",
    minimum=0,
)


def options_table() -> str:
    """A Markdown table of every option, for the documentation."""
    rows = ["| option | environment | type | default | what it does |", "|---|---|---|---|---|"]
    for option in options.values():
        default = repr(option.default) if option.default != "" else "empty"
        rows.append(
            f"| `{option.name}` | `{option.env}` | {option.kind.__name__} "
            f"| {default} | {option.doc} |"
        )
    return "\n".join(rows) + "\n"


def snapshot() -> dict[str, Any]:
    """The values in force now; compiled programs keep one (thread context may be empty later)."""
    return {name: option.value for name, option in options.items()}


def warn_unknown(environment: Mapping[str, str]) -> list[str]:
    """Warn once about ``TRNX_*`` variables that no option declares; returns their names."""
    known = {option.env for option in options.values()}
    unknown = sorted(k for k in environment if k.startswith("TRNX_") and k not in known)
    if unknown:
        warnings.warn(
            f"Unknown environment variables {', '.join(unknown)} have no effect. "
            f"Known: {', '.join(sorted(known))}.",
            stacklevel=2,
        )
    return unknown


warn_unknown(os.environ)

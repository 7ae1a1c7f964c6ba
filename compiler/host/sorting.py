"""Sorting a row in native code: the `row_sort` instruction.

Keys become unsigned integers whose order is the wanted one, NaN last and zeros of both signs equal.
Short rows, and long ones of which few elements are wanted, go through an insertion buffer; others
through a radix sort by bytes, least significant first, which skips bytes that all keys share. Both
are stable. One function per dtype and direction, called once per row.
"""

from __future__ import annotations

from dataclasses import dataclass

from trnx.compiler.host.emit import Module
from trnx.compiler.host.types import DType
from trnx.core.dtypes import bfloat16, float16, float32, float64, is_signed_integer, short_name

INSERTED = 32
"""Rows, or results wanted of a row, up to which the insertion buffer is used."""

_SPECIAL = {  # bits of infinity
    bfloat16: 0x7F80,
    float16: 0x7C00,
    float32: 0x7F800000,
    float64: 0x7FF0000000000000,
}

BUCKETS = 256


@dataclass(frozen=True, slots=True)
class _Keys:
    """How an element of a dtype becomes a key of `bits` bits."""

    dtype: DType
    descending: bool

    @property
    def bits(self) -> int:
        return self.dtype.itemsize * 8

    def lines(self, source: str, name: str) -> list[str]:
        """Instructions that make ``%name`` from the bits in ``%source``."""
        kind = f"i{self.bits}"
        sign = -(1 << (self.bits - 1))
        out: list[str] = []
        last = source
        if self.dtype in _SPECIAL:
            infinity = _SPECIAL[self.dtype]
            out = [
                f"%{name}m = and {kind} %{source}, {~sign}",
                f"%{name}n = icmp ugt {kind} %{name}m, {infinity}",
                f"%{name}z = icmp eq {kind} %{name}m, 0",
                f"%{name}s = icmp slt {kind} %{source}, 0",
                f"%{name}i = xor {kind} %{source}, -1",
                f"%{name}o = or {kind} %{source}, {sign}",
                f"%{name}a = select i1 %{name}s, {kind} %{name}i, {kind} %{name}o",
                f"%{name}b = select i1 %{name}z, {kind} {sign}, {kind} %{name}a",
                f"%{name}c = select i1 %{name}n, {kind} -1, {kind} %{name}b",
            ]
            last = f"{name}c"
        elif is_signed_integer(self.dtype):
            out = [f"%{name}c = xor {kind} %{source}, {sign}"]
            last = f"{name}c"
        flip = -1 if self.descending else 0
        return [*out, f"%{name} = xor {kind} %{last}, {flip}"]


def sort_function(module: Module, dtype: DType, descending: bool) -> str:
    """Name of the function that sorts a row; it is put into the module on first use.

    Its arguments are data, its stride and its count, then values and places with their strides, and
    the number of results wanted; strides are in elements, places are int32.
    """
    keys = _Keys(dtype, descending)
    name = f"row_sort_{short_name(dtype)}_{'down' if descending else 'up'}"
    module.define(name, _text(name, keys))
    return name


def _text(name: str, keys: _Keys) -> str:
    kind, size = f"i{keys.bits}", keys.bits // 8

    def element(key: str, place: str, index: str) -> list[str]:
        """The key of element ``index`` of the data."""
        return [
            f"%{place}d = mul nsw i64 {index}, %ds",
            f"%{place}p = getelementptr {kind}, ptr %data, i64 %{place}d",
            f"%{place}v = load {kind}, ptr %{place}p, align {size}",
            *keys.lines(f"{place}v", key),
        ]

    arguments = "ptr %data, i64 %ds, i64 %n, ptr %dst, i64 %vs, ptr %idx, i64 %is, i64 %k"
    lines = [
        f"define internal void @{name}({arguments}) noinline nounwind {{",
        "entry:",
        f"%short = icmp ule i64 %n, {INSERTED}",
        f"%few = icmp ule i64 %k, {INSERTED}",
        "%inserted = or i1 %short, %few",
        "br i1 %inserted, label %insert, label %radix",
        *_insertion(kind, size, element("key", "e", "%i")),
        *_radix(kind, size, element("rkey", "r", "%ri")),
        "output:",
        "%ids = phi ptr [ %ii, %iloop ], [ %lastids, %sorted ]",
        "br label %oloop",
        "oloop:",
        "%o = phi i64 [ 0, %output ], [ %o1, %obody ]",
        "%omore = icmp ult i64 %o, %k",
        "br i1 %omore, label %obody, label %done",
        "obody:",
        "%op = getelementptr i32, ptr %ids, i64 %o",
        "%oid = load i32, ptr %op, align 4",
        "%oat = zext i32 %oid to i64",
        "%ofrom = mul nsw i64 %oat, %ds",
        f"%osrc = getelementptr {kind}, ptr %data, i64 %ofrom",
        f"%oval = load {kind}, ptr %osrc, align {size}",
        "%oto = mul nsw i64 %o, %vs",
        f"%odst = getelementptr {kind}, ptr %dst, i64 %oto",
        f"store {kind} %oval, ptr %odst, align {size}",
        "%oplace = mul nsw i64 %o, %is",
        "%oidx = getelementptr i32, ptr %idx, i64 %oplace",
        "store i32 %oid, ptr %oidx, align 4",
        "%o1 = add nuw nsw i64 %o, 1",
        "br label %oloop",
        "done:",
        "ret void",
        "}",
    ]
    return "\n".join(line if line.endswith((":", "{", "}")) else f"  {line}" for line in lines)


def _insertion(kind: str, size: int, key: list[str]) -> list[str]:
    """Keep the first k elements in order; each new one moves larger ones up."""
    return [
        "insert:",
        f"%ik = alloca {kind}, i64 %k, align {size}",
        "%ii = alloca i32, i64 %k, align 4",
        "%top = sub i64 %k, 1",
        f"%topp = getelementptr {kind}, ptr %ik, i64 %top",
        "br label %iloop",
        "iloop:",
        "%i = phi i64 [ 0, %insert ], [ %i1, %inext ]",
        "%m = phi i64 [ 0, %insert ], [ %m1, %inext ]",
        "%more = icmp ult i64 %i, %n",
        "br i1 %more, label %ibody, label %output",
        "ibody:",
        *key,
        "%full = icmp eq i64 %m, %k",
        "br i1 %full, label %icheck, label %ishift",
        "icheck:",
        f"%last = load {kind}, ptr %topp, align {size}",
        f"%wins = icmp ult {kind} %key, %last",
        "br i1 %wins, label %ishift, label %inext",
        "ishift:",
        "%start = phi i64 [ %m, %ibody ], [ %top, %icheck ]",
        "%grown = add i64 %start, 1",
        "br label %jloop",
        "jloop:",
        "%j = phi i64 [ %start, %ishift ], [ %j1, %jmove ]",
        "%first = icmp eq i64 %j, 0",
        "br i1 %first, label %iput, label %jtest",
        "jtest:",
        "%j1 = sub i64 %j, 1",
        f"%pkp = getelementptr {kind}, ptr %ik, i64 %j1",
        f"%pk = load {kind}, ptr %pkp, align {size}",
        f"%larger = icmp ult {kind} %key, %pk",
        "br i1 %larger, label %jmove, label %iput",
        "jmove:",
        f"%jkp = getelementptr {kind}, ptr %ik, i64 %j",
        f"store {kind} %pk, ptr %jkp, align {size}",
        "%pip = getelementptr i32, ptr %ii, i64 %j1",
        "%pi = load i32, ptr %pip, align 4",
        "%jip = getelementptr i32, ptr %ii, i64 %j",
        "store i32 %pi, ptr %jip, align 4",
        "br label %jloop",
        "iput:",
        f"%ukp = getelementptr {kind}, ptr %ik, i64 %j",
        f"store {kind} %key, ptr %ukp, align {size}",
        "%uip = getelementptr i32, ptr %ii, i64 %j",
        "%short_i = trunc i64 %i to i32",
        "store i32 %short_i, ptr %uip, align 4",
        "br label %inext",
        "inext:",
        "%m1 = phi i64 [ %m, %icheck ], [ %grown, %iput ]",
        "%i1 = add nuw nsw i64 %i, 1",
        "br label %iloop",
    ]


def _radix(kind: str, size: int, key: list[str]) -> list[str]:
    """Counts of all bytes in one walk, then a stable pass per byte between two buffers."""
    counters = size * BUCKETS
    lines = [
        "radix:",
        f"%ka = alloca {kind}, i64 %n, align {size}",
        f"%kb = alloca {kind}, i64 %n, align {size}",
        "%ia = alloca i32, i64 %n, align 4",
        "%ib = alloca i32, i64 %n, align 4",
        f"%hist = alloca [{counters} x i32], align 16",
        "br label %clear",
        "clear:",
        "%cl = phi i64 [ 0, %radix ], [ %cl1, %clear ]",
        "%clp = getelementptr i32, ptr %hist, i64 %cl",
        "store i32 0, ptr %clp, align 4",
        "%cl1 = add nuw nsw i64 %cl, 1",
        f"%clmore = icmp ult i64 %cl1, {counters}",
        "br i1 %clmore, label %clear, label %rloop",
        "rloop:",
        "%ri = phi i64 [ 0, %clear ], [ %ri1, %rbody ]",
        "%rmore = icmp ult i64 %ri, %n",
        "br i1 %rmore, label %rbody, label %pass0",
        "rbody:",
        *key,
        f"%rkp = getelementptr {kind}, ptr %ka, i64 %ri",
        f"store {kind} %rkey, ptr %rkp, align {size}",
        "%rip = getelementptr i32, ptr %ia, i64 %ri",
        "%rid = trunc i64 %ri to i32",
        "store i32 %rid, ptr %rip, align 4",
    ]
    for b in range(size):
        lines += [
            *_byte(kind, size, "rkey", b, f"c{b}"),
            f"%c{b}n = load i32, ptr %c{b}h, align 4",
            f"%c{b}m = add i32 %c{b}n, 1",
            f"store i32 %c{b}m, ptr %c{b}h, align 4",
        ]
    lines += ["%ri1 = add nuw nsw i64 %ri, 1", "br label %rloop"]
    now = ("%ka", "%ia", "%kb", "%ib")
    came = "rloop"
    for b in range(size):
        lines += _pass(kind, size, b, now, came)
        now = (f"%p{b}ks", f"%p{b}is", f"%p{b}kt", f"%p{b}it")
        came = f"pass{b}end"
    lines += ["sorted:", f"%lastids = phi ptr [ {now[1]}, %{came} ]", "br label %output"]
    return lines


def _byte(kind: str, size: int, key: str, b: int, name: str) -> list[str]:
    """``%{name}h``: the counter of byte `b` of a key."""
    wide = f"%{key}" if size == 8 else f"%{name}w"
    lines = [] if size == 8 else [f"%{name}w = zext {kind} %{key} to i64"]
    return [
        *lines,
        f"%{name}s = lshr i64 {wide}, {8 * b}",
        f"%{name}b = and i64 %{name}s, 255",
        f"%{name}o = add i64 %{name}b, {b * BUCKETS}",
        f"%{name}h = getelementptr i32, ptr %hist, i64 %{name}o",
    ]


def _pass(kind: str, size: int, b: int, now: tuple[str, str, str, str], came: str) -> list[str]:
    """Stable distribution by byte `b`; nothing moves when all keys have the same one."""
    keys, ids, keys_to, ids_to = now
    p = f"p{b}"
    following = "sorted" if b == size - 1 else f"pass{b + 1}"
    return [
        f"pass{b}:",
        f"%{p}first = load {kind}, ptr {keys}, align {size}",
        *_byte(kind, size, f"{p}first", b, f"{p}f"),
        f"%{p}c = load i32, ptr %{p}fh, align 4",
        f"%{p}cw = zext i32 %{p}c to i64",
        f"%{p}all = icmp eq i64 %{p}cw, %n",
        f"br i1 %{p}all, label %pass{b}end, label %pass{b}sum",
        f"pass{b}sum:",
        f"%{p}q = phi i64 [ {b * BUCKETS}, %pass{b} ], [ %{p}q1, %pass{b}sum ]",
        f"%{p}t = phi i32 [ 0, %pass{b} ], [ %{p}t1, %pass{b}sum ]",
        f"%{p}qp = getelementptr i32, ptr %hist, i64 %{p}q",
        f"%{p}qn = load i32, ptr %{p}qp, align 4",
        f"store i32 %{p}t, ptr %{p}qp, align 4",
        f"%{p}t1 = add i32 %{p}t, %{p}qn",
        f"%{p}q1 = add i64 %{p}q, 1",
        f"%{p}qmore = icmp ult i64 %{p}q1, {(b + 1) * BUCKETS}",
        f"br i1 %{p}qmore, label %pass{b}sum, label %pass{b}move",
        f"pass{b}move:",
        f"%{p}i = phi i64 [ 0, %pass{b}sum ], [ %{p}i1, %pass{b}move ]",
        f"%{p}kp = getelementptr {kind}, ptr {keys}, i64 %{p}i",
        f"%{p}k = load {kind}, ptr %{p}kp, align {size}",
        f"%{p}ip = getelementptr i32, ptr {ids}, i64 %{p}i",
        f"%{p}d = load i32, ptr %{p}ip, align 4",
        *_byte(kind, size, f"{p}k", b, f"{p}m"),
        f"%{p}at = load i32, ptr %{p}mh, align 4",
        f"%{p}at1 = add i32 %{p}at, 1",
        f"store i32 %{p}at1, ptr %{p}mh, align 4",
        f"%{p}atw = zext i32 %{p}at to i64",
        f"%{p}ktp = getelementptr {kind}, ptr {keys_to}, i64 %{p}atw",
        f"store {kind} %{p}k, ptr %{p}ktp, align {size}",
        f"%{p}itp = getelementptr i32, ptr {ids_to}, i64 %{p}atw",
        f"store i32 %{p}d, ptr %{p}itp, align 4",
        f"%{p}i1 = add nuw nsw i64 %{p}i, 1",
        f"%{p}imore = icmp ult i64 %{p}i1, %n",
        f"br i1 %{p}imore, label %pass{b}move, label %pass{b}end",
        f"pass{b}end:",
        f"%{p}ks = phi ptr [ {keys}, %pass{b} ], [ {keys_to}, %pass{b}move ]",
        f"%{p}is = phi ptr [ {ids}, %pass{b} ], [ {ids_to}, %pass{b}move ]",
        f"%{p}kt = phi ptr [ {keys_to}, %pass{b} ], [ {keys}, %pass{b}move ]",
        f"%{p}it = phi ptr [ {ids_to}, %pass{b} ], [ {ids}, %pass{b}move ]",
        f"br label %{following}",
    ]

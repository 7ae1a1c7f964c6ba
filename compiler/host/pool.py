"""The thread pool and the per-thread scratch memory of generated code, themselves in LLVM IR.

``trnx_parallel(body, context, trips, bytes, scratch, limit)`` runs ``body(context, first, last,
scratch)`` over all iterations on up to ``limit`` threads. The caller takes part and claims chunks
like the workers do; when nothing is left to claim it waits only for chunks that others have begun.
A region that starts while another runs (a nested one, or one of another thread) is done by its
caller alone. Workers sleep when there is nothing to do for some microseconds.

``trnx_scratch(bytes)`` returns this thread's scratch block of at least so many bytes, page
aligned and in huge pages where there are any (tiles of a matrix product touch more small pages
than the translation caches hold); it stays valid until the thread asks again. ``trnx_pool_init``
runs once per process, and ``trnx_pool_forget`` in the child after a fork, whose workers are gone.
"""

from __future__ import annotations

from typing import Final

from trnx.compiler.host.cpu import Cpu

SYMBOLS: Final = ("trnx_parallel", "trnx_scratch", "trnx_pool_init", "trnx_pool_forget")

_SPINS: Final = 400
"""Looks for work before a worker sleeps: some 20 us. Longer spins take the CPU from others."""

_CHUNKS_PER_THREAD: Final = 4
"""Chunks a thread gets on average: finer shares balance better, coarser ones claim less often."""

_HUGE: Final = 2 << 20
"""Bytes of a huge page; blocks of that size ask for them."""

_ADVICE: Final = (
    "declare i32 @madvise(ptr, i64, i32)",
    "%advised = call i32 @madvise(ptr %fresh, i64 %whole, i32 14)",
)
"""Linux's request for huge pages; a refusal costs nothing but speed."""

_PAUSE: Final = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
}

_TEXT: Final = """
target triple = "{triple}"
{declare}

; Job of the open region. Written by the caller while no worker is active.
@body = internal global ptr null
@context = internal global ptr null
@trips = internal global i64 0
@chunk = internal global i64 0
@bytes = internal global i64 0
@limit = internal global i64 0
@next = internal global i64 0, align 64
@finished = internal global i64 0, align 64
@joined = internal global i64 0
; Workers that may look at the job; the job changes only when there are none.
@active = internal global i64 0, align 64
@open = internal global i64 0
@generation = internal global i64 0, align 64
@busy = internal global i64 0
@workers = internal global i64 0
@sleepers = internal global i64 0
; Room for pthread_mutex_t and pthread_cond_t of any C library.
@mutex = internal global [256 x i8] zeroinitializer, align 64
@wake = internal global [256 x i8] zeroinitializer, align 64
@key = internal global i64 0

declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @pthread_key_create(ptr, ptr)
declare ptr @pthread_getspecific(i64)
declare i32 @pthread_setspecific(i64, ptr)
declare i32 @posix_memalign(ptr, i64, i64)
declare void @free(ptr)
declare void @abort() noreturn
{advice_declaration}

define void @trnx_pool_init() nounwind {{
  %m = call i32 @pthread_mutex_init(ptr @mutex, ptr null)
  %c = call i32 @pthread_cond_init(ptr @wake, ptr null)
  %k = call i32 @pthread_key_create(ptr @key, ptr @free)
  ret void
}}

define void @trnx_pool_forget() nounwind {{
  store i64 0, ptr @active
  store i64 0, ptr @open
  store i64 0, ptr @busy
  store i64 0, ptr @workers
  store i64 0, ptr @sleepers
  %m = call i32 @pthread_mutex_init(ptr @mutex, ptr null)
  %c = call i32 @pthread_cond_init(ptr @wake, ptr null)
  ret void
}}

; The first page of a block holds its size.
define ptr @trnx_scratch(i64 %bytes) nounwind {{
entry:
  %key = load i64, ptr @key
  %old = call ptr @pthread_getspecific(i64 %key)
  %none = icmp eq ptr %old, null
  br i1 %none, label %allocate, label %check
check:
  %size = load i64, ptr %old
  %fits = icmp ule i64 %bytes, %size
  br i1 %fits, label %reuse, label %allocate
reuse:
  %kept = getelementptr i8, ptr %old, i64 4096
  ret ptr %kept
allocate:
  call void @free(ptr %old)
  %place = alloca ptr
  %large = icmp uge i64 %bytes, {huge}
  %unit = select i1 %large, i64 {huge}, i64 4096
  %more = add i64 %bytes, 4095
  %padded = add i64 %more, %unit
  %mask = sub i64 0, %unit
  %whole = and i64 %padded, %mask
  %failed = call i32 @posix_memalign(ptr %place, i64 %unit, i64 %whole)
  %bad = icmp ne i32 %failed, 0
  br i1 %bad, label %die, label %fill
die:
  call void @abort()
  unreachable
fill:
  %fresh = load ptr, ptr %place
  {advice}
  %usable = sub i64 %whole, 4096
  store i64 %usable, ptr %fresh
  %s = call i32 @pthread_setspecific(i64 %key, ptr %fresh)
  %new = getelementptr i8, ptr %fresh, i64 4096
  ret ptr %new
}}

; Claims chunks until none is left. Iterations done count as finished only here.
define internal void @claim(ptr %scratch) nounwind {{
entry:
  %body = load ptr, ptr @body
  %context = load ptr, ptr @context
  %trips = load i64, ptr @trips
  %chunk = load i64, ptr @chunk
  br label %again
again:
  %first = atomicrmw add ptr @next, i64 %chunk seq_cst
  %some = icmp slt i64 %first, %trips
  br i1 %some, label %run, label %leave
run:
  %end = add i64 %first, %chunk
  %short = icmp slt i64 %end, %trips
  %last = select i1 %short, i64 %end, i64 %trips
  call void %body(ptr %context, i64 %first, i64 %last, ptr %scratch)
  %count = sub i64 %last, %first
  %f = atomicrmw add ptr @finished, i64 %count seq_cst
  br label %again
leave:
  ret void
}}

define internal ptr @worker(ptr %start) nounwind {{
entry:
  %first = ptrtoint ptr %start to i64
  br label %wait
wait:
  %seen = phi i64 [ %first, %entry ], [ %generation, %done ]
  br label %spin
spin:
  %n = phi i64 [ 0, %wait ], [ %m, %idle ]
  %g = load atomic i64, ptr @generation seq_cst, align 8
  %news = icmp ne i64 %g, %seen
  br i1 %news, label %join, label %idle
idle:
  {pause}
  %m = add i64 %n, 1
  %on = icmp slt i64 %m, {spins}
  br i1 %on, label %spin, label %lock
lock:
  %l = call i32 @pthread_mutex_lock(ptr @mutex)
  %sl = atomicrmw add ptr @sleepers, i64 1 seq_cst
  br label %asleep
asleep:
  %h = load atomic i64, ptr @generation seq_cst, align 8
  %woken = icmp ne i64 %h, %seen
  br i1 %woken, label %unlock, label %doze
doze:
  %w = call i32 @pthread_cond_wait(ptr @wake, ptr @mutex)
  br label %asleep
unlock:
  %su = atomicrmw sub ptr @sleepers, i64 1 seq_cst
  %u = call i32 @pthread_mutex_unlock(ptr @mutex)
  br label %join
join:
  %generation = phi i64 [ %g, %spin ], [ %h, %unlock ]
  %a = atomicrmw add ptr @active, i64 1 seq_cst
  %is = load atomic i64, ptr @open seq_cst, align 8
  %opened = icmp ne i64 %is, 0
  br i1 %opened, label %ticket, label %done
ticket:
  %t = atomicrmw add ptr @joined, i64 1 seq_cst
  %most = load i64, ptr @limit
  %wanted = icmp slt i64 %t, %most
  br i1 %wanted, label %help, label %done
help:
  %bytes = load i64, ptr @bytes
  %scratch = call ptr @trnx_scratch(i64 %bytes)
  call void @claim(ptr %scratch)
  br label %done
done:
  %d = atomicrmw sub ptr @active, i64 1 seq_cst
  br label %wait
}}

define void @trnx_parallel(
    ptr %body, ptr %context, i64 %trips, i64 %bytes, ptr %scratch, i64 %limit
) nounwind {{
entry:
  %slot = alloca i64
  %enough = icmp sgt i64 %trips, 1
  br i1 %enough, label %acquire, label %alone
acquire:
  %pair = cmpxchg ptr @busy, i64 0, i64 1 seq_cst seq_cst
  %mine = extractvalue {{ i64, i1 }} %pair, 1
  br i1 %mine, label %settle, label %alone
settle:
  ; A worker leaving the last region needs a moment; one that lost its core is not waited for.
  %n = phi i64 [ 0, %acquire ], [ %m, %look ]
  %a = load atomic i64, ptr @active seq_cst, align 8
  %quiet = icmp eq i64 %a, 0
  br i1 %quiet, label %prepare, label %look
look:
  {pause}
  %m = add i64 %n, 1
  %patient = icmp slt i64 %m, 100
  br i1 %patient, label %settle, label %giveup
giveup:
  store atomic i64 0, ptr @busy seq_cst, align 8
  br label %alone
alone:
  call void %body(ptr %context, i64 0, i64 %trips, ptr %scratch)
  ret void
prepare:
  %helpers = sub i64 %limit, 1
  store ptr %body, ptr @body
  store ptr %context, ptr @context
  store i64 %trips, ptr @trips
  store i64 %bytes, ptr @bytes
  store i64 %helpers, ptr @limit
  %shares = mul i64 %limit, {chunks}
  %up = add i64 %trips, %shares
  %up1 = sub i64 %up, 1
  %share = sdiv i64 %up1, %shares
  store i64 %share, ptr @chunk
  store i64 0, ptr @next
  store i64 0, ptr @finished
  store i64 0, ptr @joined
  br label %recruit
recruit:
  %have = load i64, ptr @workers
  %few = icmp slt i64 %have, %helpers
  br i1 %few, label %create, label %publish
create:
  %now = load i64, ptr @generation
  %token = inttoptr i64 %now to ptr
  %e = call i32 @pthread_create(ptr %slot, ptr null, ptr @worker, ptr %token)
  %created = icmp eq i32 %e, 0
  br i1 %created, label %count, label %publish
count:
  %thread = load i64, ptr %slot
  %dt = call i32 @pthread_detach(i64 %thread)
  %more = add i64 %have, 1
  store i64 %more, ptr @workers
  br label %recruit
publish:
  store atomic i64 1, ptr @open seq_cst, align 8
  %g = atomicrmw add ptr @generation, i64 1 seq_cst
  %sleeping = load atomic i64, ptr @sleepers seq_cst, align 8
  %any = icmp ne i64 %sleeping, 0
  br i1 %any, label %rouse, label %work
rouse:
  %l = call i32 @pthread_mutex_lock(ptr @mutex)
  %b = call i32 @pthread_cond_broadcast(ptr @wake)
  %u = call i32 @pthread_mutex_unlock(ptr @mutex)
  br label %work
work:
  call void @claim(ptr %scratch)
  br label %begun
begun:
  %f = load atomic i64, ptr @finished seq_cst, align 8
  %all = icmp sge i64 %f, %trips
  br i1 %all, label %close, label %hold
hold:
  {pause}
  br label %begun
close:
  store atomic i64 0, ptr @open seq_cst, align 8
  store atomic i64 0, ptr @busy seq_cst, align 8
  ret void
}}
"""


def pool_text(cpu: Cpu) -> str:
    """The module's LLVM assembly for ``cpu``."""
    arch = cpu.triple.split("-", maxsplit=1)[0]
    arch = "aarch64" if arch == "arm64" else arch
    advice_declaration, advice = _ADVICE if "linux" in cpu.triple else ("", "")
    declare, pause = _PAUSE.get(arch, ("", "fence seq_cst"))
    return _TEXT.format(
        triple=cpu.triple,
        declare=declare,
        advice_declaration=advice_declaration,
        advice=advice,
        huge=_HUGE,
        pause=pause,
        spins=_SPINS,
        chunks=_CHUNKS_PER_THREAD,
    )

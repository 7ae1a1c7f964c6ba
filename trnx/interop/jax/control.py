"""Rules of primitives with bodies: calls, loops and branches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.extend.core

from trnx.control import scan, switch, while_loop
from trnx.core import name_scope
from trnx.interop.jax.registry import Site, Value, rule
from trnx.transforms import checkpoint


@rule("jit", "pjit", "closed_call", "core_closed_call")
def _jit(site: Site, *operands: Value, **params: Any) -> list[Value]:
    """A call runs in place: the compiler would inline it anyway."""
    body = params.get("jaxpr", params.get("call_jaxpr"))
    with name_scope(str(params.get("name", site.primitive))):
        return site.run(body, operands)


@rule("core_call")
def _call(site: Site, *operands: Value, call_jaxpr: Any, **_: Any) -> list[Value]:
    return site.run(closed(call_jaxpr), operands)


def closed(jaxpr: Any) -> Any:
    """A closed jaxpr of one without constants."""
    return jaxpr if hasattr(jaxpr, "consts") else jax.extend.core.ClosedJaxpr(jaxpr, ())


@rule("checkpoint", "remat", "remat2")
def _remat(
    site: Site, *operands: Value, jaxpr: Any, prevent_cse: Any, policy: Any, **_: Any
) -> list[Value]:
    """`policy` names what JAX may keep in memory, not what is computed; trnx keeps nothing."""
    body = closed(jaxpr)
    function = checkpoint(lambda *args: site.run(body, args), prevent_cse=bool(prevent_cse))
    return list(function(*operands))


@rule("scan")
def _scan(
    site: Site,
    *operands: Value,
    jaxpr: Any,
    length: int,
    reverse: bool,
    num_consts: int,
    num_carry: int,
    unroll: int,
    **_: Any,
) -> list[Value]:
    constants = operands[:num_consts]
    init = list(operands[num_consts : num_consts + num_carry])
    xs = list(operands[num_consts + num_carry :])

    def step(carry: Sequence[Value], x: Sequence[Value]) -> tuple[list[Value], list[Value]]:
        results = site.run(jaxpr, [*constants, *carry, *x])
        return results[:num_carry], results[num_carry:]

    carry, ys = scan(step, init, xs, length=length, reverse=reverse, unroll=unroll)
    return [*carry, *ys]


@rule("while")
def _while(
    site: Site,
    *operands: Value,
    cond_jaxpr: Any,
    cond_nconsts: int,
    body_jaxpr: Any,
    body_nconsts: int,
) -> list[Value]:
    for_cond = operands[:cond_nconsts]
    for_body = operands[cond_nconsts : cond_nconsts + body_nconsts]
    init = list(operands[cond_nconsts + body_nconsts :])

    def go_on(carry: Sequence[Value]) -> Value:
        (flag,) = site.run(cond_jaxpr, [*for_cond, *carry])
        return flag

    def body(carry: Sequence[Value]) -> list[Value]:
        return site.run(body_jaxpr, [*for_body, *carry])

    return list(while_loop(go_on, body, init))


@rule("cond")
def _cond(site: Site, index: Value, *operands: Value, branches: Sequence[Any], **_: Any) -> Any:
    def branch(jaxpr: Any) -> Any:
        return lambda *args: site.run(jaxpr, args)

    return list(switch(index, [branch(jaxpr) for jaxpr in branches], *operands))

"""Small vector and thread instructions that numba does not offer itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from pipeline.engine.compiled.tile import LANES, address

_I32 = ir.IntType(32)
_I64 = ir.IntType(64)
_F32 = ir.FloatType()
_VECTOR = ir.VectorType(_F32, LANES)


def _reduction(combine: Callable[[ir.IRBuilder, Any, Any], Any], start: float, join: Callable[..., Any]) -> Any:
    """An intrinsic over count (a multiple of LANES) floats of a flat array: lane by lane, then over the lanes.

    The order is fixed, whatever surrounds the call: numba's own reductions are vectorised as LLVM sees fit.
    """

    @intrinsic
    def reduce(typing: Any, array: Any, first: Any, count: Any) -> Any:
        signature = types.float32(array, first, count)

        def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Sequence[Any]) -> Any:
            at, _ = address(context, builder, array, args[0], args[1])
            entry, loop, after = builder.block, builder.append_basic_block("lanes"), builder.append_basic_block("join")
            builder.branch(loop)
            builder.position_at_end(loop)
            i = builder.phi(_I64)
            i.add_incoming(ir.Constant(_I64, 0), entry)
            total = builder.phi(_VECTOR)
            total.add_incoming(ir.Constant(_VECTOR, [ir.Constant(_F32, start)] * LANES), entry)
            place = builder.add(at, builder.mul(i, ir.Constant(_I64, 4)))
            values = builder.load(builder.inttoptr(place, _VECTOR.as_pointer()), align=4)
            new = combine(builder, total, values)
            following = builder.add(i, ir.Constant(_I64, LANES))
            i.add_incoming(following, loop)
            total.add_incoming(new, loop)
            builder.cbranch(builder.icmp_signed("<", following, args[2]), loop, after)
            builder.position_at_end(after)
            result = builder.extract_element(new, ir.Constant(_I32, 0))
            for lane in range(1, LANES):
                result = join(builder, result, builder.extract_element(new, ir.Constant(_I32, lane)))
            return result

        return signature, generate

    return reduce


def _larger(builder: ir.IRBuilder, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", b, a), b, a)


def _add(builder: ir.IRBuilder, a: Any, b: Any) -> Any:
    return builder.fadd(a, b)


sum_of_squares = _reduction(lambda b, total, x: b.fadd(total, b.fmul(x, x)), 0.0, _add)
total = _reduction(_add, 0.0, _add)
largest = _reduction(_larger, float("-inf"), _larger)


@intrinsic
def float_from_bits(typing: Any, bits: Any) -> Any:
    """The float32 whose bits an int32 holds."""
    signature = types.float32(types.int32)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Sequence[Any]) -> Any:
        return builder.bitcast(args[0], _F32)

    return signature, generate


@intrinsic
def half_to_float(typing: Any, bits: Any) -> Any:
    """The float32 of an FP16 number's bits (uint16); a float32 stays."""
    signature = types.float32(bits)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Sequence[Any]) -> Any:
        if bits == types.float32:
            return args[0]
        return builder.fpext(builder.bitcast(args[0], ir.HalfType()), _F32)

    return signature, generate


@intrinsic
def fetch_add(typing: Any, counters: Any, index: Any) -> Any:
    """Add one to counters[index] (int64) atomically; returns what it was."""
    signature = types.int64(counters, index)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Sequence[Any]) -> Any:
        at, _ = address(context, builder, counters, args[0], args[1])
        return builder.atomic_rmw("add", builder.inttoptr(at, _I64.as_pointer()), ir.Constant(_I64, 1), "seq_cst")

    return signature, generate


@intrinsic
def atomic_load(typing: Any, counters: Any, index: Any) -> Any:
    """counters[index] (int64) as other threads have left it."""
    signature = types.int64(counters, index)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Sequence[Any]) -> Any:
        at, _ = address(context, builder, counters, args[0], args[1])
        return builder.load_atomic(builder.inttoptr(at, _I64.as_pointer()), "acquire", 8)

    return signature, generate


@intrinsic
def yield_core(typing: Any) -> Any:
    """Let another thread have this core (POSIX sched_yield)."""
    signature = types.void()

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Sequence[Any]) -> Any:
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_I32, []), "sched_yield")
        builder.call(function, [])
        return context.get_dummy_value()

    return signature, generate

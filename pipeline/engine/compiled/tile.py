"""The register tile of a matrix product, written as LLVM instructions.

A tile multiplies a few rows of x by a few *panels* of weights: a panel holds 16 outputs side by side for each
input, so that one vector load brings the next weight of 16 outputs, and every sum stays in a register. Sums are
taken input by input, in one chain per output: the bits of a row do not depend on how many rows or panels are
computed with it, nor on who computes them. FP16 weights are widened as they are loaded; arithmetic is FP32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16
"""Outputs of a panel: the floats of one AVX-512 register, two of AVX2, four of NEON."""

_WIDE_REGISTERS = bool(binding.get_host_cpu_features().get("avx512f"))
MAX_ROWS = 12 if _WIDE_REGISTERS else 6
"""Rows of the largest tile."""

_SUMS = 24 if _WIDE_REGISTERS else 6  # vectors of sums that stay in registers
# A line holds two steps of a panel; this far ahead it arrives in time, and within the panel's next pages.
_PREFETCH_BYTES = 4096

WIDEST = (0, *(next(p for p in (4, 2, 1) if p * rows <= _SUMS) for rows in range(1, MAX_ROWS + 1)))
"""Panels of the tile to take, by rows: more streams from memory at once read it faster."""

_I8 = ir.IntType(8)
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)
_F32 = ir.FloatType()
_VECTOR = ir.VectorType(_F32, LANES)
_HALVES = ir.VectorType(ir.HalfType(), LANES)


def _number(value: int) -> ir.Constant:
    return ir.Constant(_I64, value)


def address(context: Any, builder: ir.IRBuilder, kind: types.Array, array: Any, offset: Any) -> tuple[Any, int]:
    """Address of element `offset` of a one-dimensional array as an integer, and the size of an element."""
    size = kind.dtype.bitwidth // 8
    data = builder.ptrtoint(context.make_array(kind)(context, builder, array).data, _I64)
    return builder.add(data, builder.mul(offset, _number(size))), size


def splat(builder: ir.IRBuilder, scalar: Any) -> Any:
    """A vector of LANES copies."""
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(_I32, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES))


@intrinsic
def tile(typing: Any, rows: Any, panels: Any, keep: Any, x: Any, w: Any, depth: Any, out: Any) -> Any:
    """out[r, p * 16 + j] (+)= sum over k of x[r, k] * w[p, k, j]. Arrays are flat; offsets count elements.

    Args:
        rows: 1 .. MAX_ROWS.
        panels: 1 .. WIDEST[rows].
        keep: add to what `out` holds.
        x: (float32 array, offset, elements from row to row).
        w: (uint16 array of FP16 bits or float32 array, offset, elements from panel to panel, and from k to k + 1).
        depth: k runs from 0 to depth - 1; at least 1.
        out: (float32 array, offset, elements from row to row).
    """
    signature = types.void(rows, panels, keep, x, w, depth, out)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Sequence[Any]) -> Any:
        row_count, panel_count, add, x_value, w_value, steps, out_value = args
        x_array, x_first, x_stride = cgutils.unpack_tuple(builder, x_value)
        w_array, w_first, w_stride, w_step = cgutils.unpack_tuple(builder, w_value)
        out_array, out_first, out_stride = cgutils.unpack_tuple(builder, out_value)
        x_at, _ = address(context, builder, x.types[0], x_array, x_first)
        w_at, size = address(context, builder, w.types[0], w_array, w_first)
        out_at, _ = address(context, builder, out.types[0], out_array, out_first)
        done = builder.append_basic_block("tile.done")
        shape = builder.add(builder.mul(row_count, _number(8)), panel_count)
        switch = builder.switch(shape, done)
        for r in range(1, MAX_ROWS + 1):
            for p in range(1, WIDEST[r] + 1):
                case = builder.append_basic_block(f"tile.{r}x{p}")
                switch.add_case(_number(8 * r + p), case)
                builder.position_at_end(case)
                operands = (x_at, x_stride, w_at, w_stride, w_step, steps, out_at, out_stride)
                _emit_tile(builder, r, p, size, add, operands)
                builder.branch(done)
        builder.position_at_end(done)
        return context.get_dummy_value()

    return signature, generate


def _emit_tile(builder: ir.IRBuilder, rows: int, panels: int, size: int, keep: Any, operands: tuple[Any, ...]) -> None:
    """One loop over k with rows x panels sums in registers."""
    x_at, x_stride, w_at, w_stride, w_step, depth, out_at, out_stride = operands
    fma = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(_VECTOR, [_VECTOR] * 3), f"llvm.fma.v{LANES}f32"
    )
    prefetch = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(ir.VoidType(), [_I8.as_pointer(), _I32, _I32, _I32]), "llvm.prefetch.p0i8"
    )
    cells = [(r, p) for r in range(rows) for p in range(panels)]
    x_rows = [builder.add(x_at, builder.mul(x_stride, _number(4 * r))) for r in range(rows)]
    w_panels = [builder.add(w_at, builder.mul(w_stride, _number(size * p))) for p in range(panels)]
    targets = {}
    for r, p in cells:
        row = builder.add(out_at, builder.mul(out_stride, _number(4 * r)))
        targets[r, p] = builder.inttoptr(builder.add(row, _number(4 * LANES * p)), _VECTOR.as_pointer())
    entry = builder.block
    load = builder.append_basic_block("keep")
    loop = builder.append_basic_block("k")
    after = builder.append_basic_block("store")
    builder.cbranch(builder.trunc(keep, ir.IntType(1)), load, loop)
    builder.position_at_end(load)
    held = {cell: builder.load(targets[cell], align=4) for cell in cells}
    builder.branch(loop)

    builder.position_at_end(loop)
    k = builder.phi(_I64)
    k.add_incoming(_number(0), entry)
    k.add_incoming(_number(0), load)
    sums = {cell: builder.phi(_VECTOR) for cell in cells}
    for cell in cells:
        sums[cell].add_incoming(ir.Constant(_VECTOR, [ir.Constant(_F32, 0.0)] * LANES), entry)
        sums[cell].add_incoming(held[cell], load)
    moved = builder.mul(k, builder.mul(w_step, _number(size)))
    weights = []
    for at in w_panels:
        place = builder.add(at, moved)
        if size == 2:
            ahead = builder.inttoptr(builder.add(place, _number(_PREFETCH_BYTES)), _I8.as_pointer())
            builder.call(prefetch, [ahead, ir.Constant(_I32, 0), ir.Constant(_I32, 3), ir.Constant(_I32, 1)])
            halves = builder.load(builder.inttoptr(place, _HALVES.as_pointer()), align=2)
            weights.append(builder.fpext(halves, _VECTOR))
        else:
            weights.append(builder.load(builder.inttoptr(place, _VECTOR.as_pointer()), align=4))
    new = {}
    for r in range(rows):
        place = builder.add(x_rows[r], builder.mul(k, _number(4)))
        factor = splat(builder, builder.load(builder.inttoptr(place, _F32.as_pointer())))
        for p in range(panels):
            new[r, p] = builder.call(fma, [factor, weights[p], sums[r, p]])
    next_k = builder.add(k, _number(1))
    k.add_incoming(next_k, loop)
    for cell in cells:
        sums[cell].add_incoming(new[cell], loop)
    builder.cbranch(builder.icmp_signed("<", next_k, depth), loop, after)
    builder.position_at_end(after)
    for cell in cells:
        builder.store(new[cell], targets[cell], align=4)

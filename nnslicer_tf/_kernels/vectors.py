"""Vectors of 16 values and pointers to them, for code compiled by Numba.

Numba vectorises only the loops that LLVM recognises, so the exclusion's inner loops use explicit
vectors. LLVM splits them if the processor's registers are shorter, and compresses a vector in one
instruction if the processor can.

Numba counts references of every array argument, even of an inlined function, which costs more than
the sum of 16 values. So functions take pointers, which check no index and keep nothing alive.

Types: `floats` (float32), `doubles` (float64), `integers` (int32), `mask` (bool), with the
operators `+ - *`, comparisons, and `& |` for masks.
"""

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.datamodel import models
from numba.core.typing.templates import ConcreteTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, register_model

LANES = 16

_INDEX = ir.IntType(32)


class _Vector(types.Type):
    def __init__(self, name: str, element: ir.Type) -> None:
        self.llvm = ir.VectorType(element, LANES)
        super().__init__(name)


@register_model(_Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, vector: _Vector) -> None:
        super().__init__(manager, vector, vector.llvm)


floats = _Vector("floats", ir.FloatType())
doubles = _Vector("doubles", ir.DoubleType())
integers = _Vector("integers", ir.IntType(32))
mask = _Vector("mask", ir.IntType(1))

_VECTOR = {types.float32: floats, types.float64: doubles, types.int32: integers}
_SCALAR = {vector: scalar for scalar, vector in _VECTOR.items()}
_COMPARISONS = {
    operator.ge: ">=",
    operator.gt: ">",
    operator.le: "<=",
    operator.lt: "<",
    operator.eq: "==",
}


def _code(emit: Callable) -> Callable:
    """Return the code of an intrinsic, given a function of the builder and the arguments."""
    return lambda context, builder, sig, args: emit(builder, *args)


def _define(symbol: Callable, operand: _Vector, result: _Vector, emit: Callable) -> None:
    cases = [signature(result, operand, operand)]
    infer_global(symbol)(type("_Typing", (ConcreteTemplate,), {"cases": cases}))
    lower_builtin(symbol, operand, operand)(_code(emit))


def _define_operators() -> None:
    for vector in (floats, doubles):
        _define(operator.add, vector, vector, ir.IRBuilder.fadd)
        _define(operator.sub, vector, vector, ir.IRBuilder.fsub)
        _define(operator.mul, vector, vector, ir.IRBuilder.fmul)
        for symbol, name in _COMPARISONS.items():
            _define(symbol, vector, mask, lambda b, x, y, n=name: b.fcmp_ordered(n, x, y))
    _define(operator.add, integers, integers, ir.IRBuilder.add)
    _define(operator.sub, integers, integers, ir.IRBuilder.sub)
    for symbol, name in _COMPARISONS.items():
        _define(symbol, integers, mask, lambda b, x, y, n=name: b.icmp_signed(n, x, y))
    _define(operator.and_, mask, mask, ir.IRBuilder.and_)
    _define(operator.or_, mask, mask, ir.IRBuilder.or_)


_define_operators()


@intrinsic
def pointer(typing, array):
    """Return a pointer to the first value of a C-ordered array."""
    return (
        types.CPointer(array.dtype)(array),
        lambda context, builder, sig, args: (
            context.make_array(sig.args[0])(context, builder, args[0]).data
        ),
    )


@intrinsic
def at(typing, place, index):
    """Return the pointer to the value at an index."""
    return place(place, types.intp), _code(_address)


@intrinsic
def read(typing, place, index):
    """Return the value at an index."""
    return place.dtype(place, types.intp), _code(lambda b, p, i: b.load(_address(b, p, i)))


@intrinsic
def write(typing, place, index, value):
    """Set the value at an index."""

    def emit(context, builder, sig, args):
        builder.store(args[2], _address(builder, *args[:2]))
        return context.get_dummy_value()

    return types.none(place, types.intp, place.dtype), emit


@intrinsic
def load(typing, place, index):
    """Return the 16 values starting at an index."""
    result = _VECTOR[place.dtype]
    whole = result.llvm.as_pointer()
    emit = _code(lambda b, p, i: b.load(b.bitcast(_address(b, p, i), whole), align=4))
    return result(place, types.intp), emit


@intrinsic
def store(typing, place, index, vector):
    """Set the 16 values starting at an index."""

    def emit(context, builder, sig, args):
        start = builder.bitcast(_address(builder, *args[:2]), vector.llvm.as_pointer())
        builder.store(args[2], start, align=4)
        return context.get_dummy_value()

    return types.none(place, types.intp, vector), emit


@intrinsic
def splat(typing, value):
    """Return a vector with 16 copies of a value."""
    result = _VECTOR[value]

    def emit(builder, x):
        undefined = ir.Constant(result.llvm, ir.Undefined)
        first = builder.insert_element(undefined, x, ir.Constant(_INDEX, 0))
        return _shuffle(builder, first, first, [0] * LANES)

    return result(value), _code(emit)


@intrinsic
def lanes(typing):
    """Return 0, 1, ..., 15."""
    return integers(), _code(lambda b: ir.Constant(integers.llvm, list(range(LANES))))


@intrinsic
def magnitude(typing, vector):
    """Return |x| for floats or doubles."""
    name = f"llvm.fabs.{_suffix(vector)}"
    return vector(vector), _code(lambda b, x: _call(b, name, vector.llvm, [x]))


@intrinsic
def widen(typing, vector):
    """Convert floats to doubles."""
    return doubles(vector), _code(lambda b, x: b.fpext(x, doubles.llvm))


@intrinsic
def bits(typing, value):
    """Return the bits of float32 as integers; those of magnitudes have the magnitudes' order."""
    result, llvm = (integers, integers.llvm) if value is floats else (types.int32, ir.IntType(32))
    return result(value), _code(lambda b, x: b.bitcast(x, llvm))


@intrinsic
def float_of_bits(typing, value):
    """Return the float32 that has the bits of an integer."""
    return types.float32(types.int32), _code(lambda b, x: b.bitcast(x, ir.FloatType()))


@intrinsic
def where(typing, condition, x, y):
    """Return x where a mask is set, otherwise y."""
    return x(condition, x, y), _code(ir.IRBuilder.select)


@intrinsic
def larger(typing, x, y):
    """Return the elementwise maximum of two integer vectors."""
    return x(x, y), _code(_larger)


@intrinsic
def compress(typing, vector, condition):
    """Move the values where a mask is set to the front, in order; the others are undefined."""
    name = f"llvm.experimental.vector.compress.{_suffix(vector)}"
    rest = ir.Constant(vector.llvm, ir.Undefined)
    emit = _code(lambda b, x, mask: _call(b, name, vector.llvm, [x, mask, rest]))
    return vector(vector, condition), emit


@intrinsic
def count(typing, condition):
    """Return the number of lanes of a mask that are set."""

    def emit(builder, lanes):
        word = builder.bitcast(lanes, ir.IntType(LANES))
        return builder.zext(builder.ctpop(word), ir.IntType(64))

    return types.int64(condition), _code(emit)


@intrinsic
def last(typing, condition):
    """Return the last lane of a mask that is set, -1 if none is."""

    def emit(builder, lanes):
        word = builder.bitcast(lanes, ir.IntType(LANES))
        zeros = builder.zext(builder.ctlz(word, ir.Constant(ir.IntType(1), 0)), ir.IntType(64))
        return builder.sub(ir.Constant(ir.IntType(64), LANES - 1), zeros)

    return types.int64(condition), _code(emit)


@intrinsic
def lane_sum(typing, vector):
    """Return the sum of 16 floats or doubles, added in a tree."""
    return _SCALAR[vector](vector), _code(lambda b, x: _fold(b, x, b.fadd))


@intrinsic
def lane_max(typing, vector):
    """Return the largest of 16 integers."""
    return _SCALAR[vector](vector), _code(lambda b, x: _fold(b, x, partial(_larger, b)))


def _address(builder: ir.IRBuilder, place: Any, index: Any) -> Any:
    return builder.gep(place, [index])


def _larger(builder: ir.IRBuilder, x: Any, y: Any) -> Any:
    return builder.select(builder.icmp_signed(">", x, y), x, y)


def _fold(builder: ir.IRBuilder, vector: Any, combine: Callable) -> Any:
    """Combine all lanes in a tree."""
    width = LANES
    while width > 1:
        width //= 2
        halves = [list(range(first, first + width)) for first in (0, width)]
        vector = combine(*(_shuffle(builder, vector, vector, half) for half in halves))
    return builder.extract_element(vector, ir.Constant(_INDEX, 0))


def _shuffle(builder: ir.IRBuilder, x: Any, y: Any, index: Sequence[int]) -> Any:
    return builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(_INDEX, len(index)), index))


def _call(builder: ir.IRBuilder, name: str, result: ir.Type, args: Sequence[Any]) -> Any:
    kind = ir.FunctionType(result, [argument.type for argument in args])
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    return builder.call(function, args)


def _suffix(vector: _Vector) -> str:
    return f"v{LANES}{'f32' if vector is floats else 'f64'}"

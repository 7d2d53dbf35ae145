"""Elementwise functions: generic points, and the awkward ones."""

import torch
import torch.nn.functional as F

from .registry import INF, NAN, bools, case, given, ints, rand

EDGES = [-INF, -1000.0, -50.0, -1.0, -1e-8, -0.0, 0.0, 1e-8, 1.0, 50.0, 1000.0, INF, NAN]

UNARY = [
    ("neg", torch.neg, -2, 2),
    ("abs", torch.abs, -2, 2),
    ("sign", torch.sign, -2, 2),
    ("recip", torch.reciprocal, 0.25, 3),
    ("exp", torch.exp, -3, 3),
    ("exp2", torch.exp2, -3, 3),
    ("expm1", torch.expm1, -3, 3),
    ("log", torch.log, 0.1, 4),
    ("log2", torch.log2, 0.1, 4),
    ("log10", torch.log10, 0.1, 4),
    ("log1p", torch.log1p, -0.7, 4),
    ("sqrt", torch.sqrt, 0.1, 4),
    ("rsqrt", torch.rsqrt, 0.1, 4),
    ("square", torch.square, -2, 2),
    ("floor", torch.floor, -3, 3),
    ("ceil", torch.ceil, -3, 3),
    ("round", torch.round, -3, 3),
    ("trunc", torch.trunc, -3, 3),
    ("frac", torch.frac, -3, 3),
    ("sin", torch.sin, -9, 9),
    ("cos", torch.cos, -9, 9),
    ("tan", torch.tan, -1.2, 1.2),
    ("asin", torch.asin, -0.9, 0.9),
    ("acos", torch.acos, -0.9, 0.9),
    ("atan", torch.atan, -3, 3),
    ("sinh", torch.sinh, -3, 3),
    ("cosh", torch.cosh, -3, 3),
    ("tanh", torch.tanh, -3, 3),
    ("asinh", torch.asinh, -3, 3),
    ("acosh", torch.acosh, 1.1, 4),
    ("atanh", torch.atanh, -0.9, 0.9),
    ("erf", torch.erf, -2, 2),
    ("erfc", torch.erfc, -2, 2),
    ("sigmoid", torch.sigmoid, -4, 4),
    ("softplus", F.softplus, -4, 4),
    ("log_sigmoid", F.logsigmoid, -4, 4),
    ("relu", torch.relu, -2, 2),
    ("relu6", F.relu6, -3, 9),
    ("leaky_relu", lambda x: F.leaky_relu(x, 0.1), -2, 2),
    ("elu", lambda x: F.elu(x, 0.7), -2, 2),
    ("selu", F.selu, -2, 2),
    ("celu", lambda x: F.celu(x, 0.7), -2, 2),
    ("gelu", F.gelu, -3, 3),
    ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), -3, 3),
    ("silu", F.silu, -4, 4),
    ("mish", F.mish, -4, 4),
    ("hardtanh", lambda x: F.hardtanh(x, -1.5, 0.5), -3, 3),
    ("hardsigmoid", F.hardsigmoid, -5, 5),
    ("hardswish", F.hardswish, -5, 5),
    ("softsign", F.softsign, -3, 3),
]
# A sign keeps NaN here, as in NumPy; in PyTorch it is 0, and with it the gradient of abs. Of these
# others PyTorch has some number for the gradient at NaN, where we have NaN or let it pass.
LOOSE_AT_NAN = ("abs", "sign", "elu", "selu", "celu", "hardsigmoid", "hardswish")


def edges(name):
    if name == "acosh":  # outside its domain the gradient's sign is anyone's
        return [x for x in EDGES if x != -1.0]
    return EDGES[:-1] if name in LOOSE_AT_NAN else EDGES


for name, f, lo, hi in UNARY:
    case(name, f, rand(2, 7, lo=lo, hi=hi))
    case(f"{name} edges", f, given(edges(name)))

# Second derivatives of what has one.
for name in ("exp", "log", "sqrt", "tanh", "sigmoid", "erf", "gelu", "silu", "softplus", "atan", "sin"):
    f, lo, hi = next(row[1:] for row in UNARY if row[0] == name)
    case(f"{name} twice", f, rand(5, lo=lo, hi=hi), twice=True)

case("relu6 limits", F.relu6, given([-1.0, 0.0, 3.0, 6.0, 7.0]))
case("hardtanh limits", lambda x: F.hardtanh(x, -1.5, 0.5), given([-2.0, -1.5, 0.0, 0.5, 1.0]))
case("hardsigmoid limits", F.hardsigmoid, given([-3.0, 0.0, 3.0]))
case("hardswish limits", F.hardswish, given([-3.0, 0.0, 3.0]))
case("round halves", torch.round, given([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5]))
case("asin limits", torch.asin, given([-1.0, 1.0, 1.5]))
case("acosh limits", torch.acosh, given([1.0, 0.5]))
case("atanh limits", torch.atanh, given([-1.0, 1.0, 1.5]))
case("log1p limits", torch.log1p, given([-1.0, -2.0, 1e-12]))

case("is_nan", torch.isnan, given(EDGES), grad=False)
case("is_inf", torch.isinf, given(EDGES), grad=False)
case("is_finite", torch.isfinite, given(EDGES), grad=False)
case("not bool", torch.logical_not, bools(5), grad=False)
case("not int", torch.bitwise_not, ints(5, lo=-9, hi=9), grad=False)
case("abs int", torch.abs, ints(7, lo=-9, hi=9), grad=False)
case("sign int", torch.sign, given([-4, 0, 9], dtype=torch.int64), grad=False)
case("neg int", torch.neg, ints(7, lo=-9, hi=9), grad=False)

BINARY = [
    ("add", torch.add, -2, 2),
    ("sub", torch.sub, -2, 2),
    ("mul", torch.mul, -2, 2),
    ("div", torch.div, 0.25, 3),
    ("floor_div", torch.floor_divide, 0.25, 3),
    ("remainder", torch.remainder, 0.25, 3),
    ("fmod", torch.fmod, 0.25, 3),
    ("pow", torch.pow, 0.25, 3),
    ("atan2", torch.atan2, -2, 2),
    ("maximum", torch.maximum, -2, 2),
    ("minimum", torch.minimum, -2, 2),
    ("hypot", torch.hypot, -2, 2),
    ("copysign", torch.copysign, -2, 2),
    ("xlogy", torch.xlogy, 0.25, 3),
]
for name, f, lo, hi in BINARY:
    grad = name != "floor_div"
    case(name, f, rand(3, 5, lo=lo, hi=hi), rand(3, 5, lo=lo, hi=hi), grad=grad)
    case(f"{name} broadcast", f, rand(2, 1, 3, lo=lo, hi=hi), rand(4, 1, lo=lo, hi=hi), grad=grad)
for name in ("div", "pow", "atan2", "hypot", "xlogy", "mul"):
    f, lo, hi = next(row[1:] for row in BINARY if row[0] == name)
    case(f"{name} twice", f, rand(4, lo=lo, hi=hi), rand(4, lo=lo, hi=hi), twice=True)

case("add scalar", lambda x: x + 2.5, rand(5))
case("sub scalar first", lambda x: 2.5 - x, rand(5))
case("div scalar first", lambda x: 2.5 / x, rand(5, lo=0.3))
case("pow scalar first", lambda x: 2.5**x, rand(5))
case("pow 2", lambda x: x**2, rand(5))
case("pow 3", lambda x: x**3, rand(5))
case("pow half", lambda x: x**0.5, rand(5, lo=0.2))
case("pow minus 2", lambda x: x**-2, rand(5, lo=0.2))

SIGNS = [7.5, -7.5, 7.5, -7.5, 6.0, -6.0, 0.0, 1.0]
BY = [2.0, 2.0, -2.0, -2.0, 3.0, -3.0, 5.0, INF]
case("remainder signs", torch.remainder, given(SIGNS), given(BY), grad=False)
case("fmod signs", torch.fmod, given(SIGNS), given(BY), grad=False)
case("floor_div signs", torch.floor_divide, given(SIGNS[:7]), given(BY[:7]), grad=False)
case("remainder by 0", torch.remainder, given([3.0, -3.0, 0.0]), given([0.0, 0.0, 0.0]), grad=False)
case("fmod by 0", torch.fmod, given([3.0, -3.0, 0.0]), given([0.0, 0.0, 0.0]), grad=False)
case("div by 0", torch.div, given([3.0, -3.0, 0.0, INF]), given([0.0, 0.0, 0.0, INF]))
INTS, BY_INTS = [7, -7, 7, -7, 6, -6, 0, 1], [2, 2, -2, -2, 3, -3, 5, 9]
for name, f in (("remainder", torch.remainder), ("fmod", torch.fmod), ("floor_div", torch.floor_divide)):
    case(f"{name} int", f, given(INTS, dtype=torch.int64), given(BY_INTS, dtype=torch.int64), grad=False)

POINTS = [0.0, 1.0, -1.0, 2.0, -2.0, 0.5, INF, NAN]
GRID_A = [a for a in POINTS for _ in POINTS]
GRID_B = [b for _ in POINTS for b in POINTS]
case("pow grid", torch.pow, given(GRID_A), given(GRID_B), grad=False)
case("pow negative base", torch.pow, given([-2.0, -2.0, -3.0, -0.5]), given([2.0, 3.0, -1.0, 0.0]), grad=False)
case("pow base gradient", lambda x: torch.stack([x**0, x**1, x**2, x**3]), given([0.0, -2.0, 1.5]))
case("pow exponent gradient", lambda e: torch.pow(torch.tensor([0.0, 2.0], dtype=e.dtype), e), given([2.0, 3.0]))
case("atan2 grid", torch.atan2, given(GRID_A), given(GRID_B), grad=False)
case("hypot grid", torch.hypot, given(GRID_A), given(GRID_B), grad=False)
case("maximum grid", torch.maximum, given(GRID_A), given(GRID_B), grad=False)
case("minimum grid", torch.minimum, given(GRID_A), given(GRID_B), grad=False)
# Beside a NaN PyTorch gives both operands the whole gradient; here only the chosen one takes it.
NUMBERS = [(a, b) for a, b in zip(GRID_A, GRID_B) if a == a and b == b]
case("maximum ties", torch.maximum, given([a for a, _ in NUMBERS]), given([b for _, b in NUMBERS]))
case("minimum ties", torch.minimum, given([a for a, _ in NUMBERS]), given([b for _, b in NUMBERS]))
case("xlogy grid", torch.xlogy, given(GRID_A), given(GRID_B), grad=False)
case("copysign grid", torch.copysign, given(GRID_A), given([-0.0 if b == 0.0 else b for b in GRID_B]), grad=False)
case("xlogy at 0", torch.xlogy, given([0.0, 0.0, 1.0]), given([0.0, 2.0, 0.5]), grad=False)

for name, f in (
    ("eq", torch.eq), ("ne", torch.ne), ("lt", torch.lt), ("le", torch.le), ("gt", torch.gt), ("ge", torch.ge),
):  # fmt: skip
    case(f"{name} grid", f, given(GRID_A), given(GRID_B), grad=False)
    case(f"{name} int", f, ints(9, lo=-2, hi=2), ints(9, lo=-2, hi=2), grad=False)

for name, f, g in (
    ("and", torch.logical_and, torch.bitwise_and),
    ("or", torch.logical_or, torch.bitwise_or),
    ("xor", torch.logical_xor, torch.bitwise_xor),
):
    case(f"{name} bool", f, bools(9), bools(9), grad=False)
    case(f"{name} int", g, ints(9, lo=-99, hi=99), ints(9, lo=-99, hi=99), grad=False)
case("shl", lambda a, b: torch.bitwise_left_shift(a.int(), b.int()), ints(9, lo=-99, hi=99), ints(9, lo=0, hi=31), grad=False)
case("shr", lambda a, b: torch.bitwise_right_shift(a.int(), b.int()), ints(9, lo=-9999, hi=9999), ints(9, lo=0, hi=31), grad=False)
case("logical_and floats", torch.logical_and, given([0.0, 2.0, -1.0, NAN]), given([3.0, 0.0, 5.0, 1.0]), grad=False)
case("logical_or floats", torch.logical_or, given([0.0, 2.0, 0.0, NAN]), given([0.0, 0.0, 5.0, 0.0]), grad=False)
case("logical_xor floats", torch.logical_xor, given([0.0, 2.0, -1.0, NAN]), given([0.0, 0.0, 5.0, 1.0]), grad=False)
case("logical_not floats", torch.logical_not, given([0.0, -0.0, 2.0, NAN]), grad=False)

case("lerp", torch.lerp, rand(3, 5), rand(3, 5), rand(5, lo=0, hi=1))
case("lerp number", lambda a, b: torch.lerp(a, b, 0.3), rand(3, 5), rand(3, 5))
case("addcmul", lambda a, b, c: torch.addcmul(a, b, c, value=0.5), rand(3, 5), rand(3, 5), rand(5))
case("addcdiv", lambda a, b, c: torch.addcdiv(a, b, c, value=0.5), rand(3, 5), rand(3, 5), rand(5, lo=0.5, hi=2))

# Selection.
case("select", torch.where, bools(3, 5), rand(3, 5), rand(3, 5))
case("select broadcast", torch.where, bools(3, 1), rand(5), rand(3, 5))
case("select nan", torch.where, given([True, False, True, False], dtype=torch.bool), given([1.0, NAN, INF, 2.0]), given([NAN, 3.0, 4.0, -INF]))
case("masked_fill", lambda x, m: x.masked_fill(m, 3.5), rand(3, 5), bools(3, 5))
case("masked_fill broadcast", lambda x, m: x.masked_fill(m, -INF), rand(3, 5), bools(5))
case("masked_fill inf", lambda x, m: x.masked_fill(m, 10.0), given([-INF, -INF, NAN]), given([True, False, True], dtype=torch.bool))
case("clamp", lambda x: x.clamp(-0.75, 1.25), rand(3, 5))
case("clamp limits", lambda x: x.clamp(-2.5, 1.5), given([-3.0, -2.5, 0.0, 1.5, 2.0, INF, -INF]))
# To a NaN the gradient passes here, as through relu; PyTorch gives 0 in clamp alone.
case("clamp nan", lambda x: x.clamp(-2.5, 1.5), given([NAN, 1.0]), grad=False)
case("clamp_min", lambda x: x.clamp(min=0.5), given([-3.0, 0.5, 1.5, INF, -INF]))
case("clamp_max", lambda x: x.clamp(max=0.5), given([-3.0, 0.5, 1.5, INF, -INF]))
case("clamp tensors", torch.clamp, rand(3, 5), rand(5, lo=-1.5, hi=-0.5), rand(3, 1, lo=0.5, hi=1.5))
case("clamp crossed", lambda x: x.clamp(1.5, -0.5), rand(5), grad=False)
case("nan_to_num", torch.nan_to_num, given([NAN, INF, -INF, 1.5]))
case("nan_to_num given", lambda x: torch.nan_to_num(x, 0.5, 9.0, -9.0), given([NAN, INF, -INF, 1.5]))
case("threshold", lambda x: F.threshold(x, 0.5, -2.0), rand(7))
case("hardshrink", lambda x: F.hardshrink(x, 0.5), rand(7))
case("softshrink", lambda x: F.softshrink(x, 0.5), rand(7))
case("glu", lambda x: F.glu(x, -1), rand(3, 6))

"""Results in narrow floats, conversions between dtypes, promotion."""

import torch

from .registry import INF, NAN, bools, case, given, ints, rand

WIDE = [0.1, -0.1, 1.0 / 3.0, 65504.0, 65519.0, 65520.0, 1e6, -1e6, 6e-8, 2e-8, 1e-5, 2049.0, 2051.0, 3.4e38, INF, -INF, NAN]
for name, dtype in (("f16", torch.float16), ("bf16", torch.bfloat16), ("f32", torch.float32)):
    case(f"cast {name}", lambda x, d=dtype: x.to(d), given(WIDE), grad=False)
case("cast i32", lambda x: x.to(torch.int32), given([-2.9, -0.5, 0.0, 0.5, 2.9, 1e6]), grad=False)
case("cast bool", lambda x: x.to(torch.bool), given([0.0, -0.0, 0.5, NAN, INF]), grad=False)
case("cast bool to int", lambda x: x.to(torch.int32), bools(7), grad=False)
case("cast i32 to u8", lambda x: x.to(torch.uint8), given([0, 255, 256, 257, -1], dtype=torch.int64), grad=False)
for name, dtype in (("f16", torch.float16), ("bf16", torch.bfloat16)):
    a, b = rand(3, 5, dtype=dtype), rand(3, 5, dtype=dtype)
    case(f"add {name}", torch.add, a, b, grad=False)
    case(f"mul {name}", torch.mul, a, b, grad=False)
    case(f"exp {name}", torch.exp, a, grad=False)
    case(f"sum {name}", lambda x: x.sum(1), a, grad=False)
    case(f"mean {name}", lambda x: x.mean(), given([40000.0 if dtype == torch.float16 else 1e38] * 3, dtype=dtype), grad=False)
    case(f"max {name}", lambda x: x.amax(1), a, grad=False)
    case(f"matmul {name}", torch.matmul, a, rand(5, 2, dtype=dtype), grad=False)
    case(f"softmax {name}", lambda x: x.softmax(-1), a, grad=False)
    case(f"layer_norm {name}", lambda x: torch.nn.functional.layer_norm(x, (5,)), a, grad=False)
    case(f"add {name} scalar", lambda x: x + 0.1, a, grad=False)
case("add f16 f32", torch.add, rand(5, dtype=torch.float16), rand(5, dtype=torch.float32), grad=False)
case("add f16 bf16", torch.add, rand(5, dtype=torch.float16), rand(5, dtype=torch.bfloat16), grad=False)
case("add int f16", torch.add, ints(5), rand(5, dtype=torch.float16), grad=False)
case("add int scalar float", lambda x: x + 0.5, ints(5), grad=False)
# Integers stay integers with us; PyTorch's own quotient of them is a float.
case("div ints", lambda x, w: torch.div(x, w, rounding_mode="trunc"), given([7, -7, 1, 0], dtype=torch.int64), given([2, 2, 3, 5], dtype=torch.int64), grad=False)
case("add bool int", torch.add, bools(5), ints(5), grad=False)
case("mean of int cast", lambda x: x.float().mean(), ints(5), grad=False)

"""Reductions, scans, sorts."""

import torch

from .registry import INF, NAN, bools, case, given, ints, rand

X = lambda: rand(2, 3, 5)  # noqa: E731

case("sum", lambda x: x.sum(1), X())
case("sum all", lambda x: x.sum(), X())
case("sum keepdim", lambda x: x.sum((0, -1), keepdim=True), X())
case("sum of int", lambda x: x.sum(1), ints(3, 5, lo=-9, hi=9), grad=False)
case("sum of bool", lambda x: x.sum(1), bools(3, 5), grad=False)
case("sum of nothing", lambda x: x.sum(1), given([], (3, 0)))
case("sum nan", lambda x: x.sum(1), given([[1.0, NAN], [INF, -INF], [INF, 1.0]]))
case("mean", lambda x: x.mean((0, 2)), X())
case("mean all", lambda x: x.mean(), X())
case("mean of nothing", lambda x: x.mean(1), given([], (3, 0)))
case("prod", lambda x: x.prod(1), X())
case("prod zeros", lambda x: x.prod(1), given([[0.0, 2.0, 3.0], [0.0, 0.0, 3.0], [1.0, -2.0, 3.0]]))
case("prod of nothing", lambda x: x.prod(1), given([], (3, 0)))
case("prod all", lambda x: x.prod(), rand(7))
case("prod twice", lambda x: x.prod(1), given([[0.0, 2.0, 3.0], [1.5, -0.5, 2.0]]), twice=True)
for name, f in (("max", torch.amax), ("min", torch.amin)):
    case(name, lambda x, f=f: f(x, 1), X())
    case(f"{name} several", lambda x, f=f: f(x, (0, 2), keepdim=True), X())
    case(f"{name} all", lambda x, f=f: f(x, (0, 1, 2)), X())
    case(f"{name} ties", lambda x, f=f: f(x, 1), given([[2.0, 2.0, 1.0], [1.0, 1.0, 1.0], [0.0, 3.0, 3.0]]))
    case(f"{name} nan", lambda x, f=f: f(x, 1), given([[1.0, NAN, 2.0], [INF, -INF, 0.0]]), grad=False)
    case(f"{name} int", lambda x, f=f: f(x, 1), ints(3, 5, lo=-9, hi=9), grad=False)
for name, f in (("argmax", torch.argmax), ("argmin", torch.argmin)):
    case(name, lambda x, f=f: f(x, 1), X(), grad=False)
    case(f"{name} keepdim", lambda x, f=f: f(x, -1, keepdim=True), X(), grad=False)
    case(f"{name} all", lambda x, f=f: f(x), X(), grad=False)
    case(f"{name} nan", lambda x, f=f: f(x, 1), given([[NAN, NAN, 3.0], [1.0, NAN, 3.0], [INF, 5.0, -INF]]), grad=False)
    case(f"{name} ties", lambda x, f=f: f(x, 1), given([[1.0, 2.0, 2.0, 1.0], [0.0, 0.0, 0.0, 0.0]]), grad=False)
case("any", lambda x: x.any(1), given([[0, 1, 0], [0, 0, 0]], dtype=torch.bool), grad=False)
case("all", lambda x: x.all(1), given([[0, 1, 0], [1, 1, 1]], dtype=torch.bool), grad=False)
case("any floats", lambda x: x.any(1), given([[0.0, NAN], [0.0, -0.0], [2.0, 0.0]]), grad=False)
case("all floats", lambda x: x.all(1), given([[1.0, NAN], [0.0, 1.0]]), grad=False)
case("any of nothing", lambda x: x.any(1), given([], (2, 0), dtype=torch.bool), grad=False)
case("all of nothing", lambda x: x.all(1), given([], (2, 0), dtype=torch.bool), grad=False)
case("count_nonzero", lambda x: torch.count_nonzero(x, 1), given([[0.0, NAN, -1.0], [0.0, -0.0, 0.0]]), grad=False)
for correction in (0, 1, 2):
    case(f"var {correction}", lambda x, c=correction: x.var(1, correction=c), rand(3, 5))
    case(f"std {correction}", lambda x, c=correction: x.std((0, 2), correction=c, keepdim=True), X())
case("var all", lambda x: x.var(), rand(7))
case("var one", lambda x: x.var(1), rand(3, 1), grad=False)
case("std constant", lambda x: x.std(), given([1.0, 1.0, 1.0, 1.0]))
case("var large mean", lambda x: x.var(), given([1e8 + 1, 1e8 + 2, 1e8 + 4]))
case("var twice", lambda x: x.var(1), rand(2, 3), twice=True)
case("std twice", lambda x: x.std(1), rand(2, 3), twice=True)
for p in (0, 0.5, 1, 2, 3, INF, -INF):
    grad = p != 0
    case(f"norm {p}", lambda x, p=p: torch.linalg.vector_norm(x, p, 1), rand(3, 5), grad=grad)
case("norm several", lambda x: torch.linalg.vector_norm(x, 2, (0, 2), keepdim=True), X())
case("norm all", lambda x: torch.linalg.vector_norm(x), X())
for p in (1, 2, 3, INF):
    case(f"norm {p} of zeros", lambda x, p=p: torch.linalg.vector_norm(x, p), given([0.0, 0.0, 0.0]))
    case(f"norm {p} with a zero", lambda x, p=p: torch.linalg.vector_norm(x, p), given([0.0, -3.0, 4.0]))
case("norm inf ties", lambda x: torch.linalg.vector_norm(x, INF), given([-3.0, 3.0, 1.0]))
case("norm twice", lambda x: torch.linalg.vector_norm(x, 2, 1), rand(2, 3), twice=True)
case("logsumexp", lambda x: x.logsumexp(1), X())
case("logsumexp several", lambda x: x.logsumexp((0, 2), keepdim=True), X())
case("logsumexp large", lambda x: x.logsumexp(1), given([[1000.0, 1001.0], [-1000.0, -1001.0]]))
case("logsumexp inf", lambda x: x.logsumexp(1), given([[-INF, -INF], [INF, 1.0], [-INF, 1.0], [NAN, 1.0]]), grad=False)
# Where all are -inf our gradient is 0, PyTorch's is NaN.
case("logsumexp one inf", lambda x: x.logsumexp(1), given([[-INF, 1.0, 2.0]]))
case("logsumexp twice", lambda x: x.logsumexp(1), rand(2, 3), twice=True)

# Scans.
case("cumsum", lambda x: x.cumsum(1), X())
case("cumsum last", lambda x: x.cumsum(-1), rand(3, 7))
case("cumsum of int", lambda x: x.cumsum(0), ints(5, 3, lo=-9, hi=9), grad=False)
case("cumsum of nothing", lambda x: x.cumsum(1), given([], (2, 0)))
case("cumprod", lambda x: x.cumprod(1), X())
case("cumprod zeros", lambda x: x.cumprod(1), given([[2.0, 0.0, 3.0, 4.0], [0.0, 2.0, 0.0, 3.0], [1.0, 2.0, 3.0, 0.0]]))
case("cumprod twice", lambda x: x.cumprod(0), rand(4), twice=True)
for name, f in (("cummax", torch.cummax), ("cummin", torch.cummin)):
    case(name, lambda x, f=f: tuple(f(x, 1)), X())
    case(f"{name} ties", lambda x, f=f: tuple(f(x, 0)), given([3.0, 3.0, 1.0, 5.0, 5.0, 1.0, 1.0]))
    case(f"{name} nan", lambda x, f=f: tuple(f(x, 0)), given([3.0, NAN, 1.0, 5.0]), grad=False)
case("logcumsumexp", lambda x: x.logcumsumexp(1), X())
case("logcumsumexp large", lambda x: x.logcumsumexp(0), given([1000.0, 1001.0, -1000.0]))
case("logcumsumexp inf", lambda x: x.logcumsumexp(0), given([-INF, -INF, 1.0, 2.0]), grad=False)

# Sorts.
case("sort", lambda x: tuple(x.sort(-1)), rand(3, 7))
case("sort axis", lambda x: tuple(x.sort(0)), rand(5, 3))
case("sort descending", lambda x: tuple(x.sort(-1, descending=True)), rand(3, 7))
case("sort ties", lambda x: tuple(x.sort(dim=-1, stable=True)), given([2.0, 1.0, 2.0, 1.0, 0.0, 2.0]))
case("sort descending ties", lambda x: tuple(x.sort(dim=-1, stable=True, descending=True)), given([2.0, 1.0, 2.0, 1.0, 0.0, 2.0]))
case("sort nan", lambda x: tuple(x.sort(-1)), given([2.0, NAN, -INF, INF, 0.0]), grad=False)
case("sort int", lambda x: tuple(x.sort(dim=-1, stable=True)), given([3, -1, 3, 0, -5], dtype=torch.int64), grad=False)
case("sort twice", lambda x: (x**2).sort(-1)[0], rand(5), twice=True)
case("argsort", lambda x: x.argsort(-1), rand(3, 7), grad=False)
case("argsort descending", lambda x: x.argsort(0, descending=True), rand(5, 3), grad=False)
case("topk", lambda x: tuple(x.topk(3, -1)), rand(3, 7))
case("topk smallest", lambda x: tuple(x.topk(2, -1, largest=False)), rand(3, 7))
case("topk axis", lambda x: tuple(x.topk(2, 0)), rand(5, 3))
case("median odd", lambda x: tuple(x.median(-1)), rand(3, 7))
case("median even", lambda x: tuple(x.median(-1)), rand(3, 6))
case("median nan", lambda x: x.median(-1)[0], given([[1.0, NAN, 2.0], [1.0, 3.0, 2.0]]), grad=False)
for how in ("linear", "lower", "higher", "midpoint", "nearest"):
    case(f"quantile {how}", lambda x, h=how: x.quantile(0.3, -1, interpolation=h), rand(3, 7))
case("quantile several", lambda x: x.quantile(torch.tensor([0.0, 0.25, 1.0], dtype=x.dtype), 1), rand(3, 6))
case("quantile nan", lambda x: x.quantile(0.5, -1), given([[1.0, NAN, 2.0], [1.0, 3.0, 2.0]]), grad=False)

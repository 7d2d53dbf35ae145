"""Normalisation layers."""

import torch
import torch.nn.functional as F

from .registry import case, const, given, rand

LN = F.layer_norm
case("layer_norm", lambda x, w, b: LN(x, (5,), w, b), rand(2, 3, 5), rand(5), rand(5))
case("layer_norm eps", lambda x, w, b: LN(x, (2,), w, b, eps=0.75), given([[1.0, 2.0], [3.0, 3.0]]), rand(2), rand(2))
case("layer_norm several axes", lambda x, w, b: LN(x, (3, 5), w, b), rand(2, 3, 5), rand(3, 5), rand(3, 5))
case("layer_norm plain", lambda x: LN(x, (5,)), rand(3, 5))
case("layer_norm constant", lambda x: LN(x, (4,)), given([[3.0, 3.0, 3.0, 3.0]]))
case("layer_norm twice", lambda x, w, b: LN(x, (3,), w, b), rand(2, 3), rand(3), rand(3), twice=True)
case("rms_norm", lambda x, w: F.rms_norm(x, (5,), w, eps=1e-5), rand(2, 3, 5), rand(5))
case("rms_norm plain", lambda x: F.rms_norm(x, (5,), eps=0.5), rand(3, 5))
case("rms_norm zeros", lambda x: F.rms_norm(x, (3,), eps=1e-5), given([[0.0, 0.0, 0.0]]))
case("rms_norm twice", lambda x, w: F.rms_norm(x, (3,), w, eps=1e-5), rand(2, 3), rand(3), twice=True)
case("group_norm", lambda x, w, b: F.group_norm(x, 2, w, b), rand(2, 6, 3), rand(6), rand(6))
case("group_norm 2d", lambda x, w, b: F.group_norm(x, 3, w, b, eps=1e-3), rand(2, 6, 2, 3), rand(6), rand(6))
case("group_norm plain", lambda x: F.group_norm(x, 1), rand(2, 4, 3))
case("instance_norm", lambda x: F.instance_norm(x), rand(2, 3, 5))
case("instance_norm affine", lambda x, w, b: F.instance_norm(x, weight=w, bias=b, eps=1e-3), rand(2, 3, 2, 4), rand(3), rand(3))


def batch_norm(x, w, b, mean, var, train, momentum=0.1, eps=1e-5):
    """Output, and the running statistics after it."""
    mean, var = mean.clone(), var.clone()
    y = F.batch_norm(x, mean, var, w, b, training=train, momentum=momentum, eps=eps)
    return y, mean, var


BN = lambda train, **o: lambda *x: batch_norm(*x, train, **o)  # noqa: E731
STATS = lambda n: (const(rand(n)), const(rand(n, lo=0.5, hi=2.0)))  # noqa: E731
case("batch_norm train", BN(True), rand(4, 3), rand(3), rand(3), *STATS(3))
case("batch_norm train 1d", BN(True), rand(2, 3, 5), rand(3), rand(3), *STATS(3))
case("batch_norm train 2d", BN(True, momentum=0.3, eps=1e-3), rand(2, 3, 2, 4), rand(3), rand(3), *STATS(3))
case("batch_norm eval", BN(False), rand(4, 3), rand(3), rand(3), *STATS(3))
case("batch_norm eval 2d", BN(False), rand(2, 3, 2, 4), rand(3), rand(3), *STATS(3))
case(
    "batch_norm running",
    BN(True),
    given([[0.0], [1.0], [2.0], [3.0]]),
    given([1.0]),
    given([0.0]),
    const(given([0.0])),
    const(given([1.0])),
)
case("batch_norm twice", lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), rand(3, 2), rand(2), rand(2), twice=True)
LRN = F.local_response_norm
case("local_response_norm", lambda x: LRN(x, 3), rand(2, 5, 3))
case("local_response_norm even", lambda x: LRN(x, 2, alpha=0.5, beta=0.6, k=2.0), rand(1, 5, 2, 3))
case("local_response_norm wide", lambda x: LRN(x, 9, alpha=0.5), rand(2, 4, 3))

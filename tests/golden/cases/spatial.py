"""Pooling, interpolation, sampling of grids."""

import torch
import torch.nn.functional as F

from .registry import case, given, rand

MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
AVG = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
ADA = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}
ADM = {1: F.adaptive_max_pool1d, 2: F.adaptive_max_pool2d, 3: F.adaptive_max_pool3d}
X = {1: (2, 3, 9), 2: (2, 3, 7, 6), 3: (1, 2, 5, 4, 6)}
for n in (1, 2, 3):
    case(f"max_pool {n}d", lambda x, n=n: MAX[n](x, 2), rand(*X[n]))
    case(f"max_pool {n}d overlap", lambda x, n=n: MAX[n](x, 3, stride=1, padding=1), rand(*X[n]))
    case(f"avg_pool {n}d", lambda x, n=n: AVG[n](x, 2), rand(*X[n]))
    case(f"avg_pool {n}d overlap", lambda x, n=n: AVG[n](x, 3, stride=2, padding=1), rand(*X[n]))
    case(f"avg_pool {n}d padding left out", lambda x, n=n: AVG[n](x, 3, stride=2, padding=1, count_include_pad=False), rand(*X[n]))
    case(f"avg_pool {n}d ceil", lambda x, n=n: AVG[n](x, 2, stride=3, padding=1, ceil_mode=True), rand(*X[n]))
    case(f"max_pool {n}d ceil", lambda x, n=n: MAX[n](x, 2, stride=3, padding=1, ceil_mode=True), rand(*X[n]))
    case(f"adaptive_avg_pool {n}d", lambda x, n=n: ADA[n](x, (3, 4, 2)[:n] if n > 1 else 4), rand(*X[n]))
    case(f"adaptive_max_pool {n}d", lambda x, n=n: ADM[n](x, (3, 4, 2)[:n] if n > 1 else 4), rand(*X[n]))
case("max_pool 2d dilation", lambda x: F.max_pool2d(x, (2, 3), stride=(1, 2), padding=(1, 0), dilation=(2, 1)), rand(1, 2, 6, 7))
case("max_pool 2d indices", lambda x: F.max_pool2d(x, 2, return_indices=True), rand(1, 2, 4, 6))
case("max_pool 2d ties", lambda x: F.max_pool2d(x, 2), given([1.0, 1.0, 2.0, 0.0, 1.0, 1.0, 2.0, 2.0], (1, 1, 2, 4)))
case("max_pool 2d unbatched", lambda x: F.max_pool2d(x, 2), rand(3, 4, 6))
case("max_pool 2d twice", lambda x: F.max_pool2d(x**2, 2), rand(1, 1, 4, 4), twice=True)
case("avg_pool 2d divisor", lambda x: F.avg_pool2d(x, 2, divisor_override=3), rand(1, 2, 4, 6))
case("avg_pool 2d rectangle", lambda x: F.avg_pool2d(x, (1, 3), stride=(2, 1), padding=(0, 1)), rand(1, 2, 4, 6))
case("lp_pool 2d", lambda x: F.lp_pool2d(x, 2, 2), rand(1, 2, 4, 6, lo=0.1, hi=2.0))
case("adaptive_avg_pool 2d one", lambda x: F.adaptive_avg_pool2d(x, 1), rand(2, 3, 4, 5))
case("adaptive_avg_pool 2d larger", lambda x: F.adaptive_avg_pool2d(x, (5, 7)), rand(1, 2, 3, 4))

INT = F.interpolate
RESIZE = {1: ("linear", (2, 3, 5), (8,), (3,)), 2: ("bilinear", (1, 2, 4, 5), (7, 8), (3, 2)), 3: ("trilinear", (1, 2, 3, 4, 3), (5, 6, 4), (2, 3, 2))}
for n, (linear, shape, up, down) in RESIZE.items():
    for size, which in ((up, "up"), (down, "down")):
        case(f"interpolate nearest {n}d {which}", lambda x, s=size: INT(x, s, mode="nearest"), rand(*shape))
        case(f"interpolate linear {n}d {which}", lambda x, s=size, m=linear: INT(x, s, mode=m), rand(*shape))
        case(f"interpolate linear {n}d {which} corners", lambda x, s=size, m=linear: INT(x, s, mode=m, align_corners=True), rand(*shape))
for size, which in (((7, 8), "up"), ((3, 2), "down")):
    case(f"interpolate bicubic {which}", lambda x, s=size: INT(x, s, mode="bicubic"), rand(1, 2, 4, 5))
    case(f"interpolate bicubic {which} corners", lambda x, s=size: INT(x, s, mode="bicubic", align_corners=True), rand(1, 2, 4, 5))
case("interpolate nearest exact", lambda x: INT(x, (7, 3), mode="nearest-exact"), rand(1, 2, 4, 5))
case("interpolate area", lambda x: INT(x, (3, 2), mode="area"), rand(1, 2, 4, 5))
case("interpolate factor", lambda x: INT(x, scale_factor=2, mode="bilinear"), rand(1, 2, 3, 4))
case("interpolate one corner", lambda x: INT(x, (1, 1), mode="bilinear", align_corners=True), rand(1, 2, 3, 4))
case("interpolate twice", lambda x: INT(x**2, (5, 3), mode="bilinear"), rand(1, 1, 3, 4), twice=True)

for mode in ("bilinear", "nearest", "bicubic"):
    for padding in ("zeros", "border", "reflection"):
        for corners in (False, True):
            name = f"grid_sample {mode} {padding}" + (" corners" if corners else "")
            f = lambda x, g, m=mode, p=padding, a=corners: F.grid_sample(x, g, m, p, align_corners=a)  # noqa: E731
            case(name, f, rand(1, 2, 4, 5), rand(1, 3, 2, 2, lo=-1.4, hi=1.4))
case("grid_sample 3d", lambda x, g: F.grid_sample(x, g, "bilinear", "zeros", align_corners=False), rand(1, 2, 3, 4, 3), rand(1, 2, 2, 3, 3, lo=-1.2, hi=1.2))
case("affine_grid", lambda t: F.affine_grid(t, (2, 1, 3, 4), align_corners=False), rand(2, 2, 3))
case("affine_grid corners", lambda t: F.affine_grid(t, (2, 1, 3, 4), align_corners=True), rand(2, 2, 3))
OPTIONS = dict(stride=(2, 1), padding=(1, 2), dilation=(1, 2))
case("im2col", lambda x: F.unfold(x, (2, 3)), rand(2, 3, 4, 5))
case("im2col options", lambda x: F.unfold(x, (3, 2), **OPTIONS), rand(1, 2, 5, 4))
case("col2im", lambda x: F.fold(x, (4, 5), (2, 3)), rand(2, 12, 9))
case("col2im options", lambda x: F.fold(x, (5, 4), (3, 2), **OPTIONS), rand(1, 12, 18))
case("max_unpool 2d", lambda x, i: F.max_unpool2d(x, i.to(torch.int64), 2, output_size=(5, 4)), rand(1, 2, 2, 2), given([0, 3, 11, 17, 6, 1, 19, 2], (1, 2, 2, 2), dtype=torch.int32))

"""Softmax, attention, rotary positions, similarities, convolutions."""

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from .registry import INF, NAN, bools, case, const, given, rand

case("softmax", lambda x: x.softmax(-1), rand(3, 5))
case("softmax axis", lambda x: x.softmax(1), rand(2, 3, 5))
case("softmax large", lambda x: x.softmax(-1), given([[1000.0, 1001.0, 1002.0], [-1e4, 0.0, 1e4]]))
case("softmax inf", lambda x: x.softmax(-1), given([[-INF, 1.0, 2.0], [0.0, -INF, -INF]]))
case("softmax all minus inf", lambda x: x.softmax(-1), given([[-INF, -INF], [NAN, 1.0]]), grad=False)
case("softmax twice", lambda x: x.softmax(-1), rand(2, 3), twice=True)
case("softmin", lambda x: F.softmin(x, -1), rand(3, 5))
case("log_softmax", lambda x: x.log_softmax(-1), rand(3, 5))
case("log_softmax axis", lambda x: x.log_softmax(0), rand(4, 3))
case("log_softmax large", lambda x: x.log_softmax(-1), given([[1000.0, 1001.0, 1002.0], [-1e4, 0.0, 1e4]]))
case("log_softmax twice", lambda x: x.log_softmax(-1), rand(2, 3), twice=True)


def SDPA(*x, **options):
    """Attention by its definition: the fast kernel of the CPU has no second derivative."""
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(*x, **options)


Q, K, V = (2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6)
case("attention", SDPA, rand(*Q), rand(*K), rand(*V))
case("attention scale", lambda q, k, v: SDPA(q, k, v, scale=0.3), rand(*Q), rand(*K), rand(*V))
case("attention causal", lambda q, k, v: SDPA(q, k, v, is_causal=True), rand(1, 2, 5, 4), rand(1, 2, 5, 4), rand(1, 2, 5, 3))
case("attention rank 3", SDPA, rand(2, 3, 4), rand(2, 5, 4), rand(2, 5, 2))
case("attention mask", lambda q, k, v, m: SDPA(q, k, v, attn_mask=m), rand(*Q), rand(*K), rand(*V), const(rand(5, 7)))
case("attention mask gradient", lambda q, k, v, m: SDPA(q, k, v, attn_mask=m), rand(*Q), rand(*K), rand(*V), rand(2, 1, 5, 7))
BOOL = [[True, False, True], [False, True, True]]
case("attention bool mask", lambda q, k, v, m: SDPA(q, k, v, attn_mask=m), rand(1, 2, 2, 4), rand(1, 2, 3, 4), rand(1, 2, 3, 4), given(BOOL, dtype=torch.bool))
MASKED = [[True, False, True], [False, False, False]]
# A row that may see nothing is zeros, and sends no gradient.
case("attention masked row", lambda q, k, v, m: SDPA(q, k, v, attn_mask=m), rand(1, 2, 2, 4), rand(1, 2, 3, 4), rand(1, 2, 3, 4), given(MASKED, dtype=torch.bool))
case("attention groups", lambda q, k, v: SDPA(q, k, v, enable_gqa=True), rand(1, 4, 3, 4), rand(1, 2, 5, 4), rand(1, 2, 5, 4))
case("attention twice", SDPA, rand(1, 1, 2, 3), rand(1, 1, 3, 3), rand(1, 1, 3, 2), twice=True)
case("attention causal twice", lambda q, k, v: SDPA(q, k, v, is_causal=True), rand(1, 1, 3, 2), rand(1, 1, 3, 2), rand(1, 1, 3, 2), twice=True)


def rope(x, interleaved, base=10000.0, offset=0):
    """Rotary positions over axes -2 (positions) and -1 (pairs), from their definition."""
    n, d = x.shape[-2:]
    frequency = base ** (-torch.arange(0, d, 2, dtype=x.dtype) / d)
    angle = torch.arange(offset, offset + n, dtype=x.dtype)[:, None] * frequency
    turn = torch.polar(torch.ones_like(angle), angle)
    if interleaved:
        z = torch.view_as_complex(x.reshape(*x.shape[:-1], d // 2, 2))
        return torch.view_as_real(z * turn).flatten(-2)
    z = torch.complex(x[..., : d // 2], x[..., d // 2 :]) * turn
    return torch.cat((z.real, z.imag), -1)


case("rope", lambda x: rope(x, False), rand(2, 5, 6))
case("rope interleaved", lambda x: rope(x, True), rand(2, 5, 6))
case("rope offset", lambda x: rope(x, False, base=500.0, offset=3), rand(2, 4, 4))

case("cosine_similarity", lambda a, b: F.cosine_similarity(a, b, dim=1), rand(3, 5), rand(3, 5))
case("cosine_similarity broadcast", lambda a, b: F.cosine_similarity(a, b, dim=-1), rand(3, 1, 5), rand(2, 5))
case("cosine_similarity zeros", lambda a, b: F.cosine_similarity(a, b, dim=0), given([0.0, 0.0]), given([3.0, 4.0]), grad=False)
case("pairwise_distance", lambda a, b: F.pairwise_distance(a, b), rand(3, 5), rand(3, 5))
case("pairwise_distance 1", lambda a, b: F.pairwise_distance(a, b, p=1.0, keepdim=True), rand(3, 5), rand(3, 5))
case("pairwise_distance equal", lambda a, b: F.pairwise_distance(a, b), given([[1.0, 2.0]]), given([[1.0, 2.0]]))
case("cdist", torch.cdist, rand(3, 4), rand(2, 4))
case("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), rand(1, 8, 2, 3))
case("pixel_unshuffle", lambda x: F.pixel_unshuffle(x, 2), rand(1, 2, 4, 6))
case("channel_shuffle", lambda x: F.channel_shuffle(x, 3), rand(1, 6, 2, 2))
case("normalize", lambda x: F.normalize(x, dim=1), rand(3, 5))
case("normalize 1", lambda x: F.normalize(x, p=1.0, dim=0), rand(3, 5))
case("normalize zeros", lambda x: F.normalize(x, dim=0), given([0.0, 0.0, 0.0]))
case("linear", F.linear, rand(3, 5), rand(2, 5), rand(2))
case("bilinear", F.bilinear, rand(3, 4), rand(3, 5), rand(2, 4, 5), rand(2))

# Convolutions: input, weight, options.
CONV = [
    ("conv 1d", F.conv1d, (2, 3, 9), (4, 3, 3), {}),
    ("conv 1d stride", F.conv1d, (2, 3, 9), (4, 3, 3), dict(stride=2, padding=1)),
    ("conv 1d dilation", F.conv1d, (1, 2, 9), (3, 2, 3), dict(dilation=3)),
    ("conv 1d groups", F.conv1d, (2, 4, 7), (6, 2, 3), dict(groups=2)),
    ("conv 1d same", F.conv1d, (1, 2, 7), (3, 2, 4), dict(padding="same", dilation=2)),
    ("conv 2d", F.conv2d, (2, 3, 7, 5), (4, 3, 3, 2), {}),
    ("conv 2d stride", F.conv2d, (2, 3, 7, 5), (4, 3, 3, 2), dict(stride=(2, 1))),
    ("conv 2d padding", F.conv2d, (1, 3, 4, 5), (2, 3, 3, 3), dict(padding=(2, 1))),
    ("conv 2d all", F.conv2d, (2, 4, 9, 8), (6, 2, 3, 2), dict(stride=(2, 3), padding=(1, 2), dilation=(2, 1), groups=2)),
    ("conv 2d depthwise", F.conv2d, (2, 3, 5, 5), (6, 1, 3, 3), dict(groups=3, padding=1)),
    ("conv 2d pointwise", F.conv2d, (2, 3, 4, 3), (5, 3, 1, 1), {}),
    ("conv 2d same", F.conv2d, (1, 2, 5, 6), (3, 2, 3, 4), dict(padding="same")),
    ("conv 2d valid", F.conv2d, (1, 2, 5, 6), (3, 2, 3, 4), dict(padding="valid", stride=2)),
    ("conv 3d", F.conv3d, (1, 2, 4, 5, 3), (3, 2, 2, 3, 2), {}),
    ("conv 3d all", F.conv3d, (1, 4, 5, 4, 6), (2, 2, 2, 1, 3), dict(stride=(2, 1, 2), padding=(1, 0, 1), dilation=(1, 2, 1), groups=2)),
]
for name, f, x, w, options in CONV:
    case(name, lambda x, w, b, f=f, o=options: f(x, w, b, **o), rand(*x), rand(*w), rand(w[0]))
case("conv 2d without bias", F.conv2d, rand(1, 2, 4, 4), rand(3, 2, 2, 2))
case("conv 2d empty batch", F.conv2d, given([], (0, 2, 4, 4)), rand(3, 2, 2, 2))
case("conv 2d twice", F.conv2d, rand(1, 1, 3, 4), rand(2, 1, 2, 2), twice=True)
case("conv 1d twice", lambda x, w: F.conv1d(x, w, stride=2, padding=1), rand(1, 2, 5), rand(2, 2, 3), twice=True)
TRANSPOSED = [
    ("conv_transpose 1d", F.conv_transpose1d, (2, 3, 5), (3, 4, 3), 4, {}),
    ("conv_transpose 1d stride", F.conv_transpose1d, (2, 3, 5), (3, 4, 3), 4, dict(stride=2, padding=1, output_padding=1)),
    ("conv_transpose 1d groups", F.conv_transpose1d, (1, 4, 5), (4, 2, 3), 4, dict(groups=2, dilation=2)),
    ("conv_transpose 2d", F.conv_transpose2d, (2, 3, 4, 3), (3, 2, 3, 2), 2, {}),
    ("conv_transpose 2d all", F.conv_transpose2d, (1, 4, 3, 4), (4, 3, 3, 2), 6, dict(stride=(2, 3), padding=(1, 0), output_padding=(1, 2), dilation=(2, 1), groups=2)),
    ("conv_transpose 3d", F.conv_transpose3d, (1, 2, 3, 2, 3), (2, 3, 2, 3, 2), 3, dict(stride=(1, 2, 2), padding=(0, 1, 0))),
]
for name, f, x, w, out, options in TRANSPOSED:
    case(name, lambda x, w, b, f=f, o=options: f(x, w, b, **o), rand(*x), rand(*w), rand(out))
case("conv_transpose 2d twice", lambda x, w: F.conv_transpose2d(x, w, stride=2), rand(1, 1, 2, 2), rand(1, 2, 2, 3), twice=True)

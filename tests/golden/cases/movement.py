"""Shapes, parts, indices, creation."""

import torch
import torch.nn.functional as F

from .registry import bools, case, given, ints, rand

X = lambda: rand(2, 3, 5)  # noqa: E731

case("reshape", lambda x: x.transpose(0, 2).reshape(3, -1), X())
case("permute", lambda x: x.permute(2, 0, 1), X())
case("transpose", lambda x: x.transpose(0, -1), X())
case("flatten", lambda x: x.flatten(1), X())
case("squeeze", lambda x: x.squeeze(1), rand(3, 1, 2))
case("unsqueeze", lambda x: x.unsqueeze(-1), rand(3, 2))
case("expand", lambda x: x.expand(2, 3, 4), rand(3, 1))
case("repeat", lambda x: x.repeat(1, 3), rand(2, 3))
case("tile", lambda x: x.tile((2, 1, 3)), rand(3, 2))
case("repeat_interleave", lambda x: x.repeat_interleave(3, 1), rand(2, 3))
case("flip", lambda x: x.flip((0, 2)), X())
case("roll", lambda x: x.roll(2, 1), rand(2, 5))
case("roll several", lambda x: x.roll((1, -2), (0, 1)), rand(3, 5))
case("roll flat", lambda x: x.roll(4), rand(3, 5))
case("rot90", lambda x: x.rot90(1, (0, 1)), rand(2, 3))
case("movedim", lambda x: x.movedim(0, 2), X())
case("cat", lambda x, y, z: torch.cat((x, y, z), 1), rand(2, 3), rand(2, 1), rand(2, 4))
case("cat empty", lambda x, y: torch.cat((x, y), 0), given([], (0, 3)), rand(2, 3))
case("stack", lambda x, y: torch.stack((x, y), 1), rand(2, 3), rand(2, 3))
case("split", lambda x: x.split(2, 1), rand(3, 5))
case("chunk", lambda x: x.chunk(3, 1), rand(2, 6))
case("chunk uneven", lambda x: x.chunk(3, 1), rand(2, 7))
case("unbind", lambda x: x.unbind(1), rand(2, 3))
case("slice", lambda x: x[:, 1:4], rand(3, 5))
case("slice negative", lambda x: x[..., -3:-1], rand(3, 5))
case("slice step", lambda x: x[:, 1::3], rand(3, 7))
case("slice empty", lambda x: x[2:2], rand(4, 3))
case("select_index", lambda x: x[:, -2], rand(3, 5))
case("diagonal", lambda x: x.diagonal(), rand(3, 5))
case("diagonal offset", lambda x: x.diagonal(-1, 0, 2), rand(4, 2, 3))
case("diagonal_embed", lambda x: torch.diag_embed(x, 1), rand(2, 3))
case("slice_assign", lambda x, y: torch.slice_scatter(x, y, 1, 2, 4), rand(3, 5), rand(3, 2))
case("slice_assign step", lambda x, y: torch.slice_scatter(x, y, 1, 1, 7, 2), rand(3, 7), rand(3, 3))

P = lambda: rand(2, 3, 5)  # noqa: E731
case("pad", lambda x: F.pad(x, (1, 2)), P())
case("pad value", lambda x: F.pad(x, (1, 2, 0, 1), value=2.5), P())
case("pad negative", lambda x: F.pad(x, (-1, 2, 1, -2)), P())
for mode in ("reflect", "replicate", "circular"):
    case(f"pad {mode}", lambda x, m=mode: F.pad(x, (2, 3), mode=m), P())
    case(f"pad {mode} 2d", lambda x, m=mode: F.pad(x, (1, 2, 2, 1), mode=m), rand(1, 2, 3, 4))
case("pad reflect 3d", lambda x: F.pad(x, (1, 1, 0, 1, 1, 0), mode="reflect"), rand(1, 1, 2, 3, 3))
case("pad twice", lambda x: F.pad(x**2, (2, 1), mode="reflect"), rand(1, 1, 4), twice=True)
case("unfold axis", lambda x: x.unfold(1, 3, 2), rand(2, 7))
case("unfold", lambda x: F.unfold(x, (2, 3)), rand(2, 3, 4, 5))
case("unfold options", lambda x: F.unfold(x, (2, 2), dilation=(2, 1), padding=(1, 0), stride=(2, 1)), rand(1, 2, 5, 4))
case("fold", lambda x: F.fold(x, (4, 5), (2, 3)), rand(2, 12, 9))
case("fold options", lambda x: F.fold(x, (5, 4), (2, 2), dilation=(2, 1), padding=(1, 0), stride=(2, 1)), rand(1, 8, 9))

# Indices.
case("index_select", lambda x, i: x.index_select(1, i), rand(3, 5), given([4, 0, 4], dtype=torch.int64))
case("gather", lambda x, i: x.gather(1, i), rand(3, 5), ints(3, 4, hi=5))
case("gather first", lambda x, i: x.gather(0, i), rand(4, 3), ints(2, 3, hi=4))
case("gather smaller", lambda x, i: x.gather(1, i), rand(4, 5), ints(2, 3, hi=5))
case("take_along", lambda x, i: torch.take_along_dim(x, i, 1), rand(3, 5), ints(3, 2, hi=5))
case("take_along broadcast", lambda x, i: torch.take_along_dim(x, i, 1), rand(3, 5), ints(1, 2, hi=5))
case("take", lambda x, i: torch.take(x, i), rand(3, 5), ints(2, 3, hi=15))
case("gather twice", lambda x, i: (x**2).gather(1, i), rand(2, 3), ints(2, 4, hi=3), twice=True)
case("scatter", lambda x, i, s: x.scatter(1, i, s), rand(3, 5), given([[0, 3, 1], [4, 2, 0], [1, 0, 2]], dtype=torch.int64), rand(3, 3))
case("scatter value", lambda x, i: x.scatter(1, i, 2.5), rand(3, 5), given([[0, 3, 1], [4, 2, 0], [1, 0, 2]], dtype=torch.int64))
case("scatter smaller", lambda x, i, s: x.scatter(0, i, s), rand(4, 5), given([[0, 3, 1], [1, 2, 0]], dtype=torch.int64), rand(2, 3))
case("scatter_add", lambda x, i, s: x.scatter_add(1, i, s), rand(3, 5), ints(3, 7, hi=5), rand(3, 7))
case("scatter_add smaller", lambda x, i, s: x.scatter_add(1, i, s), rand(4, 5), ints(2, 3, hi=5), rand(2, 3))
for kind, how in (("prod", "prod"), ("mean", "mean"), ("max", "amax"), ("min", "amin")):
    for include in (True, False):
        name = f"scatter_{kind}" + ("" if include else " without self")
        f = lambda x, i, s, h=how, n=include: x.scatter_reduce(1, i, s, h, include_self=n)  # noqa: E731
        case(name, f, rand(3, 5), ints(3, 7, hi=5), rand(3, 7))
TIED = ([1.0, 5.0, 0.0], [0, 0, 1, 1, 2, 2], [1.0, 3.0, 5.0, 5.0, -1.0, -2.0])
for kind, how in (("max", "amax"), ("min", "amin")):
    f = lambda x, i, s, h=how: x.scatter_reduce(0, i, s, h)  # noqa: E731
    case(f"scatter_{kind} ties", f, given(TIED[0]), given(TIED[1], dtype=torch.int64), given(TIED[2]))
case("index_add", lambda x, i, s: x.index_add(1, i, s), rand(3, 5), given([4, 0, 4], dtype=torch.int64), rand(3, 3))
case("index_copy", lambda x, i, s: x.index_copy(1, i, s), rand(3, 5), given([4, 0, 2], dtype=torch.int64), rand(3, 3))
case("index_fill", lambda x, i: x.index_fill(1, i, 2.5), rand(3, 5), given([4, 0], dtype=torch.int64))
case("masked_scatter none", lambda x, m: torch.where(m, x, 0.0), rand(3, 5), bools(3, 5))
case("embedding", lambda t, i: F.embedding(i, t), rand(7, 3), ints(2, 4, hi=7))
# The gradient of the row `padding` is zero, the value is not.
case("embedding padding", lambda t, i: F.embedding(i, t, padding_idx=2), rand(4, 3), given([[2, 0, 2], [1, 2, 3]], dtype=torch.int64))
case("one_hot", lambda i: F.one_hot(i, 5), ints(2, 3, hi=5), grad=False)

# Creation.
case("tril", lambda x: x.tril(), rand(3, 5))
case("tril offset", lambda x: x.tril(-1), rand(2, 4, 3))
case("triu", lambda x: x.triu(), rand(3, 5))
case("triu offset", lambda x: x.triu(2), rand(2, 3, 4))
case("meshgrid", lambda a, b: torch.meshgrid(a, b, indexing="ij"), rand(3), rand(2))
case("meshgrid xy", lambda a, b: torch.meshgrid(a, b, indexing="xy"), rand(3), rand(2))
case("linspace", lambda x: x * torch.linspace(-1.0, 2.0, 7, dtype=x.dtype), rand(7))
case("arange", lambda x: x * torch.arange(1.0, 8.0, 1.5, dtype=x.dtype), rand(5))
case("eye", lambda x: x + torch.eye(3, 5, dtype=x.dtype), rand(3, 5))

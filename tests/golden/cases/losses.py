"""Losses, each reduction."""

import torch
import torch.nn.functional as F

from .registry import case, const, given, ints, rand

KINDS = ("mean", "sum", "none")


def each(name, f, *operands, **options):
    """The case under every reduction."""
    for kind in KINDS:
        case(f"{name} {kind}", lambda *x, k=kind: f(*x, reduction=k), *operands, **options)


each("mse", F.mse_loss, rand(3, 5), rand(3, 5))
each("l1", F.l1_loss, rand(3, 5), rand(3, 5))
each("smooth_l1", lambda a, b, reduction: F.smooth_l1_loss(a, b, beta=0.7, reduction=reduction), rand(3, 5), rand(3, 5))
case("smooth_l1 beta 0", lambda a, b: F.smooth_l1_loss(a, b, beta=0.0), rand(5), rand(5))
each("huber", lambda a, b, reduction: F.huber_loss(a, b, delta=0.7, reduction=reduction), rand(3, 5), rand(3, 5))
case("l1 equal", F.l1_loss, given([1.0, 2.0]), given([1.0, 0.0]))
case("huber limits", lambda a, b: F.huber_loss(a, b, delta=1.0), given([0.0, 1.0, -1.0, 3.0]), given([0.0, 0.0, 0.0, 0.0]))
case("mse of nothing", F.mse_loss, given([], (0,)), given([], (0,)), grad=False)

T = lambda *shape, hi=5: ints(*shape, hi=hi)  # noqa: E731
CE = F.cross_entropy
each("cross_entropy", CE, rand(4, 5), T(4))
W5 = lambda: const(rand(5, lo=0.25, hi=2.0))  # noqa: E731
each("cross_entropy weight", lambda x, t, w, reduction: CE(x, t, w, reduction=reduction), rand(4, 5), T(4), W5())
each("cross_entropy smoothing", lambda x, t, reduction: CE(x, t, label_smoothing=0.2, reduction=reduction), rand(4, 5), T(4))
IGNORED = given([1, -100, 4, 2], dtype=torch.int64)
each("cross_entropy ignore", CE, rand(4, 5), IGNORED)
each(
    "cross_entropy everything",
    lambda x, t, w, reduction: CE(x, t, w, ignore_index=2, label_smoothing=0.1, reduction=reduction),
    rand(4, 5),
    given([1, 2, 4, 2], dtype=torch.int64),
    W5(),
)
case("cross_entropy ignore smoothing", lambda x, t: CE(x, t, ignore_index=0, label_smoothing=0.1), rand(4, 5), given([1, 0, 4, 0], dtype=torch.int64))
case(
    "cross_entropy two classes",
    lambda x, t, w: CE(x, t, w, label_smoothing=0.1),
    rand(3, 2),
    given([1, -100, 0], dtype=torch.int64),
    const(given([0.2, 0.3])),
)
case("cross_entropy trailing", CE, rand(2, 3, 4), T(2, 4, hi=3))
case("cross_entropy trailing 2d weight", lambda x, t, w: CE(x, t, w), rand(2, 3, 2, 2), T(2, 2, 2, hi=3), const(rand(3, lo=0.25, hi=2.0)))
case("cross_entropy one sample", CE, rand(5), T())
P = lambda: rand(4, 5, lo=0.0, hi=1.0)  # noqa: E731
each("cross_entropy probabilities", CE, rand(4, 5), P())
case("cross_entropy probabilities weight", lambda x, t, w: CE(x, t, w, label_smoothing=0.2), rand(4, 5), P(), W5())
case("cross_entropy probabilities trailing", CE, rand(2, 3, 4), rand(2, 3, 4, lo=0.0, hi=1.0))
case("cross_entropy all ignored sum", lambda x, t: CE(x, t, reduction="sum"), rand(2, 3), given([-100, -100], dtype=torch.int64))
case("cross_entropy all ignored mean", CE, rand(2, 3), given([-100, -100], dtype=torch.int64), grad=False)
case("cross_entropy large", CE, given([[1000.0, -1000.0], [1000.0, -1000.0]]), given([0, 1], dtype=torch.int64))
case("cross_entropy twice", lambda x, t, w: CE(x, t, w, label_smoothing=0.2), rand(2, 3), T(2, hi=3), const(rand(3, lo=0.25, hi=2.0)), twice=True)

LOG = lambda x: x.log_softmax(1)  # noqa: E731
each("nll", lambda x, t, reduction: F.nll_loss(LOG(x), t, reduction=reduction), rand(4, 5), T(4))
each("nll weight", lambda x, t, w, reduction: F.nll_loss(LOG(x), t, w, ignore_index=1, reduction=reduction), rand(4, 5), given([0, 1, 3, 3], dtype=torch.int64), W5())
case("nll trailing", lambda x, t: F.nll_loss(LOG(x), t), rand(2, 3, 4), T(2, 4, hi=3))

UNIT = lambda: rand(3, 5, lo=0.05, hi=0.95)  # noqa: E731
each("bce", F.binary_cross_entropy, UNIT(), const(UNIT()))
case("bce weight", lambda x, t, w: F.binary_cross_entropy(x, t, w), UNIT(), const(UNIT()), const(rand(5, lo=0.25, hi=2.0)))
case("bce limits", lambda x, t: F.binary_cross_entropy(x, t, reduction="none"), given([0.0, 1.0, 0.0, 1.0]), const(given([1.0, 1.0, 0.0, 0.0])), grad=False)
BCEL = F.binary_cross_entropy_with_logits
each("bce_with_logits", BCEL, rand(3, 5), UNIT())
case("bce_with_logits pos_weight", lambda x, t, w: BCEL(x, t, pos_weight=w), rand(3, 5), UNIT(), const(rand(5, lo=0.25, hi=2.0)))
case("bce_with_logits weight", lambda x, t, w: BCEL(x, t, w), rand(3, 5), UNIT(), const(rand(5, lo=0.25, hi=2.0)))
case("bce_with_logits large", BCEL, given([1000.0, -1000.0, 0.0, 1000.0]), const(given([1.0, 0.0, 0.5, 0.0])))
case("bce_with_logits twice", BCEL, rand(4), const(rand(4, lo=0.05, hi=0.95)), twice=True)

each("kl_div", F.kl_div, rand(3, 5, lo=-3.0, hi=-0.1), UNIT())
case("kl_div batchmean", lambda x, t: F.kl_div(x, t, reduction="batchmean"), rand(3, 5, lo=-3.0, hi=-0.1), UNIT())
case("kl_div log_target", lambda x, t: F.kl_div(x, t, log_target=True), rand(3, 5, lo=-3.0, hi=-0.1), rand(3, 5, lo=-3.0, hi=-0.1))
case("kl_div target 0", lambda x, t: F.kl_div(x, t, reduction="sum"), rand(3, lo=-3.0, hi=-0.1), const(given([0.0, 0.5, 0.5])))

SIGN = lambda n: const(given([1.0 if i % 3 else -1.0 for i in range(n)]))  # noqa: E731
each("hinge_embedding", lambda x, t, reduction: F.hinge_embedding_loss(x, t, margin=1.2, reduction=reduction), rand(7), SIGN(7))
each("margin_ranking", lambda a, b, t, reduction: F.margin_ranking_loss(a, b, t, margin=0.3, reduction=reduction), rand(7), rand(7), SIGN(7))
each("triplet_margin", lambda a, p, n, reduction: F.triplet_margin_loss(a, p, n, margin=1.5, reduction=reduction), rand(4, 3), rand(4, 3), rand(4, 3))
case("triplet_margin swap", lambda a, p, n: F.triplet_margin_loss(a, p, n, margin=2.0, swap=True), rand(4, 3), rand(4, 3), rand(4, 3))
case("triplet_margin p 1", lambda a, p, n: F.triplet_margin_loss(a, p, n, p=1.0), rand(4, 3), rand(4, 3), rand(4, 3))
each("cosine_embedding", lambda a, b, t, reduction: F.cosine_embedding_loss(a, b, t, margin=0.1, reduction=reduction), rand(4, 3), rand(4, 3), SIGN(4))
each("soft_margin", F.soft_margin_loss, rand(7), SIGN(7))
each("multi_margin", lambda x, t, reduction: F.multi_margin_loss(x, t, margin=0.8, reduction=reduction), rand(4, 5), T(4))
each("poisson_nll", F.poisson_nll_loss, rand(3, 5), rand(3, 5, lo=0.0, hi=4.0))
case("poisson_nll plain", lambda x, t: F.poisson_nll_loss(x, t, log_input=False), rand(3, 5, lo=0.2, hi=3.0), const(rand(3, 5, lo=0.0, hi=4.0)))
case("poisson_nll full", lambda x, t: F.poisson_nll_loss(x, t, full=True), rand(3, 5), const(rand(3, 5, lo=0.0, hi=4.0)))
each("gaussian_nll", F.gaussian_nll_loss, rand(3, 5), rand(3, 5), rand(3, 5, lo=0.3, hi=2.0))
case("gaussian_nll full", lambda x, t, v: F.gaussian_nll_loss(x, t, v, full=True), rand(3, 5), rand(3, 5), rand(3, 1, lo=0.3, hi=2.0))
case("gaussian_nll eps", lambda x, t, v: F.gaussian_nll_loss(x, t, v, eps=0.5), rand(4), rand(4), given([0.1, 0.6, 1.0, 0.2]))


def ctc(x, t, n, m, reduction="mean", blank=0, zero_infinity=False):
    """Of logits [T, N, C], so that the gradient is that of the whole."""
    return F.ctc_loss(x.log_softmax(-1), t, n, m, blank, reduction, zero_infinity)


LENGTHS = (given([5, 4], dtype=torch.int64), given([3, 2], dtype=torch.int64))
TARGETS = given([[1, 2, 2], [3, 1, 0]], dtype=torch.int64)
each("ctc", ctc, rand(5, 2, 4), TARGETS, *LENGTHS)
case("ctc blank", lambda *x: ctc(*x, blank=3), rand(5, 2, 4), given([[1, 2, 0], [0, 1, 0]], dtype=torch.int64), *LENGTHS)
# Two frames cannot hold three labels.
IMPOSSIBLE = (given([2, 4], dtype=torch.int64), given([3, 2], dtype=torch.int64))
case("ctc impossible", lambda *x: ctc(*x, reduction="none"), rand(5, 2, 4), TARGETS, *IMPOSSIBLE, grad=False)
case("ctc zero_infinity", lambda *x: ctc(*x, reduction="none", zero_infinity=True), rand(5, 2, 4), TARGETS, *IMPOSSIBLE)
case("ctc empty target", lambda *x: ctc(*x, reduction="sum"), rand(4, 2, 3), given([[1, 2], [0, 0]], dtype=torch.int64), given([4, 3], dtype=torch.int64), given([2, 0], dtype=torch.int64))

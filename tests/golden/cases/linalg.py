"""Products of matrices, einsum, small linear algebra."""

import torch

from .registry import Make, case, given, rand


def spd(*batch, n):
    """Symmetric positive definite matrices."""

    def make():
        a = rand(*batch, n, n)()
        return a @ a.mT + 2 * torch.eye(n, dtype=a.dtype)

    return Make(make)


def regular(*batch, n):
    """Matrices that are far from singular."""

    def make():
        return rand(*batch, n, n)() + 5 * torch.eye(n, dtype=torch.float64)

    return Make(make)


MATMUL = [
    ("matmul", (5, 4), (4, 3)),
    ("matmul row", (4,), (4, 3)),
    ("matmul column", (5, 4), (4,)),
    ("matmul vectors", (4,), (4,)),
    ("matmul batch by matrix", (2, 5, 4), (4, 3)),
    ("matmul matrix by batch", (5, 4), (2, 4, 3)),
    ("matmul batches", (2, 1, 2, 3), (3, 3, 2)),
    ("matmul vector by batch", (4,), (2, 4, 3)),
    ("matmul inner 0", (3, 0), (0, 2)),
]
for name, a, b in MATMUL:
    case(name, torch.matmul, rand(*a), rand(*b))
case("matmul transposed", lambda a, b: a.T @ b.T, rand(4, 5), rand(3, 4))
case("matmul twice", torch.matmul, rand(2, 3), rand(3, 2), twice=True)
case("dot", torch.dot, rand(7), rand(7))
case("outer", torch.outer, rand(3), rand(5))
case("bmm", torch.bmm, rand(2, 3, 4), rand(2, 4, 5))
case("tensordot", lambda a, b: torch.tensordot(a, b, dims=2), rand(2, 3, 4), rand(3, 4, 5))
case("tensordot axes", lambda a, b: torch.tensordot(a, b, dims=([0, 2], [1, 0])), rand(2, 3, 4), rand(4, 2, 5))
case("tensordot outer", lambda a, b: torch.tensordot(a, b, dims=0), rand(2, 3), rand(4))
case("kron", torch.kron, rand(2, 3), rand(3, 2))
case("kron ranks", torch.kron, rand(2), rand(3, 2))
case("trace", torch.trace, rand(3, 5))
case("cross", lambda a, b: torch.linalg.cross(a, b), rand(2, 3), rand(2, 3))
case("cross axis", lambda a, b: torch.linalg.cross(a, b, dim=0), rand(3, 2), rand(3, 2))

EINSUM = [
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("ij,jk", (2, 3), (3, 4)),
    ("bij,bjk->bik", (2, 3, 4), (2, 4, 2)),
    ("ij->ji", (2, 3)),
    ("ij->", (2, 3)),
    ("ij->j", (2, 3)),
    ("ii->i", (3, 3)),
    ("ii", (3, 3)),
    ("iij->j", (3, 3, 2)),
    ("i,j->ij", (3,), (2,)),
    ("i,i", (3,), (3,)),
    ("...ij,...jk->...ik", (2, 1, 3, 2), (4, 2, 3)),
    ("...i->i...", (2, 3, 4)),
    ("i...,i...", (3, 2), (3, 1)),
    ("bhqd,bhkd->bhqk", (1, 2, 3, 4), (1, 2, 5, 4)),
    ("ij,jk,kl->il", (2, 3), (3, 4), (4, 2)),
    ("ijk,jil->kl", (2, 3, 4), (3, 2, 5)),
    ("bn,anm,bm->ba", (2, 3), (4, 3, 5), (2, 5)),
    ("ij,ij->ij", (2, 3), (2, 3)),
    ("iji,j->ij", (2, 3, 2), (3,)),
    ("ab,cd->acdb", (2, 3), (4, 2)),
    ("bi,bj->b", (2, 3), (2, 4)),
]
for subscripts, *shapes in EINSUM:
    case(f"einsum {subscripts}", lambda *x, s=subscripts: torch.einsum(s, *x), *[rand(*s) for s in shapes])

# `cholesky` reads the lower triangle alone and its gradient is symmetric; PyTorch's is symmetrised likewise.
case("cholesky", torch.linalg.cholesky, spd(n=3))
case("cholesky batch", torch.linalg.cholesky, spd(2, n=4))
case("cholesky upper", lambda a: torch.linalg.cholesky(a, upper=True), spd(n=3))
case("cholesky one", torch.linalg.cholesky, spd(2, n=1))
TRI = torch.linalg.solve_triangular
case("solve_triangular lower", lambda a, b: TRI(a, b, upper=False), regular(n=3), rand(3, 2))
case("solve_triangular upper", lambda a, b: TRI(a, b, upper=True), regular(2, n=3), rand(2, 3, 2))
case("solve_triangular unit", lambda a, b: TRI(a, b, upper=False, unitriangular=True), rand(3, 3), rand(3, 2))
case("solve_triangular right", lambda a, b: TRI(a, b, upper=True, left=False), regular(n=3), rand(2, 3))
case("solve", torch.linalg.solve, regular(n=3), rand(3, 2))
case("solve vector", torch.linalg.solve, regular(n=4), rand(4))
case("solve batch", torch.linalg.solve, regular(2, n=3), rand(2, 3, 2))
case("solve pivots", torch.linalg.solve, given([[0.0, 2.0, 1.0], [1.0, 0.0, 3.0], [2.0, 1.0, 0.0]]), rand(3, 1))
case("inverse", torch.linalg.inv, regular(n=3))
case("inverse batch", torch.linalg.inv, regular(2, n=2))
case("det", torch.linalg.det, rand(3, 3))
case("det batch", torch.linalg.det, rand(2, 4, 4))
case("det one", torch.linalg.det, rand(2, 1, 1))
case("det pivots", torch.linalg.det, given([[0.0, 2.0, 1.0], [1.0, 0.0, 3.0], [2.0, 1.0, 0.0]]))
case("slogdet", lambda a: tuple(torch.linalg.slogdet(a)), rand(3, 3))
case("slogdet batch", lambda a: tuple(torch.linalg.slogdet(a)), rand(2, 4, 4))
case("slogdet singular", lambda a: tuple(torch.linalg.slogdet(a)), given([[1.0, 2.0], [2.0, 4.0]]), grad=False)
case("det singular", torch.linalg.det, given([[1.0, 2.0], [2.0, 4.0]]), grad=False)
case("solve twice", torch.linalg.solve, regular(n=2), rand(2, 1), twice=True)
case("inverse twice", torch.linalg.inv, regular(n=2), twice=True)

"""Cases and the makers of their operands."""

from dataclasses import dataclass
from typing import Callable

import torch

CASES = {}


@dataclass
class Case:
    """A function of torch tensors and its operands."""

    name: str
    f: Callable
    operands: tuple
    grad: bool
    twice: bool


def case(name, f, *operands, grad=True, twice=False):
    """Adds a case. `grad=False`: values only. `twice=True`: second derivatives too."""
    assert name not in CASES, f"two cases {name}"
    CASES[name] = Case(name, f, operands, grad, twice)


class Make:
    """Makes an operand when its case runs. A constant one takes no gradient."""

    def __init__(self, make, constant=False):
        self.make, self.constant = make, constant

    def __call__(self):
        return self.make()


def rand(*shape, lo=-2.0, hi=2.0, dtype=torch.float64):
    """Odd multiples of 1/4096 in lo..hi."""

    def make():
        first, last = round(lo * 2048), round(hi * 2048)
        return ((torch.randint(first, last, shape) * 2 + 1).to(torch.float64) / 4096).to(dtype)

    return Make(make)


def ints(*shape, lo=0, hi=10):
    """Integers in lo..hi (hi excluded)."""
    return Make(lambda: torch.randint(lo, hi, shape))


def bools(*shape):
    """Truth values."""
    return Make(lambda: torch.randint(0, 2, shape) == 1)


def given(elems, shape=None, dtype=torch.float64):
    """These elements. Lists of Python ints need dtype=torch.int64, truth values torch.bool."""

    def make():
        x = torch.tensor(elems, dtype=dtype)
        return x.reshape(shape) if shape is not None else x

    return Make(make)


def const(make):
    """The same operand, by which nothing is differentiated."""
    return Make(make.make, constant=True)


INF, NAN = float("inf"), float("nan")

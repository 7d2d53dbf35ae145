"""Writes pytorch.safetensors.gz: inputs, outputs and gradients of every case, computed by PyTorch.

The f64 oracle is compared with this file (see mod.rs), so that it is checked by something that was not
written here. PyTorch is needed to write the file, not to run the tests:

    python tests/golden/generate.py            # every case must have a closure on the Rust side
    python tests/golden/generate.py --partial  # leaves out cases without one, and lists them
    python tests/golden/generate.py --names=F  # takes the Rust side's names from F, not from cargo

A case is a name, a function of torch tensors, and its operands (cases/*.py). For each case the file
holds, with N counting from 0:

    NAME/xN   operand N
    NAME/yN   output N
    NAME/wN   the weights of output N (floats only)
    NAME/gN   the gradient of sum over N of sum(yN * wN) by operand N, where it takes one
    NAME/vN   (cases with twice=True) the weights of gradient N
    NAME/hN   (cases with twice=True) the gradient of sum over N of sum(gN * vN) by operand N

The Rust side is asked for its names, so it has to compile. Data depend on the case's name alone, so that a new case changes no other. Operands are odd multiples of
1/4096: exact in f32, never at a kink or a tie by accident, and small when compressed. Integers are i32,
floats f64 unless a case says otherwise. Versions stand in the file's metadata.
"""

import gzip
import platform
import subprocess
import sys
import zlib
from pathlib import Path

import numpy
import safetensors
import torch
from safetensors.torch import save

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from cases import registry  # noqa: E402
from cases import dtypes, elementwise, linalg, losses, movement, neural, norms, reductions, spatial  # noqa: E402, F401


def stored(x):
    """A tensor as the file holds it: row-major, integers as i32."""
    x = x.detach()
    if x.dtype == torch.int64:
        x = x.to(torch.int32)
    return x.contiguous().clone()


def run(case, data):
    """The tensors of one case, into `data`."""
    torch.manual_seed(zlib.crc32(case.name.encode()))
    operands = [make() for make in case.operands]
    for i, (x, make) in enumerate(zip(operands, case.operands)):
        data[f"{case.name}/x{i}"] = stored(x)
        if x.dtype.is_floating_point and case.grad and not make.constant:
            x.requires_grad_()
    outputs = case.f(*operands)
    outputs = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
    total = None
    for i, y in enumerate(outputs):
        data[f"{case.name}/y{i}"] = stored(y)
        if case.grad and y.dtype.is_floating_point:
            w = registry.rand(*y.shape)().to(y.dtype)
            data[f"{case.name}/w{i}"] = stored(w)
            if y.requires_grad:
                part = (y * w).sum()
                total = part if total is None else total + part
    wanted = [(i, x) for i, x in enumerate(operands) if x.requires_grad]
    if not wanted:
        return
    assert total is not None, f"{case.name}: no gradient reaches an operand; say grad=False"
    grads = torch.autograd.grad(
        total, [x for _, x in wanted], create_graph=case.twice, allow_unused=True, materialize_grads=True
    )
    again = None
    for (i, x), g in zip(wanted, grads):
        data[f"{case.name}/g{i}"] = stored(g)
        if case.twice:
            v = registry.rand(*g.shape)()
            data[f"{case.name}/v{i}"] = stored(v)
            again = (g * v).sum() if again is None else again + (g * v).sum()
    if case.twice:
        second = torch.autograd.grad(
            again, [x for _, x in wanted], allow_unused=True, materialize_grads=True
        )
        for (i, _), h in zip(wanted, second):
            data[f"{case.name}/h{i}"] = stored(h)


def names_of_closures():
    """What the test binary lists."""
    list_golden = "cargo test -q -p wgrad-tests --test all -- --list golden::"
    return subprocess.run(list_golden.split(), cwd=HERE, check=True, capture_output=True, text=True).stdout


def main():
    partial = "--partial" in sys.argv[1:]
    torch.set_num_threads(1)
    given = [arg.removeprefix("--names=") for arg in sys.argv[1:] if arg.startswith("--names=")]
    listed = Path(given[0]).read_text() if given else names_of_closures()
    closures = {line.removeprefix("golden::").removesuffix(": test") for line in listed.splitlines()}
    data, missing, written = {}, [], 0
    for case in registry.CASES.values():
        if case.name.replace(" ", "_") in closures:
            run(case, data)
            written += 1
        else:
            missing.append(case.name)
    metadata = {
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "safetensors": safetensors.__version__,
        "python": platform.python_version(),
        "cases": str(written),
    }
    packed = gzip.compress(save(data, metadata), compresslevel=9, mtime=0)
    if missing:
        print(f"{len(missing)} cases without a closure:", *missing, sep="\n  ")
        if not partial:
            sys.exit("nothing was written; --partial leaves these out")
    (HERE / "pytorch.safetensors.gz").write_bytes(packed)
    print(f"{written} cases, {len(data)} tensors, {len(packed)} bytes")


if __name__ == "__main__":
    main()

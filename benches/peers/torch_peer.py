#!/usr/bin/env python3
"""The benchmarks' workloads on PyTorch; answers compare.py (see benches/common/serve.rs for what is said).

    torch_peer.py [--device cpu|cuda]
"""
import argparse
import json
import math
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F

BLOCK_MS, WARM_MS = 40.0, 600.0

# f32 is f32: cuDNN's convolutions would round factors to 11 bits by default.
torch.backends.cudnn.allow_tf32 = False
torch.backends.cuda.matmul.allow_tf32 = False


def words(n, salt):
    """24 bits by place and salt, as benches/common/values.rs makes them."""
    out = np.empty(n, np.uint64)
    for start in range(0, n, 1 << 24):
        i = np.arange(start, min(n, start + (1 << 24)), dtype=np.uint64)
        x = ((i + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)) ^ np.uint64((salt << 32) & (2**64 - 1))
        out[start:start + len(i)] = ((x ^ (x >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)) >> np.uint64(40)
    return out


def floats(n, salt, bound):
    return (words(n, salt).astype(np.float64) * (2.0 * bound / 2**24) - bound).astype(np.float32)


def ids(n, salt, bound):
    return (words(n, salt) % np.uint64(bound)).astype(np.int64)


def digest(x):
    x = x.detach().float().cpu().reshape(-1).numpy()
    n = len(x)
    at = range(n) if n <= 257 else [i * (n - 1) // 256 for i in range(257)]
    return {"elems": n, "largest": float(np.abs(x).max(initial=0.0)), "mean": float(x.mean(dtype=np.float64)),
            "samples": [float(x[i]) for i in at]}


def operand(spec, salt, device):
    n = math.prod(spec["dims"])
    if spec["kind"] == "i32":
        x = torch.from_numpy(ids(n, salt, spec["bound"]))
    elif spec["kind"] == "zeros":
        x = torch.zeros(n)
    else:
        x = torch.from_numpy(floats(n, salt, 0.5))
    x = x.reshape(spec["dims"]).to(device)
    return x.half() if spec["kind"] == "f16" else x


def gradients(f, leaves, upstream):
    """Of f(leaves) weighed by upstream."""
    leaves = [x.detach().requires_grad_() for x in leaves]
    return list(torch.autograd.grad(f(*leaves), leaves, upstream))


def layer_norm(x, w, b):
    return F.layer_norm(x, x.shape[-1:], w, b, 1e-5)


def attention(q, k, v):
    q, k, v = (x.unsqueeze(0) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(0)


def transpose(x):
    return torch.mul(x.t(), 2.0, out=torch.empty(x.shape[::-1], dtype=x.dtype, device=x.device))


def cross_entropy(x, t):
    x = x.detach().requires_grad_()
    loss = F.cross_entropy(x, t)
    return [loss, *torch.autograd.grad(loss, [x])]


OPS = {
    "scale": lambda x: [x * 2.0 + 1.0],
    "gelu_chain": lambda x: [F.gelu(2.0 * x + 1.0) + x],
    "sum": lambda x: [x.sum()],
    "cumsum": lambda x: [x.cumsum(0)],
    "sort": lambda x: [x.sort().values],
    "matmul": lambda a, b: [a @ b],
    "matmul_gelu": lambda a, b, c: [F.gelu(a @ b + c)],
    "matmul_gelu_backward": lambda x, w, g: gradients(lambda x: F.gelu(x) @ w, [x], g),
    "matmul_residual": lambda a, b, c, r: [(a @ b + c).float() + r],
    "matmul_turned_right": lambda a, b: [a @ b.t()],
    "matmul_turned_left": lambda a, b: [a.t() @ b],
    "softmax": lambda x: [x.softmax(1)],
    "softmax_backward": lambda x, g: gradients(lambda x: x.softmax(1), [x], g),
    "layer_norm": lambda x, w, b: [layer_norm(x, w, b)],
    "layer_norm_backward": lambda x, w, b, g: gradients(layer_norm, [x, w, b], g),
    "sum_rows": lambda x: [x.sum(0)],
    "sum_columns": lambda x: [x.sum(1)],
    "transpose": lambda x: [transpose(x)],
    "cross_entropy": cross_entropy,
    "embedding": lambda w, i: [F.embedding(i, w)],
    "embedding_backward": lambda w, i, g: gradients(lambda w: F.embedding(i, w), [w], g),
    "gather": lambda w, i: [w.index_select(0, i)],
    "index_add": lambda w, i, x: [w.index_add(0, i, x)],
    "attention": lambda q, k, v: [attention(q, k, v)],
    "attention_backward": lambda q, k, v, g: gradients(attention, [q, k, v], g),
    "conv2d": lambda x, k: [F.conv2d(x, k, padding=1)],
    "conv2d_backward": lambda x, k, g: list(torch.ops.aten.convolution_backward(
        g, x, k, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]))[:2],
}


class Kernel:
    def __init__(self, row, device):
        size = sum(math.prod(i["dims"]) * (2 if i["kind"] == "f16" else 4) for i in row["inputs"])
        one = [operand(spec, salt, device) for salt, spec in enumerate(row["inputs"])]
        count = min(16, max(1, (64 << 20) // max(1, size)))
        self.copies = [one] + [[x.clone() for x in one] for _ in range(count - 1)]
        self.at = 0
        if row["op"] == "adamw":
            self.optims = []
            for copy in self.copies:
                copy[0] = copy[0].requires_grad_()
                copy[0].grad = copy[1]
                self.optims.append(torch.optim.AdamW([copy[0]], lr=1e-3, weight_decay=0.01, fused=True))
            self.run = self.adamw
        else:
            op = OPS[row["op"]]
            self.run = lambda copy: op(*self.copies[copy])

    def adamw(self, copy):
        self.optims[copy].step()
        return [self.copies[copy][0]]

    def results(self):
        return [digest(x) for x in self.run(0)]

    def once(self):
        self.at = (self.at + 1) % len(self.copies)
        return self.run(self.at)


def mlp(model, p, x):
    for i in range(0, len(p), 2):
        x = x @ p[i] + p[i + 1]
        if i + 2 < len(p):
            x = x.relu()
    return x


def gpt(model, p, words):
    p = iter(p)
    x = F.embedding(words, next(p)) + next(p)
    width, heads = model["width"], model["heads"]

    def norm(x):
        return F.layer_norm(x, [width], next(p), next(p), 1e-5)

    def linear(x):
        return F.linear(x, next(p).t(), next(p))

    for _ in range(model["layers"]):
        b, t, _ = x.shape
        q, k, v = (y.view(b, t, heads, width // heads).transpose(1, 2) for y in linear(norm(x)).split(width, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + linear(y.transpose(1, 2).reshape(b, t, width))
        x = x + linear(F.gelu(linear(norm(x))))
    return (norm(x) @ next(p)).flatten(0, 1)


def resnet18(model, p, x):
    p = iter(p)

    def conv(x, stride):
        w = next(p)
        y = F.conv2d(x, w, stride=stride, padding=w.shape[2] // 2)
        running = torch.zeros(w.shape[0], device=x.device), torch.ones(w.shape[0], device=x.device)
        return F.batch_norm(y, *running, next(p), next(p), training=True)

    x = conv(x, 1).relu()
    for block in range(8):
        stride = 2 if block in (2, 4, 6) else 1
        y = conv(conv(x, stride).relu(), 1)
        x = (y + (conv(x, 2) if stride == 2 else x)).relu()
    return x.mean((2, 3)) @ next(p) + next(p)


class Step:
    def __init__(self, row, device):
        self.model = model = row["model"]
        self.device = device
        self.params = []
        for place, spec in enumerate(row["params"]):
            n = math.prod(spec["dims"])
            x = floats(n, 1000 + place, spec["bound"]) if spec["bound"] else np.full(n, spec["fill"], np.float32)
            self.params.append(torch.from_numpy(x).reshape(spec["dims"]).to(device).requires_grad_())
        self.net = {"mlp": mlp, "gpt": gpt, "resnet18": resnet18}[model["model"]]
        dims, bound = row["batch"]
        batch = ids(math.prod(dims), 1, bound) if bound else floats(math.prod(dims), 1, 0.5)
        self.batch = torch.from_numpy(batch).reshape(dims).to(device)
        self.targets = torch.from_numpy(ids(row["labels"][0], 2, row["labels"][1])).to(device)
        optim = row["optim"]
        if optim["optim"] == "adamw":
            self.optim = torch.optim.AdamW(self.params, lr=optim["lr"], weight_decay=0.01, fused=True)
        else:
            self.optim = torch.optim.SGD(self.params, lr=optim["lr"], momentum=0.9, fused=True)

    def once(self):
        self.optim.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.model.get("mixed", False)):
            loss = F.cross_entropy(self.net(self.model, self.params, self.batch).float(), self.targets)
        loss.backward()
        self.optim.step()
        return loss.detach()

    def results(self):
        return [digest(torch.stack([self.once() for _ in range(3)]))]


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(args.parse_args().device)
    cuda = device.type == "cuda"
    name = torch.cuda.get_device_name() if cuda else f"{torch.get_num_threads()} threads"
    say = lambda x: print(json.dumps(x), flush=True)
    say({"peer": f"PyTorch {torch.__version__}", "device": name})
    sync = torch.cuda.synchronize if cuda else lambda: None
    work, each_ms = None, 1.0

    def run(times):
        # Results live until all have run, as with the others.
        kept = []
        start = time.perf_counter()
        for _ in range(times):
            kept.append(work.once())
            if len(kept) > 4:
                kept.pop(0)
        sync()
        return (time.perf_counter() - start) * 1e3 / times

    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if asked["do"] == "open":
                work, row = None, asked["row"]
                start = time.perf_counter()
                work = (Step if row["op"] == "step" else Kernel)(row, device)
                results = work.results()
                first_ms, begin = (time.perf_counter() - start) * 1e3, time.perf_counter()
                while (time.perf_counter() - begin) * 1e3 < WARM_MS:
                    each_ms = run(3)
                say({"first_ms": first_ms, "results": results})
            elif asked["do"] == "turn":
                begin, all_ms = time.perf_counter(), []
                while not all_ms or time.perf_counter() - begin < asked["seconds"]:
                    each_ms = run(min(20000, max(1, math.ceil(BLOCK_MS / each_ms))))
                    all_ms.append(each_ms)
                say({"ms": all_ms})
            else:
                work = None
                say({})
        except Exception as error:  # whatever it is, the driver hears of it
            work = None
            say({"no": f"{type(error).__name__}: {error}"[:300]})


if __name__ == "__main__":
    main()

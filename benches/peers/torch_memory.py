#!/usr/bin/env python3
"""Peak memory of a training step of the GPT in PyTorch eager; `step` prints wgrad's.

With CUDA it is what the allocator says it gave out at most. Without, PyTorch's own tracker follows tensors that hold
nothing, which needs no time and tells what tensors take.
"""
import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, width = x.shape
        parts = self.qkv(self.norm1(x)).split(width, 2)
        q, k, v = (y.view(b, t, self.heads, width // self.heads).transpose(1, 2) for y in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, layers, width, heads, tokens, vocabulary):
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Parameter(torch.zeros(tokens, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, words):
        return self.head(self.norm(self.blocks(self.words(words) + self.places))).flatten(0, 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    sizes = {"layers": 12, "width": 768, "heads": 12, "tokens": 1024, "vocabulary": 32000, "batch": 8}
    for name, size in sizes.items():
        parser.add_argument("--" + name, type=int, default=size)
    args = parser.parse_args()
    if torch.cuda.is_available():
        for how in ({"fused": True}, {"foreach": True}):
            print(f"{allocated_bytes(args, how) / 2**20:.0f} MiB allocated at most, AdamW {next(iter(how))}, "
                  f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    else:
        tracked(args)


def made(args, device, **how):
    with torch.device(device):
        model = Gpt(args.layers, args.width, args.heads, args.tokens, args.vocabulary)
        words = torch.randint(0, args.vocabulary, (args.batch, args.tokens))
        targets = torch.randint(0, args.vocabulary, (args.batch * args.tokens,))
    return model, torch.optim.AdamW(model.parameters(), **how), words, targets


def step(model, optim, words, targets):
    optim.zero_grad(set_to_none=True)
    F.cross_entropy(model(words), targets).backward()
    optim.step()


def allocated_bytes(args, how):
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    parts = made(args, "cuda", **how)
    # The optimizer's moments are there from the second step on.
    for _ in range(3):
        step(*parts)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def tracked(args):
    with FakeTensorMode():
        parts = made(args, "cpu", foreach=False)
        tracker = MemTracker()
        tracker.track_external(*parts)
        with tracker:
            for _ in range(2):
                step(*parts)
                tracker.reset_mod_stats()
        tracker.display_snapshot("peak", units="MiB", tabulate=False)


if __name__ == "__main__":
    main()

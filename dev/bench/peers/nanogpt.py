#!/usr/bin/env python3
"""nanogpt.py NANOGPT_DIR LAYERS HEADS DIM VOCAB BATCH SEQ STEPS - training steps of nanoGPT on the CPU, in milliseconds.

Four variants take turns, step by step: eager and compiled, fp32 and bf16 autocast. A step is what its train.py does:
forward, backward, clipping at 1, AdamW. One line each: name, tab, milliseconds."""
import contextlib
import io
import sys
import time

import torch

sys.path.insert(0, sys.argv[1])
layers, heads, dim, vocab, batch, seq, steps = map(int, sys.argv[2:9])
with contextlib.redirect_stdout(io.StringIO()):
    from model import GPT, GPTConfig

torch.manual_seed(1)
x = torch.randint(vocab, (batch, seq))
y = torch.randint(vocab, (batch, seq))


class Variant:
    def __init__(self, compiled, bf16):
        self.name = f"nanoGPT, PyTorch {torch.__version__.split('+')[0]} {'compiled' if compiled else 'eager'} " + (
            "bf16" if bf16 else "fp32")
        with contextlib.redirect_stdout(io.StringIO()):
            model = GPT(GPTConfig(block_size=seq, vocab_size=vocab, n_layer=layers, n_head=heads, n_embd=dim,
                                  dropout=0.0, bias=True))
            self.optimizer = model.configure_optimizers(0.1, 6e-4, (0.9, 0.95), "cpu")
        self.weights = list(model.parameters())
        self.model = torch.compile(model) if compiled else model
        self.bf16 = bf16

    def step(self):
        begin = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.bf16):
            _, loss = self.model(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        loss.item()
        return 1e3 * (time.perf_counter() - begin)


variants = []
for compiled in (False, True):
    for bf16 in (False, True):
        v = Variant(compiled, bf16)
        try:
            v.step(), v.step()                          # the first two compile and allocate
            variants.append(v)
        except Exception as e:                          # no C++ compiler, an operation without bf16: said, not hidden
            print(f"{v.name}: left out: {str(e).splitlines()[0][:100]}", file=sys.stderr)
for _ in range(steps):
    for v in variants:
        print(f"{v.name}\t{v.step():.2f}", flush=True)

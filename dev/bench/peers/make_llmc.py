#!/usr/bin/env python3
"""make_llmc.py DIR - what llm.c's train_gpt2 reads: GPT-2 124M with random weights, and random tokens. No library."""
import array
import os
import random
import sys

root = sys.argv[1]
T, V, L, H, C, Vp = 1024, 50257, 12, 12, 768, 50304
noise = array.array("f", (random.gauss(0, 0.02) for _ in range(1 << 20))).tobytes()
one = array.array("f", [1.0])


def header(*values):
    return array.array("i", list(values) + [0] * (256 - len(values))).tobytes()


def write(out, count, ones):
    if ones:
        out.write((one * count).tobytes())
        return
    for left in range(4 * count, 0, -len(noise)):
        out.write(noise[:left])


# (elements, whether they are 1): the weights of the norms are, everything else is small noise.
tensors = [(Vp * C, False), (T * C, False), (L * C, True), (L * C, False), (L * 3 * C * C, False), (L * 3 * C, False),
           (L * C * C, False), (L * C, False), (L * C, True), (L * C, False), (L * 4 * C * C, False), (L * 4 * C, False),
           (L * C * 4 * C, False), (L * C, False), (C, True), (C, False)]
with open(root + "/gpt2_124M.bin", "wb") as out:
    out.write(header(20240326, 3, T, V, L, H, C, Vp))
    for count, ones in tensors:
        write(out, count, ones)

folder = root + "/dev/data/tinyshakespeare"
os.makedirs(folder, exist_ok=True)
for name in ("train", "val"):
    tokens = array.array("H", (random.randrange(V) for _ in range(1 << 17)))
    with open(f"{folder}/tiny_shakespeare_{name}.bin", "wb") as out:
        out.write(header(20240520, 1, len(tokens)))
        out.write(tokens.tobytes())

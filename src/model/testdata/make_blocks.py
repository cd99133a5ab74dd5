"""Golden rows of every block format: random blocks and their values by the `gguf` package (PyPI, 0.19.0).

Each NAME.bin is two rows of 512 columns as stored, then their 1,024 values as little-endian f32.
"""
import pathlib

import gguf
import numpy as np

rng = np.random.default_rng(3)
here = pathlib.Path(__file__).parent
# Byte offsets of the f16 numbers in a block; everything else may be any byte.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
for name, halves in HALVES.items():
    kind = gguf.GGMLQuantizationType[name]
    columns, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (1024 // columns, size), dtype=np.uint8)
    for at in halves:
        values = rng.normal(0, 0.05, len(blocks)).astype(np.float16)
        blocks[:, at:at + 2] = values.view(np.uint8).reshape(-1, 2)
    stored = blocks.reshape(2, -1)
    golden = gguf.dequantize(stored, kind).astype("<f4")
    assert golden.shape == (2, 512)
    (here / f"{name}.bin").write_bytes(stored.tobytes() + golden.tobytes())

"""Writes a checkpoint folder in the published layout, with random bf16 weights of a shape, to measure loading from files.

    python3 bench/write_checkpoint.py FOLDER [--shape llama-3.1-8b]

A folder on tmpfs (/dev/shm) stands for one whose files are in the page cache. Needs numpy; 16 GB take about ten seconds.
"""
import argparse
import json
import pathlib
import struct

import numpy

SHAPES = {  # layers, hidden, heads, kv_heads, head_dim, ffn, vocabulary, context, rope factor, tied
    "llama-3.1-8b": (32, 4096, 32, 8, 128, 14336, 128256, 131072, 8.0, False),
    "llama-3.2-1b": (16, 2048, 32, 8, 64, 8192, 128256, 131072, 32.0, True),
    "tiny": (2, 256, 4, 2, 64, 512, 512, 2048, 8.0, True),
}
BLOCK = 32 << 20  # values that the file's contents are cut from


def tensors(shape):
    """(name, rows, columns) in the order of the file; rows 0: a vector of ones."""
    layers, hidden, heads, kv_heads, head_dim, ffn, vocabulary, _, _, tied = shape
    yield "model.embed_tokens.weight", vocabulary, hidden
    for i in range(layers):
        p = f"model.layers.{i}."
        yield p + "input_layernorm.weight", 0, hidden
        for name, rows, columns in (("self_attn.q_proj", heads * head_dim, hidden), ("self_attn.k_proj", kv_heads * head_dim, hidden),
                                    ("self_attn.v_proj", kv_heads * head_dim, hidden), ("self_attn.o_proj", hidden, heads * head_dim)):
            yield f"{p}{name}.weight", rows, columns
        yield p + "post_attention_layernorm.weight", 0, hidden
        for name, rows, columns in (("gate_proj", ffn, hidden), ("up_proj", ffn, hidden), ("down_proj", hidden, ffn)):
            yield f"{p}mlp.{name}.weight", rows, columns
    yield "model.norm.weight", 0, hidden
    if not tied:
        yield "lm_head.weight", vocabulary, hidden


def config(shape):
    layers, hidden, heads, kv_heads, head_dim, ffn, vocabulary, context, factor, tied = shape
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "intermediate_size": ffn,
            "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim,
            "vocab_size": vocabulary, "max_position_embeddings": context, "rms_norm_eps": 1e-5, "hidden_act": "silu",
            "rope_theta": 500000.0, "tie_word_embeddings": tied, "torch_dtype": "bfloat16",
            "rope_scaling": {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                             "original_max_position_embeddings": 8192}}


def tokenizer(vocabulary):
    """Every byte in the printable alphabet of byte-level vocabularies, then words by number."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    letters = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
    vocab = {letters[b]: b for b in range(256)}
    vocab |= {f"\u0120w{i}": i for i in range(257, vocabulary)} | {"\u0120w": 256}
    return {"version": "1.0", "model": {"type": "BPE", "ignore_merges": True, "merges": ["\u0120 w"], "vocab": vocab},
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}, "decoder": {"type": "ByteLevel"}}


def write(folder, shape):
    """Bytes written."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(shape)))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(shape[6])))
    header, offset = {}, 0
    for name, rows, columns in tensors(shape):
        size = 2 * max(rows, 1) * columns
        header[name] = {"dtype": "BF16", "shape": [rows, columns] if rows else [columns], "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    # Twice over, so that a slice of BLOCK values begins anywhere.
    values = numpy.random.default_rng(1).standard_normal(BLOCK, dtype=numpy.float32) / numpy.float32(shape[1] ** 0.5)
    block = (values.view(numpy.uint32) >> 16).astype(numpy.uint16)
    block = numpy.concatenate([block, block])
    with open(folder / "model.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for number, (name, rows, columns) in enumerate(tensors(shape)):
            if not rows:
                out.write(numpy.full(columns, 0x3f80, numpy.uint16).tobytes())
                continue
            left, begin = rows * columns, number * 7919 * 64 % BLOCK
            while left:
                count = min(left, BLOCK)
                out.write(memoryview(block[begin:begin + count]).cast("B"))
                left -= count
    return offset


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--shape", choices=SHAPES, default="llama-3.1-8b")
    args = parser.parse_args()
    print(write(args.folder, SHAPES[args.shape]), "bytes of weights")

"""Seeds of this room's fuzz targets under tests/fuzz/corpus: small files, right and hostile.

    make_corpus.py SHARED_CASES
"""
import json
import pathlib
import struct
import sys

import gguf
import numpy as np

cases = pathlib.Path(sys.argv[1])
corpus = pathlib.Path(__file__).parents[3] / "tests" / "fuzz" / "corpus"


def write(target, name, data):
    path = corpus / target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


# gguf: the hostile files of section R, and a small right one per architecture.
for line in open(cases / "http" / "cases.jsonl"):
    case = json.loads(line)
    if case["id"] in ("R01", "R03", "R04", "R05"):
        for item in case["input"]:
            if item["do"] == "file":
                write("gguf", case["id"] + "_" + item["name"], bytes.fromhex(item["hex"]))
for arch in ("llama", "qwen2", "qwen3", "gemma3"):
    path = corpus / "gguf" / f"small_{arch}.gguf"
    w = gguf.GGUFWriter(str(path), arch)
    w.add_name("small"), w.add_block_count(1), w.add_context_length(64), w.add_embedding_length(32)
    w.add_feed_forward_length(32), w.add_head_count(2), w.add_head_count_kv(1), w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(1e4), w.add_sliding_window(16)
    w.add_token_list(["a", "b", "c"]), w.add_token_scores([0.0, -1.0, -2.0]), w.add_add_bos_token(True)
    w.add_tensor("token_embd.weight", np.zeros((3, 32), np.float32))
    w.add_tensor("output_norm.weight", np.ones(32, np.float32))
    w.add_tensor("blk.0.attn_q.weight", np.zeros((2, 18), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    w.write_header_to_file(), w.write_kv_data_to_file(), w.write_tensors_to_file(), w.close()

# safetensors: headers of two checkpoints with their tensors shrunk to a few bytes, and broken ones.
def safetensors(header, data):
    text = json.dumps(header).encode() if isinstance(header, dict) else header
    return struct.pack("<Q", len(text)) + text + data


for name in ("llama-tied", "gemma3-local-global"):
    raw = (cases / "tiny" / name / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header, at = json.loads(raw[8:8 + length]), 0
    for key in list(header)[:6]:
        if key != "__metadata__":
            header[key].update(shape=[2], data_offsets=[at, at + 4])
            at += 4
    header = {k: v for k, v in list(header.items())[:6]}
    write("safetensors", name, safetensors(header, bytes(at)))
entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
for name, header, data in [
    ("empty", b"", b""), ("not_json", b"{]", b""), ("array", b"[]", b""), ("short", {"a": entry}, b"\0\0"),
    ("gap", {"a": entry, "b": {**entry, "data_offsets": [8, 12]}}, bytes(12)), ("rest", {"a": entry}, bytes(9)),
    ("overlap", {"a": entry, "b": entry}, bytes(4)),
    ("wraps", {"a": {**entry, "shape": [2**62, 8]}}, bytes(4)), ("negative", {"a": {**entry, "shape": [-1]}}, bytes(4)),
    ("twice", b'{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}', b""),
]:
    write("safetensors", name, safetensors(header, data))
write("safetensors", "huge_header", struct.pack("<Q", 2**63) + b"{}")

# config: every config of the shared checkpoints, and nesting.
for path in sorted((cases / "tiny").glob("*/config.json")):
    write("config", path.parent.name, path.read_bytes())
gemma = json.loads((cases / "tiny" / "gemma3-local-global" / "config.json").read_text())
write("config", "nested", json.dumps({"model_type": "gemma3", "text_config": gemma}).encode())
write("config", "deep", b'{"a":' * 100 + b"1" + b"}" * 100)

"""Layouts as other programs publish them, which `sluice quantize` does not write: FP8 with a scale for a matrix or an output, compressed-tensors
with groups in the order of activations, zero points, several schemes in one model, layers that are ignored. Each folder is made of a tiny model
beside its twin, which holds in float32 what the integers stand for: both compute the same.
"""
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from conftest import ROOT, run_sluice

MODEL = ROOT.parent / "shared" / "cases" / "tiny" / "llama-untied-llama3rope"
E4M3 = torch.float8_e4m3fn


def float8(name, w, per="channel", scale_type=torch.float32, static=False):
    scale = ((w.abs().amax(1, keepdim=True) if per == "channel" else w.abs().max()) / 448).to(scale_type)
    stored = (w / scale.float()).to(E4M3)
    tensors = {name + ".weight": stored, name + ".weight_scale": scale}
    if static:
        tensors[name + ".input_scale"] = torch.tensor(0.02)
    return tensors, stored.float() * scale.float()


def int8(name, w, per="channel", static=False):
    scale = (w.abs().amax(1, keepdim=True) if per == "channel" else w.abs().max().reshape(1)) / 127
    stored = (w / scale).round().clamp(-128, 127).to(torch.int8)
    tensors = {name + ".weight": stored, name + ".weight_scale": scale}
    if static:
        tensors |= {name + ".input_scale": torch.tensor([0.1]), name + ".input_zero_point": torch.tensor([3], dtype=torch.int8)}
    return tensors, stored.float() * scale


def packed(q):
    """Four bits a number, eight of the last axis in an int32."""
    words = sum(q.to(torch.int64).reshape(*q.shape[:-1], -1, 8)[..., i] << 4 * i for i in range(8))
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def int4(name, w, group=32, symmetric=True, in_order=True):
    rows, columns = w.shape
    group = group or columns
    place = torch.arange(columns) if in_order else torch.randperm(columns, generator=torch.Generator().manual_seed(3))
    group_of = torch.empty(columns, dtype=torch.int32)
    group_of[place] = (torch.arange(columns) // group).to(torch.int32)
    grouped = w[:, place].reshape(rows, -1, group)
    if symmetric:
        scale, zero = (grouped.abs().amax(-1) / 7).bfloat16().float(), torch.full(grouped.shape[:2], 8.0)
    else:
        low, high = grouped.amin(-1).clamp(max=0), grouped.amax(-1).clamp(min=0)
        scale = ((high - low) / 15).bfloat16().float()
        zero = (-low / scale).round().clamp(0, 15)
    q = (grouped / scale[..., None] + zero[..., None]).round().clamp(0, 15)
    stored, meant = torch.empty(rows, columns), torch.empty(rows, columns)
    stored[:, place] = q.reshape(rows, columns)
    meant[:, place] = ((q - zero[..., None]) * scale[..., None]).reshape(rows, columns)
    tensors = {name + ".weight_packed": packed(stored), name + ".weight_scale": scale.bfloat16(), name + ".weight_shape": torch.tensor([rows, columns])}
    if not symmetric:
        tensors[name + ".weight_zero_point"] = packed(zero.t()).t()
    if not in_order:
        tensors[name + ".weight_g_idx"] = group_of
    return tensors, meant


def compressed(layout, weights, inputs=None, ignore=("lm_head",), **groups):
    group = {"targets": ["Linear"], "weights": {"dynamic": False, "symmetric": True} | weights, "input_activations": inputs, "output_activations": None}
    return {"quant_method": "compressed-tensors", "format": layout, "quantization_status": "compressed", "config_groups": groups or {"group_0": group},
            "ignore": list(ignore), "kv_cache_scheme": None}


def scheme(bits, kind, strategy, **more):
    return {"num_bits": bits, "type": kind, "strategy": strategy} | more


def only_mlp(name):
    return ".mlp." in name and "layers.1.mlp.down" not in name


FLOAT, INT8, INT4 = scheme(8, "float", "channel"), scheme(8, "int", "channel"), scheme(4, "int", "group", group_size=32)
CASES = {
    "fp8, a scale for the matrix, static activations": ({"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]},
                                                        lambda n, w: float8(n, w, "tensor", static=True), None),
    "fp8, attention left out": ({"quant_method": "fp8", "activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head", "self_attn"]},
                                lambda n, w: float8(n, w, "tensor"), only_mlp),
    "compressed fp8, a scale for each output": (compressed("float-quantized", FLOAT), float8, None),
    "compressed fp8, scales in bf16": (compressed("float-quantized", FLOAT), lambda n, w: float8(n, w, scale_type=torch.bfloat16), None),
    "W8A8": (compressed("int-quantized", INT8, scheme(8, "int", "token", dynamic=True)), int8, None),
    "W8A8, static and asymmetric activations": (compressed("int-quantized", scheme(8, "int", "tensor"), scheme(8, "int", "tensor", symmetric=False)),
                                                lambda n, w: int8(n, w, "tensor", static=True), None),
    "W4A16": (compressed("pack-quantized", INT4), int4, None),
    "W4A16, a scale for each output": (compressed("pack-quantized", scheme(4, "int", "channel")), lambda n, w: int4(n, w, 0), None),
    "W4A16 with zero points": (compressed("pack-quantized", INT4 | {"symmetric": False}), lambda n, w: int4(n, w, symmetric=False), None),
    "W4A16, groups by activations": (compressed("pack-quantized", INT4 | {"actorder": "group"}), lambda n, w: int4(n, w, in_order=False), None),
    "W4A16, layers left out by name and pattern": (compressed("pack-quantized", INT4, ignore=["lm_head", "re:.*self_attn.*", "model.layers.1.mlp.down_proj"]),
                                                   int4, only_mlp),
    "two schemes": (compressed("mixed-precision", {}, group_0={"targets": ["re:.*self_attn.*"], "format": "float-quantized", "weights": FLOAT},
                               group_1={"targets": ["re:.*mlp.*"], "format": "pack-quantized", "weights": INT4}),
                    lambda n, w: float8(n, w) if "self_attn" in n else int4(n, w), None),
}


def write(folder, tensors, quantization=None):
    shutil.copytree(MODEL, folder, copy_function=shutil.copyfile, ignore=shutil.ignore_patterns("*.safetensors", "reference.json"))
    config = json.loads((folder / "config.json").read_text()) | ({"quantization_config": quantization} if quantization else {})
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("case", CASES)
def test_a_published_layout_computes_what_its_integers_stand_for(case, tmp_path):
    quantization, quantize, chosen = CASES[case]
    folder, twin = {}, {}
    for name, w in load_file(MODEL / "model.safetensors").items():
        folder[name] = twin[name] = w.float()
        if name.startswith("model.layers.") and name.endswith("_proj.weight") and (not chosen or chosen(name)):
            tensors, twin[name] = quantize(name.removesuffix(".weight"), w.float())
            del folder[name]
            folder |= tensors
    write(tmp_path / "published", folder, quantization)
    write(tmp_path / "twin", twin)
    text = tmp_path / "text.txt"
    text.write_text("The river rises in the hills and runs through three towns before it reaches the sea. " * 4)
    done = run_sluice("eval", tmp_path / "published", "--baseline", tmp_path / "twin", "--data", text, "--window-tokens", 128, "--batch", 0, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["mean_kl"] < 1e-4  # FP8 becomes bf16 on a CPU

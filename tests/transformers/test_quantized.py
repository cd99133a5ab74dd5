"""What `sluice quantize` writes, read by transformers on the CPU in float32: the tokens that Sluice answers greedily are
those that transformers finds likeliest, given the same tokens before them, wherever its two likeliest are further apart
than the two programs may differ.

The folders are loaded as they are, but for two settings of how to compute: AWQ and GPTQ with gptqmodel's plain torch
kernels, which need no compiler, and FP8 without quantizing activations, which Sluice's CPU kernels keep finer (INT8 needs
them, so its margin is wider). FP8 in blocks is not compared: transformers dequantizes whole blocks only, which no tiny
model has; that layout is held by the tiny case fp8-block128, which comes from transformers.
"""
import json
import os
import pathlib
import random

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # gptqmodel's kernels would be compiled

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from conftest import ROOT, SMOLLM2, Server, run_sluice

TINY = ROOT.parent / "shared" / "cases" / "tiny"
MARGIN, MARGIN_INT8 = 0.02, 0.06  # of the largest logit
FAMILIES = ("llama-untied-llama3rope", "qwen2-bias-tied", "qwen3-qknorm", "gemma3-local-global")
METHODS = {
    "rtn": ("--method", "rtn"),
    "awq": ("--method", "awq"),
    "awq-mlp": ("--method", "awq", "--targets", "mlp"),
    "awq-compressed": ("--method", "awq", "--layout", "compressed-tensors"),
    "gptq": ("--method", "gptq"),
    "int8": ("--method", "int8"),
    "fp8": ("--method", "fp8"),
}


@pytest.fixture(scope="session")
def calibration(tmp_path_factory):
    """Words drawn at random: enough to measure activations of models that know no language."""
    draw = random.Random(1)
    path = tmp_path_factory.mktemp("calibration") / "words.jsonl"
    words = ["river", "stone", "light", "of", "the", "and", "seven", "(x)", "runs", "over"]
    path.write_text("".join(json.dumps({"text": " ".join(draw.choices(words, k=40)), "kind": "words"}) + "\n" for _ in range(16)))
    return path


def quantized(model, method, calibration, folder):
    flags = METHODS[method]
    if flags[1] in ("awq", "gptq", "int8"):
        flags += ("--calibration", calibration, "--samples", "8", "--sample-tokens", "64")
    done = run_sluice("quantize", model, "-o", folder, *flags, timeout=3600)
    assert done.returncode == 0, done.stderr
    return folder


def load(folder):
    config = AutoConfig.from_pretrained(folder)
    settings = config.quantization_config
    if settings["quant_method"] in ("awq", "gptq"):
        settings["backend"] = "torch_awq" if settings["quant_method"] == "awq" else "torch"
    elif settings["format"] == "float-quantized":
        settings["config_groups"]["group_0"]["input_activations"] = None
    return AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32, device_map="cpu")


def compare(folder, prompts, count, margin=MARGIN):
    server = Server(folder, "--ctx", 512)
    try:
        answers = []
        for prompt in prompts:
            status, body = server.post("/v1/completions", {"prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": True,
                                                           "return_token_ids": True})
            assert status == 200, body
            answers.append(body["choices"][0]["token_ids"])
    finally:
        assert server.stop()[0] == 0
    model, compared = load(folder), 0
    for prompt, answer in zip(prompts, answers):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1:-1].float()
        for position, id in enumerate(answer):
            behind = (logits[position].max() - logits[position, id]).item()
            assert behind <= margin * logits[position].abs().max().item(), (position, id, behind)
            compared += behind == 0
    assert compared > 0.8 * sum(map(len, answers))  # ties within the margin are the exception


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_answers_are_those_of_transformers(family, method, calibration, tmp_path):
    folder = quantized(TINY / family, method, calibration, tmp_path / "model")
    compare(folder, [[5, 99, 7, 200, 31, 12], list(range(40, 70))], 16, MARGIN_INT8 if method == "int8" else MARGIN)


def test_a_gguf_file_becomes_a_folder_with_its_tokenizer(calibration, tmp_path):
    folder = quantized(SMOLLM2, "awq", calibration, tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "The river rises in 1984 meters;\n\tit's   long. Ünïcode 河 🙂 <|im_end|>"
    server = Server(folder, "--ctx", 512)
    try:
        ours = server.post("/tokenize", {"content": text, "add_special": False, "parse_special": True})[1]["tokens"]
    finally:
        server.stop()
    assert tokenizer(text, add_special_tokens=False).input_ids == ours
    assert tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False).startswith("<|im_start|>")
    compare(folder, [tokenizer("The river rises in").input_ids], 16)

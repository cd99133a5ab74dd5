"""Devices and made-up models, as a user without a card meets them."""
import json
import os
import subprocess

import pytest

from conftest import GEMMA, SLUICE, SMOLLM2, run_sluice

# SLUICE_BINARY may be a build with CUDA on a machine with a card: what is said without one cannot be seen there.
no_card = pytest.mark.skipif(os.path.exists("/dev/nvidia0"), reason="a card is here")


def test_a_made_up_model_serves(start):
    server = start("--dummy=smollm2-135m")
    model = server.get("/v1/models")[1]["data"][0]["id"]
    assert model == "dummy:smollm2-135m"
    answer = server.post("/v1/completions", {"prompt": [5, 4000, 49151], "max_tokens": 6, "temperature": 0, "return_token_ids": True})[1]
    ids = answer["choices"][0]["token_ids"]
    assert len(ids) == 6 and answer["choices"][0]["finish_reason"] == "length"
    assert answer["choices"][0]["text"] == server.post("/detokenize", {"tokens": ids})[1]["content"]
    # Any id stands for something, and text comes back as it went in.
    every = server.post("/detokenize", {"tokens": list(range(33, 49152, 997))})[1]["content"]
    assert len(every) > 49
    text = 'Words, "quotes" and \\ — Ünïcödé\n'
    ids = server.post("/tokenize", {"content": text})[1]["tokens"]
    assert server.post("/detokenize", {"tokens": ids})[1]["content"] == text
    assert server.stop()[0] == 0


def test_the_null_model_answers_each_api_at_once(start):
    server = start("--dummy=null")
    chat = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 3, "temperature": 0}
    status, answer = server.post("/v1/chat/completions", chat)
    assert status == 200 and answer["usage"]["completion_tokens"] == 3 and answer["choices"][0]["message"]["content"].count(" ") == 3
    text = "".join(e["choices"][0]["delta"].get("content", "") for e in server.stream("/v1/chat/completions", chat).events() if e != "[DONE]")
    assert text == answer["choices"][0]["message"]["content"]
    held = {**chat, "max_tokens": 200, "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": ["left", "right"]}}}}
    assert json.loads(server.post("/v1/chat/completions", held)[1]["choices"][0]["message"]["content"]) in ("left", "right")
    assert server.stop()[0] == 0


def test_load_on_a_made_up_model(start):
    server = start("--dummy=smollm2-135m:int8", "--max-sequences", "4")
    done = run_sluice("bench", "serve", "--url", server.url, "--concurrency", "4", "--requests", "8", "--input-tokens", "20",
                      "--output-tokens", "6", "--json")
    assert json.loads(done.stdout)["completed"] == 8 and json.loads(done.stdout)["output_tokens"] == 48


@pytest.mark.parametrize("args, said", [
    (("run", "--dummy", "smollm2-135", "-p", "x"), "unknown shape"),
    (("serve", "--dummy", "llama-3.1-8b:int5"), "the format must be"),
    (("serve", "m.gguf", "--dummy", "llama-3.1-8b"), "not both"),
    (("bench", "engine"), "MODEL or --dummy"),
])
def test_wrong_shapes_are_wrong_use(args, said):
    done = run_sluice(*args)
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1


@no_card
@pytest.mark.parametrize("command", [("serve", SMOLLM2), ("run", SMOLLM2, "-p", "x"), ("bench", "engine", SMOLLM2), ("inspect", SMOLLM2),
                                     ("serve", SMOLLM2, "--dry-run")])
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_without_a_card_cuda_is_refused_in_one_line(command, device):
    port = ("--port", "0") if command[0] == "serve" else ()
    done = run_sluice(*command, *port, "--device", device)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("sluice: ") and "--device cpu" in last


@no_card
def test_auto_says_that_it_is_the_cpu_and_why(start):
    server = start(SMOLLM2)
    status, log = server.stop()
    assert status == 0
    line = next(line for line in log.splitlines() if "device: the CPU" in line)
    assert "no card: " in line


def test_dry_run_and_inspect_name_the_device():
    for command in (("serve", GEMMA, "--dry-run", "--device", "cpu"), ("inspect", GEMMA, "--device", "cpu")):
        done = run_sluice(*command)
        line = next(line for line in done.stdout.splitlines() if line.startswith("  device "))
        assert "threads" in line and "GB free" in line


def test_inspect_opens_a_device_only_where_one_is_named():
    plain = json.loads(run_sluice("inspect", GEMMA, "--json").stdout)
    named = json.loads(run_sluice("inspect", GEMMA, "--json", "--device", "cpu").stdout)
    assert plain["device"] is None and "threads" in named["device"]
    assert plain["memory"]["weight_bytes"] == named["memory"]["weight_bytes"] > 0


@pytest.mark.parametrize("tokens, status", [(65536, 2), (65535, 0)])
def test_a_steps_rows_are_bounded(tokens, status):
    assert run_sluice("serve", GEMMA, "--dry-run", "--device", "cpu", "--step-tokens", str(tokens)).returncode == status


def test_the_binary_links_no_driver():
    """One file for machines with a card and without: nothing of NVIDIA's is needed to start it."""
    needed = subprocess.run(["ldd", str(SLUICE)], capture_output=True, text=True, check=True).stdout
    assert not any(name in needed for name in ("libcuda", "libnvidia", "libcublas", "libstdc++"))

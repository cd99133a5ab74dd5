"""Measures scheduling through HTTP: policies under a burst, the prefix cache, a long prompt among streams, lanes.

    python3 bench/scheduling.py [--model models/SmolLM2-135M-Instruct.Q4_1.gguf | --shape llama-3.1-8b] [--device cuda|cpu]
                                [--only burst,prefix,long,lanes] [--small] [--out $OUT] [--budget 300]

Every part compares settings side by side in one run; servers are started one after the other. --small: a few requests
of a few tokens, for a CPU. The tables go to standard output, every JSON object and the servers' logs to --out.
"""
import argparse
import json
import os
import pathlib
import sys
import threading
import time
import time

from h200 import get, run_json, running

# A burst: requests at once, prompt, answer; of the serial policy fewer requests, as it takes their sum.
BURST = {False: (512, 512, 128, 32), True: (48, 64, 24, 12)}
# Shared system prompt: requests, of these without the cache, concurrency, shared tokens, own tokens, answer.
PREFIX = {False: (1000, 300, 64, 2048, 128, 64), True: (24, 24, 4, 1024, 32, 16)}
# Streams, their prompt and answer, and the one long prompt that arrives among them.
LONG = {False: (16, 32, 512, 32000), True: (4, 16, 192, 4000)}
# Interactive: requests a second, how many, prompt, answer. The burst of the batch lane: requests, prompt, answer.
LANES = {False: (16, 240, 128, 64, 768, 512, 128), True: (0.5, 16, 32, 16, 48, 64, 32)}

POLICIES = {
    "continuous": [],
    "windowed, dynamic_batching": ["--set", "inference.dynamic_batching.enabled=true"],
    "windowed, sliding": ["--set", "scheduler.policy=windowed"],
    "serial": ["--set", "scheduler.policy=serial"],
}


def bench_command(args, url, requests, tokens_in, tokens_out, *more):
    return [args.sluice, "bench", "serve", "--url", url, "--requests", str(requests), "--input-tokens", str(tokens_in),
            "--output-tokens", str(tokens_out), *more, "--json"]


def model_of(args):
    return [args.model] if args.model else ["--dummy", args.shape]


def row(name, r):
    ttft, itl, e2e = r["ttft_ms"], r["itl_ms"], r["e2e_ms"]
    print(f"{name:28}{r['qps']:>8.2f}{r['output_tok_s']:>8.0f}{ttft['mean']:>9.1f}{ttft['p99']:>8.0f}{itl['p50']:>9.3f}"
          f"{itl['p99']:>8.2f}{e2e['p50']:>9.0f}{e2e['p95']:>8.0f}{r['failed']:>5}", flush=True)


HEAD = f"{'':28}{'QPS':>8}{'tok/s':>8}{'TTFT':>9}{'p99':>8}{'ITL p50':>9}{'p99':>8}{'e2e p50':>9}{'p95':>8}{'fail':>5}"


def with_server(args, name, flags, measure):
    args.serve_flags = [*args.settings, *flags]
    with running(args, model_of(args), name.replace(" ", "_").replace(",", "")) as (url, _):
        if url:
            # One small load first: code that is loaded and caches that are filled at the first request are not what is compared.
            run_json(args, bench_command(args, url, 4, 32, 4, "--concurrency", "4"), name + " warm", 60)
            measure(url)


def burst(args):
    requests, tokens_in, tokens_out, serial = BURST[args.small]
    print(f"\nburst of {requests} requests, {tokens_in} in, {tokens_out} out (serial: {serial})\n{HEAD}")
    for name, flags in POLICIES.items():
        count = serial if name == "serial" else requests

        def measure(url):
            r = run_json(args, bench_command(args, url, count, tokens_in, tokens_out, "--concurrency", str(count)), "burst " + name, 120)
            if r:
                row(name, r)
                shares = json.loads(get(url + "/v1/requests/attribution?window_s=600"))
                (args.out / f"attribution {name}.json".replace(" ", "_")).write_text(json.dumps(shares))
                print("   " + attribution_line(shares))

        with_server(args, "burst " + name, flags, measure)


def attribution_line(answer):
    return ", ".join(f"{span['name']} {100 * span['share']:.1f} %" for span in answer["spans"] if span["share"] >= 0.0005)


def prefix(args):
    requests, fewer, concurrency, shared, own, tokens_out = PREFIX[args.small]
    print(f"\n{requests} requests (without the cache {fewer}), {concurrency} at a time, {shared} shared tokens + {own}, {tokens_out} out\n{HEAD}")
    for name, value in (("prefix cache", "true"), ("without", "false")):
        def measure(url):
            count = requests if value == "true" else fewer
            r = run_json(args, bench_command(args, url, count, shared + own, tokens_out, "--concurrency", str(concurrency),
                                             "--shared-prefix", str(shared)), "prefix " + name, 150)
            if r:
                row(name, r)
                print("   " + "  ".join(line for line in get(url + "/metrics").splitlines() if line.startswith("sluice_prefix_cache")))

        with_server(args, "prefix " + name, ["--set", f"kv.prefix_cache={value}"], measure)


def long(args):
    streams, tokens_in, tokens_out, prompt = LONG[args.small]
    print(f"\n{streams} streams of {tokens_in} in, {tokens_out} out; a prompt of {prompt} tokens arrives among them\n{HEAD}")

    def measure(url):
        load = bench_command(args, url, streams, tokens_in, tokens_out, "--concurrency", str(streams))
        alone = run_json(args, load, "streams alone", 90)
        if not alone:
            return
        row("undisturbed", alone)
        answers = {}
        other = threading.Thread(target=lambda: answers.update(run_json(args, load + ["--seed", "2"], "streams disturbed", 90) or {}))
        other.start()
        wait_running(url, streams)
        arrived = run_json(args, bench_command(args, url, 1, prompt, 2, "--concurrency", "1"), "long prompt", 90)
        other.join()
        row("with the long prompt", answers)
        if arrived:
            print(f"   the long prompt's first token after {arrived['ttft_ms']['mean']:.0f} ms; ITL p99 "
                  f"{answers['itl_ms']['p99'] / alone['itl_ms']['p99']:.2f} x the undisturbed, "
                  f"{answers['itl_ms']['p99'] / alone['itl_ms']['p50']:.2f} x its median")

    with_server(args, "long prompt", [], measure)


def wait_running(url, count):
    end = time.monotonic() + 30
    while time.monotonic() < end:
        for line in get(url + "/metrics").splitlines():
            if line.startswith("sluice_requests_running") and float(line.split()[-1]) >= count:
                return
        time.sleep(0.05)


def lanes(args):
    rate, count, tokens_in, tokens_out, batch, batch_in, batch_out = LANES[args.small]
    print(f"\ninteractive: {rate} a second, {tokens_in} in, {tokens_out} out; a burst of {batch} in lane batch ({batch_in}/{batch_out})\n{HEAD}")

    def measure(url):
        load = bench_command(args, url, count, tokens_in, tokens_out, "--rate", str(rate), "--priority", "interactive")
        flood = bench_command(args, url, batch, batch_in, batch_out, "--concurrency", str(batch), "--priority", "batch")
        answers = {}
        for name, disturbed in (("interactive alone", False), ("beside the burst", True)):
            if disturbed:
                other = threading.Thread(target=lambda: answers.update(run_json(args, flood, "batch lane", 120) or {}))
                other.start()
            r = run_json(args, load, name, 120)
            if r:
                row(name, r)
            if disturbed:
                other.join()
        if answers:
            row("the burst itself", answers)

    with_server(args, "lanes", [], measure)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sluice", default="build/release/sluice")
    parser.add_argument("--out", type=pathlib.Path, default=os.environ.get("OUT", "build/scheduling"))
    parser.add_argument("--model", default="", help="a model file; without: made-up weights of --shape")
    parser.add_argument("--shape", default="llama-3.1-8b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--port", type=int, default=18081)
    parser.add_argument("--only", default="burst,prefix,long,lanes")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--budget", type=float, default=540, help="seconds in all")
    parser.add_argument("--settings", type=str.split, default=[], help="more flags for every server, in one argument")
    args = parser.parse_args()
    args.flags, args.serve_flags = [], []
    args.out.mkdir(parents=True, exist_ok=True)
    for part in args.only.split(","):
        {"burst": burst, "prefix": prefix, "long": long, "lanes": lanes}[part](args)


if __name__ == "__main__":
    sys.exit(main())

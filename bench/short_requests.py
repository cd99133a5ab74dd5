"""Short requests at a high rate for real: 5,000 a second of 32 tokens in and 1 out on the llama-3.2-1b shape, under each batching
policy, and beside it what `sluice bench simulate` says of the same.

    python3 bench/short_requests.py --device cuda                 # the card
    python3 bench/short_requests.py --model models/SmolLM2-135M-Instruct.Q4_1.gguf --device cpu --rate 20 --seconds 10
"""
import argparse
import json
import shlex
import subprocess
import sys

import h200

SETTINGS = {
    "continuous": [],
    "windowed 200/128/50/100": ["scheduler.policy=windowed"],
    "windowed 200/128/10/50": ["scheduler.policy=windowed", "scheduler.window.min_trigger_interval_ms=10", "scheduler.window.batch_timeout_ms=50"],
    "dynamic 32/15": ["inference.dynamic_batching.enabled=true"],
}


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sluice", default="build/release/sluice")
    p.add_argument("--model", help="default: made-up weights of --shape")
    p.add_argument("--shape", default="llama-3.2-1b")
    p.add_argument("--device", default="cuda")
    p.add_argument("--rate", type=float, default=5000)
    p.add_argument("--seconds", type=float, default=5)
    p.add_argument("--port", type=int, default=8795)
    p.add_argument("--only", help="settings by name, comma-separated")
    p.add_argument("--flags", default="--set server.network_threads=6 --set log.level=warn", help="for serve")
    return p.parse_args()


def main():
    args = parse()
    model = [args.model] if args.model else ["--dummy", args.shape]
    url = f"http://127.0.0.1:{args.port}"
    requests = int(args.rate * args.seconds)
    short = ["--input-tokens", "32", "--output-tokens", "1", "--requests", str(requests)]
    print(f"{'setting':26}{'':11}{'requests/s':>11}{'mean ms':>9}{'p50':>8}{'p95':>8}{'p99':>8}{'failed':>8}{'sent late p99 ms':>18}")
    for name, settings in SETTINGS.items():
        if args.only and name.split()[0] not in args.only.split(","):
            continue
        sets = [word for setting in settings for word in ("--set", setting)]
        server = subprocess.Popen([args.sluice, "serve", *model, "--device", args.device, "--port", str(args.port), *sets, *shlex.split(args.flags)],
                                  stdout=subprocess.DEVNULL)
        try:
            if not h200.wait_ready(server, url, 60):
                sys.exit("the server did not become ready")
            load = [args.sluice, "bench", "serve", "--url", url, "--rate", str(args.rate), *short, "--json"]
            rows = {"measured": subprocess.run(load, capture_output=True, text=True, timeout=args.seconds * 4 + 30)}
        finally:
            server.terminate()
            server.wait(timeout=60)
        if not args.model and args.device.startswith("cuda"):
            rows["simulated"] = subprocess.run([args.sluice, "bench", "simulate", *model, "--card", "h200", "--arrivals", f"poisson:{args.rate}",
                                                *short, *sets, "--json"], capture_output=True, text=True)
        for source, done in rows.items():
            if done.returncode:
                print(f"{name:26}{source}: {done.stderr.strip()[-300:]}", flush=True)
                continue
            r = json.loads(done.stdout)
            e = r["e2e_ms"]
            late = r.get("sent_late_ms")
            print(f"{name:26}{source:11}{r['qps']:>11.0f}{e['mean']:>9.1f}{e['p50']:>8.1f}{e['p95']:>8.1f}{e['p99']:>8.1f}{r['failed']:>8}"
                  f"{late['p99'] if late else 0:>18.1f}", flush=True)


if __name__ == "__main__":
    main()

"""Does `sluice bench simulate` predict what `sluice bench serve` measures? One server records its steps under two loads; step
times are fitted to those of one load, and both loads are simulated from them. Prints measured, predicted and their ratio.

    python3 bench/prediction.py models/SmolLM2-135M-Instruct.Q4_1.gguf --flags "--ctx 2048 --threads 2" \
        --loads closed:8,64 poisson:1,40 --input 64 --output 32
    python3 bench/prediction.py --dummy llama-3.1-8b --flags "--device cuda" --loads closed:128,768 closed:32,192 --card h200
"""
import argparse
import json
import pathlib
import shlex
import subprocess
import sys
import tempfile

import h200


def parse(argv):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", nargs="?")
    p.add_argument("--dummy")
    p.add_argument("--sluice", default="build/release/sluice")
    p.add_argument("--flags", default="", help="for serve")
    p.add_argument("--loads", nargs=2, required=True, help="closed:CONCURRENCY,REQUESTS or poisson:RATE,REQUESTS; the first is fitted")
    p.add_argument("--input", type=int, default=512)
    p.add_argument("--output", type=int, default=128)
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--port", type=int, default=8790)
    p.add_argument("--card", help="simulate by this card's limits too (--dummy only)")
    p.add_argument("--keep", type=pathlib.Path, help="a folder for the records")
    args = p.parse_args(argv)
    if bool(args.model) == bool(args.dummy):
        p.error("give MODEL or --dummy SHAPE")
    args.model_flags = ["--dummy", args.dummy] if args.dummy else [args.model]
    return args


def output_of(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{shlex.join(map(str, command))}: exit {done.returncode}: {done.stderr.strip()[-800:]}")
    return json.loads(done.stdout)


def measure(args, load, records):
    """A server of its own under one load: its records hold that load and nothing else."""
    kind, numbers = load.split(":")
    number, requests = numbers.split(",")
    url = f"http://127.0.0.1:{args.port}"
    server = subprocess.Popen([args.sluice, "serve", *args.model_flags, "--port", str(args.port), "--record-steps", records,
                               *shlex.split(args.flags)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        if not h200.wait_ready(server, url, 120):
            sys.exit("the server did not become ready")
        return output_of([args.sluice, "bench", "serve", "--url", url, "--concurrency" if kind == "closed" else "--rate", number,
                          "--requests", requests, "--input-tokens", args.input, "--output-tokens", args.output, "--json"])
    finally:
        server.terminate()
        server.wait(timeout=60)


def simulate(args, load, source):
    arrivals, requests = load.split(",")
    return output_of([args.sluice, "bench", "simulate", *source, "--arrivals", arrivals, "--requests", requests, "--input-tokens", args.input,
                      "--output-tokens", args.output, "--json"])


def main():
    args = parse(sys.argv[1:])
    folder = args.keep or pathlib.Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    print(f"{'load':18}{'steps from':22}{'requests/s':>22}{'p95 ms':>24}{'mean ms':>24}")
    for number in range(args.rounds):
        records = [folder / f"steps-{number}-{i}.jsonl" for i in range(2)]
        measured = [measure(args, load, path) for load, path in zip(args.loads, records)]
        sources = {f"fit of {args.loads[0]}": ["--fit", records[0]], f"fit of {args.loads[1]}": ["--fit", records[1]]}
        if args.card:
            sources[args.card] = ["--card", args.card, *args.model_flags]
        for load, real in zip(args.loads, measured):
            for name, source in sources.items():
                told = simulate(args, load, source)
                row = f"{load:18}{name:22}"
                for a, b in ((real["qps"], told["qps"]), (real["e2e_ms"]["p95"], told["e2e_ms"]["p95"]), (real["e2e_ms"]["mean"], told["e2e_ms"]["mean"])):
                    row += f"{a:>10.2f}{b:>8.2f}{b / a:>6.2f}"
                print(row, flush=True)


if __name__ == "__main__":
    main()

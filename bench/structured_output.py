"""What a grammar costs: tokens a second of constrained answers against free ones, side by side on one server.

    python3 bench/structured_output.py [--model models/SmolLM2-135M-Instruct.Q4_1.gguf | --dummy llama-3.1-8b] [--device cpu|cuda]
                                       [--sluice build/release/sluice] [--batches 16,32] [--tokens 64] [--rounds 5]

Each round asks twice, in turn first: so many answers at once of so many tokens, free (ignore_eos) and held to a JSON Schema that goes
on for longer. The median of the rounds' ratios is what counts; the grammar is compiled before.
"""
import argparse
import http.client
import json
import re
import statistics
import subprocess
import threading
import time

ITEM = {"type": "object", "properties": {"name": {"type": "string", "minLength": 3, "maxLength": 40}, "score": {"type": "integer"},
                                         "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 2}},
        "required": ["name", "score", "tags"]}
FORM = {"guided_json": {"type": "array", "items": ITEM, "minItems": 200}}


def ask(port, n, tokens, members, first):
    """Seconds for n answers at once, and the tokens of all."""
    counts = [0] * n

    def one(i):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        body = {"prompt": f"Request {first + i}: a list in JSON.\n", "max_tokens": tokens, "temperature": 0.8, "seed": first + i, **members}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        counts[i] = answer["usage"]["completion_tokens"]

    threads = [threading.Thread(target=one, args=(i,)) for i in range(n)]
    began = time.perf_counter()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return time.perf_counter() - began, sum(counts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--dummy")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sluice", default="build/release/sluice")
    parser.add_argument("--batches", default="16,32")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    model = ["--dummy", args.dummy] if args.dummy else [args.model or "models/SmolLM2-135M-Instruct.Q4_1.gguf"]
    server = subprocess.Popen([args.sluice, "serve", *model, "--device", args.device, "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        line = server.stdout.readline()
        port = int(re.search(r":(\d+)", line[line.index("http://") + 5:])[1])
        ask(port, 2, 8, FORM, 0)
        ask(port, 2, 8, {"ignore_eos": True}, 0)
        print(f"{'at once':>8}{'free tok/s':>12}{'held tok/s':>12}{'ratio':>8}")
        for n in map(int, args.batches.split(",")):
            ratios, rates = [], {"free": [], "held": []}
            for r in range(args.rounds):
                kinds = [("free", {"ignore_eos": True}), ("held", FORM)]
                of = {}
                for name, members in kinds if r % 2 else kinds[::-1]:
                    seconds, tokens = ask(port, n, args.tokens, members, 1000 * r)
                    of[name] = tokens / seconds
                    rates[name].append(of[name])
                ratios.append(of["held"] / of["free"])
            print(f"{n:>8}{statistics.median(rates['free']):>12.0f}{statistics.median(rates['held']):>12.0f}{statistics.median(ratios):>8.3f}"
                  f"   rounds: {' '.join(f'{x:.3f}' for x in ratios)}", flush=True)
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Three times of what a server can do, with and without traffic.limit: who is refused, what the others wait, what is lost.

    bench/overload.py [--binary build/release/sluice] [--model models/SmolLM2-135M-Instruct.Q4_1.gguf] [--seconds 25]

First capacity: a closed loop that keeps the server full. Then arrivals at three times that pace (Poisson, seeded): a quarter of capacity
`interactive`, three quarters `standard`, two capacities `batch`. Printed beside each other: p50 and p99 of the time to first token by lane,
refusals, and goodput: tokens a second of answers that were given, over capacity's.
"""
import argparse
import collections
import http.client
import json
import pathlib
import random
import re
import subprocess
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROMPT, ANSWER = 64, 32  # tokens
LIMIT = ["traffic.limit.mode=rule", "traffic.limit.min=4", "traffic.limit.qps_share=1", "traffic.limit.target_ms=1000",
         "traffic.limit.ms_per_place=250", "traffic.limit.window_s=5"]


class Server:
    def __init__(self, options, settings):
        sets = [word for setting in settings for word in ("--set", setting)]
        self.process = subprocess.Popen([options.binary, "serve", options.model, "--port", "0", *sets], stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)
        self.port = int(re.search(r":(\d+)", self.process.stdout.readline().split("://")[1])[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


def ask(port, lane, seed):
    """(status, seconds to the first token, tokens)"""
    rng = random.Random(seed)
    body = {"prompt": [rng.randrange(1000, 40000) for _ in range(PROMPT)], "max_tokens": ANSWER, "ignore_eos": True, "stream": True}
    began = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json", "X-Priority": lane})
        response = connection.getresponse()
        first, tokens = None, 0
        for line in response:
            if line.startswith(b"data: {"):
                first = first or time.monotonic() - began
                tokens += 1
        return response.status, first, tokens
    finally:
        connection.close()


def capacity(port, seconds):
    """Tokens a second of 16 clients that never pause."""
    end = time.monotonic() + seconds
    done = []

    def client(number):
        turn = 0
        while time.monotonic() < end:
            done.append(ask(port, "standard", number * 1000 + turn)[2])
            turn += 1

    began = time.monotonic()
    threads = [threading.Thread(target=client, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / (time.monotonic() - began)


def overload(port, per_second, seconds):
    """What became of each request, by lane; and the tokens of all that was answered, a second, until the last is there."""
    rng = random.Random(3)
    seen = collections.defaultdict(list)
    threads, at = [], 0.0
    began = time.monotonic()
    while at < seconds:
        at += rng.expovariate(3 * per_second)
        lane = rng.choices(["interactive", "standard", "batch"], [0.25, 0.75, 2])[0]
        threads.append(threading.Thread(target=lambda l=lane, n=len(threads): seen[l].append(ask(port, l, 10**6 + n))))
        time.sleep(max(0, began + at - time.monotonic()))
        threads[-1].start()
    for thread in threads:
        thread.join()
    tokens = sum(answer[2] for lane in seen.values() for answer in lane)
    return seen, tokens / (time.monotonic() - began)


def quantile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "build" / "release" / "sluice"))
    parser.add_argument("--model", default=str(ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"))
    parser.add_argument("--seconds", type=float, default=25)
    options = parser.parse_args()
    with Server(options, []) as server:
        full = capacity(server.port, options.seconds)
    pace = full / ANSWER
    print(f"capacity {full:.0f} tokens/s, {pace:.1f} requests/s of {PROMPT}/{ANSWER}")
    for name, settings in (("without", []), ("with traffic.limit", LIMIT)):
        with Server(options, settings) as server:
            seen, goodput = overload(server.port, pace, options.seconds)
        print(f"3x capacity {name}: goodput {goodput:.0f} tokens/s, {100 * goodput / full:.0f} % of capacity")
        for lane in ("interactive", "standard", "batch"):
            waits = [1000 * first for status, first, _ in seen[lane] if status == 200 and first is not None]
            refused = sum(status == 429 for status, _, _ in seen[lane])
            print(f"  {lane:12} {len(seen[lane]):5} came {refused:5} refused   first token p50 {quantile(waits, 0.5):7.0f} ms"
                  f"   p99 {quantile(waits, 0.99):7.0f} ms")


if __name__ == "__main__":
    main()

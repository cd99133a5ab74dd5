#!/usr/bin/env python3
"""Three times of what a server can do, with and without traffic.limit: who is refused, what the others wait, what is lost.

    bench/overload.py [--binary build/release/sluice] [--model models/SmolLM2-135M-Instruct.Q4_1.gguf] [--seconds 30]
                      [--set KEY=VALUE]... [--only lanes,rule,gradient,default]

First capacity: a closed loop of 16 that keeps the server full. Then arrivals at three times that pace (Poisson, seeded): a quarter of
capacity `interactive`, three quarters `standard`, two capacities `batch`. Printed for each: refusals, p50 and p99 of the time to the first token
and between tokens by lane, and goodput: tokens a second over capacity's. Both are counted while requests come, without the first five seconds: what is
delivered afterwards, out of a queue that grew, is no answer to an overload. (`to the end` counts that too.)

The client is one thread on the same cores. --set goes to all servers, that of capacity included.
"""
import argparse
import asyncio
import collections
import json
import pathlib
import random
import re
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROMPT, ANSWER = 64, 32  # tokens
WARM_S = 5
EVENT = b"data: {"
RULE = {"traffic.limit.mode": "rule", "traffic.limit.min": 4, "traffic.limit.qps_share": 1, "traffic.limit.target_ms": 1000,
        "traffic.limit.ms_per_place": 250, "traffic.limit.window_s": 5}
LIMITS = {"lanes": {}, "rule": RULE, "gradient": {"traffic.limit.mode": "gradient", "traffic.limit.min": 4}, "default": {"traffic.limit.mode": "rule"}}


class Server:
    def __init__(self, options, settings):
        sets = [word for setting in [*options.set, *(f"{k}={v}" for k, v in settings.items())] for word in ("--set", setting)]
        self.process = subprocess.Popen([options.binary, "serve", options.model, "--port", "0", *sets], stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)
        self.port = int(re.search(r":(\d+)", self.process.stdout.readline().split("://")[1])[1])

    def __enter__(self):
        return self.port

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


def request_bytes(lane, seed):
    rng = random.Random(seed)
    body = json.dumps({"prompt": [rng.randrange(1000, 40000) for _ in range(PROMPT)], "max_tokens": ANSWER, "ignore_eos": True, "stream": True})
    return (f"POST /v1/completions HTTP/1.1\r\nHost: bench\r\nConnection: close\r\nContent-Type: application/json\r\nX-Priority: {lane}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}").encode()


async def ask(port, request):
    """(status, when it was sent, when its events came)"""
    began = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        status, events, tail = 0, [], b""
        while data := await reader.read(65536):
            status = status or int(data[9:12])
            seen = tail + data
            events += [time.monotonic()] * seen.count(EVENT)
            tail = seen[1 - len(EVENT):]
        return status, began, events
    finally:
        writer.close()


def per_second(answers, begin, end):
    return sum(begin <= at < end for _, _, events in answers for at in events) / (end - begin)


async def capacity(port, seconds):
    """Events a second of 16 clients that never pause."""
    answers, began = [], time.monotonic()

    async def client(number):
        turn = 0
        while time.monotonic() < began + seconds:
            answers.append(await ask(port, request_bytes("standard", number * 1000 + turn)))
            turn += 1

    await asyncio.gather(*(client(n) for n in range(16)))
    return per_second(answers, began + WARM_S, began + seconds)


async def overload(port, rate, seconds):
    """Answers by lane; events a second while requests came, and to the end of the last answer."""
    rng, seen, at, tasks = random.Random(3), collections.defaultdict(list), 0.0, []
    began = time.monotonic()

    async def one(lane, number):
        seen[lane].append(await ask(port, request_bytes(lane, 10**6 + number)))

    while (at := at + rng.expovariate(rate)) < seconds:
        await asyncio.sleep(began + at - time.monotonic())
        lane = rng.choices(["interactive", "standard", "batch"], [0.25, 0.75, 2])[0]
        tasks.append(asyncio.create_task(one(lane, len(tasks))))
    await asyncio.gather(*tasks)
    answers = [answer for lane in seen.values() for answer in lane]
    return seen, per_second(answers, began + WARM_S, began + seconds), per_second(answers, began, time.monotonic())


def quantile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "build" / "release" / "sluice"))
    parser.add_argument("--model", default=str(ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"))
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--only", default="lanes,rule,gradient,default")
    options = parser.parse_args()
    with Server(options, {}) as port:
        full = asyncio.run(capacity(port, options.seconds))
    print(f"capacity {full:.0f} tokens/s, {full / ANSWER:.1f} requests/s of {PROMPT}/{ANSWER}", flush=True)
    for name in options.only.split(","):
        with Server(options, LIMITS[name]) as port:
            seen, goodput, to_the_end = asyncio.run(overload(port, 3 * full / ANSWER, options.seconds))
        print(f"3x capacity, {name}: goodput {goodput:.0f} tokens/s, {100 * goodput / full:.0f} % of capacity (to the end {100 * to_the_end / full:.0f} %)")
        for lane in ("interactive", "standard", "batch"):
            waits = [1000 * (events[0] - began) for status, began, events in seen[lane] if status == 200 and events]
            between = [1000 * (b - a) for _, _, events in seen[lane] for a, b in zip(events, events[1:])]
            refused = sum(status == 429 for status, _, _ in seen[lane])
            print(f"  {lane:12} {len(seen[lane]):5} came {refused:5} refused   first token p50 {quantile(waits, 0.5):7.0f} p99 {quantile(waits, 0.99):7.0f} ms"
                  f"   between tokens p50 {quantile(between, 0.5):5.0f} p99 {quantile(between, 0.99):5.0f} ms", flush=True)


if __name__ == "__main__":
    main()

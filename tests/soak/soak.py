#!/usr/bin/env python3
"""Random faults under random traffic, round after round: each a server of its own with faults (docs/faults.md) and settings
drawn from the seed, clients of every kind at once (traffic.py), and at its end what must hold whatever happened: every
request was answered or its connection closed, every answer was the right one or an error that the round excuses, no request
and no KV block is left, the metrics add up, and SIGTERM ends the process with 0 and nothing leaked.

    soak.py [--minutes M] [--seed N] [--round K] [--binary build/asan/sluice]

A round is named by seed and number: the same settings, faults and requests, though not the same interleaving. Ends with
one line 'N passed, N failed' (rounds)."""
import argparse
import dataclasses
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from asked import catalogue, whole  # noqa: E402
from server import DEATH, HUNG_S, SANITIZER, Cut, Line, Server, request_bytes  # noqa: E402
from traffic import Client, Course, Tally  # noqa: E402

TINY = ROOT.parent / "shared" / "cases" / "tiny"
MODELS = {"llama-tied": 6144, "mistral-window": 8192, "qwen3moe": 8192, "gemma3-local-global": 8192}  # bytes of a KV block, about
CLIENTS, REQUESTS, ASKED = 12, 12, 60


@dataclasses.dataclass
class Excused:
    """What this round's answers may be beside right."""
    cut: bool = False      # connections may break
    odd: bool = False      # answers to requests of which the faults name some ("odd-…") may be anything
    exact: bool = True     # the others are right to the byte
    statuses: set = dataclasses.field(default_factory=set)


def planted(rng, disk):
    """A plan of some faults, what it excuses, and whether the process ends by it."""
    def one_in(*choices):
        return rng.choice(choices)

    def rate(low, high):
        return round(rng.uniform(low, high), 4)

    killed, starved = rng.randrange(9), rng.randrange(6)
    spoils = one_in("nan_logits", "flat_logits", "weak_logits", "control_ids", "id_jumps", "repetition", "step_failure", "preempt")
    plans = {
        "short_write": f"rate={rate(0.05, 0.9)},amount={one_in(1, 7, 100, 1500)}",
        "short_read": f"rate={rate(0.05, 0.9)},amount={one_in(1, 7, 100, 1500)}",
        "eagain": f"rate={rate(0.05, 0.6)},amount={rng.randrange(3)}",
        "kill_connection": f"rate={rate(0.001, 0.05)},amount={killed}",
        "alloc_failure": f"rate={rate(0.01, 0.1)},amount={starved}",
        "step_failure": f"rate={rate(0.001, 0.02)}",
        "slow_step": f"rate={rate(0.01, 0.1)},amount={rng.randrange(1, 15)}",
        "cpu_stall": f"rate={rate(0.01, 0.1)},amount={rng.randrange(1, 10)}",
        "off_cpu": f"rate={rate(0.01, 0.1)},amount={rng.randrange(1, 10)}",
        "engine_alloc": f"every={rng.randrange(3, 30)},amount=100",
        "evict_cache": f"every={rng.randrange(3, 50)},amount={rng.randrange(5)}",
        "preempt": f"rate={rate(0.02, 0.2)}",
        "clock_jump": f"every={rng.randrange(50, 300)},amount={one_in(-300, 300, 5000, 90000)}",
        spoils: f"request=odd,rate={rate(0.1, 0.5)},from={rng.randrange(1, 6)},amount={rng.randrange(2)}",
    }
    if rng.random() < 0.1:
        plans["device_error"] = f"from={rng.randrange(50, 600)}"
    elif rng.random() < 0.1:
        plans["engine_exception"] = f"from={rng.randrange(50, 600)},amount={rng.randrange(2)}"
    lasts = {"device_error", "engine_exception"} & set(plans)

    if disk:
        plans["disk_full"] = f"rate={rate(0.05, 0.8)}"
        plans["slow_disk"] = f"rate={rate(0.05, 0.5)},amount={rng.randrange(1, 20)}"
    names = sorted({*rng.sample(sorted(plans), rng.randrange(1, 7)), *lasts})
    breaks = lasts | {"kill_connection", "clock_jump"} | ({"alloc_failure"} if starved >= 3 else set())
    excused = Excused(cut=bool(breaks & set(names)), odd=spoils in names and "request=" in plans[spoils])
    if "alloc_failure" in names:
        excused.statuses |= {500} if starved == 1 else {429} if starved in (0, 2) else set()
    if "step_failure" in names:
        excused.statuses |= {500}
    if "clock_jump" in names:
        excused.statuses |= {408, 504}
    text = f"seed={rng.randrange(10**6)}" + "".join(f"; {n}:{plans[n]}" for n in names)
    return text, excused, bool(lasts)


class Silent(Exception):
    """The server does not answer, though nobody asks much of it."""


class Round:
    def __init__(self, seed, number, options):
        self.name, self.binary = f"{seed}/{number}", options.binary
        self.rng = rng = random.Random(f"{seed}/{number}")
        self.folder = options.folder / str(number)
        self.folder.mkdir()
        self.model = rng.choice(list(MODELS))
        self.tls = rng.random() < 0.2 and options.certificate is not None  # drawn either way: a seed is one course everywhere
        self.disk = rng.random() < 0.3
        self.faults, self.excused, self.dies = planted(rng, self.disk)
        self.amid = not self.dies and rng.random() < 0.3  # told to stop in the middle of the traffic
        # A canary of the same model, which answers alike, and comes and goes with reloads. Drawn apart, as rates are.
        self.beside = random.Random(f"{seed}/{number}/beside")
        self.canary = self.beside.random() < 0.3
        self.flags = self.settings(options)
        self.tally, self.ending = Tally(), threading.Event()

    def settings(self, options):
        rng, queue = self.rng, self.rng.choice([8, 64, 1024])
        if queue < CLIENTS * 4:
            self.excused.statuses |= {429}
        chosen = {"engine.max_context": 900, "engine.kv_bytes": MODELS[self.model] * rng.choice([70, 120, 400]), "engine.max_sequences": rng.choice([1, 4, 16, 64]),
                  "engine.max_queue": queue, "engine.step_tokens": rng.choice([64, 200, 512]), "server.network_threads": rng.choice([1, 2, 3]),
                  "server.text_threads": rng.choice([1, 2]), "server.drain_timeout_ms": rng.choice([50, 1000, 60000]),
                  "kv.prefix_cache": rng.choice(["true", "true", "true", "false"]), "cpu.threads": rng.choice([1, 2])}
        if self.disk:
            chosen |= {"kv.host_bytes": MODELS[self.model] * 40, "kv.disk_path": self.folder / "kv", "kv.prefix_cache": "true"}
        elif rng.random() < 0.2:
            chosen["kv.precision"] = rng.choice(["int8", "int4", "tiered"])
            chosen["engine.kv_bytes"] *= 3
            self.excused.exact = False
        elif rng.random() < 0.1:
            chosen["kv.allocation"] = "contiguous_max_context"
        if rng.random() < 0.2:
            chosen |= {"traffic.limit.mode": rng.choice(["rule", "gradient"]), "traffic.limit.max": rng.choice([10, 30])}
            self.excused.statuses |= {429}
        if rng.random() < 0.2:
            chosen["traffic.breaker.model"] = rng.choice(["patient", "quick"])
            if 500 in self.excused.statuses:
                self.excused.statuses |= {503}
        if self.beside.random() < 0.2:
            chosen |= {"traffic.recalibrate": "true", "traffic.limit.target_ms": 20, "traffic.lanes.standard.requests_per_minute": self.beside.choice([600, 6000]),
                       "traffic.keys.tokens_per_minute": self.beside.choice([30000, 300000])}
            self.excused.statuses |= {429}
        if rng.random() < 0.2:  # where nobody listens
            chosen |= {"tracing.endpoint": "http://127.0.0.1:9", "tracing.protocol": rng.choice(["http/protobuf", "grpc"]), "tracing.sample_ratio": 1,
                       "tracing.export_interval_ms": 20}
        if rng.random() < 0.2:
            chosen["observe.record_steps"] = self.folder / "steps"
        if self.tls:
            chosen |= {"server.tls.cert_file": options.certificate[0], "server.tls.key_file": options.certificate[1]}
        return [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]

    # -- Its course --------------------------------------------------------------------------------------------------

    def run(self, asked):
        settings = self.folder / "sluice.yaml"
        self.write_live(settings)
        with Server(self.binary, TINY / self.model, ["--config", settings, *self.flags], self.folder / "log", self.faults, self.tls) as server:
            try:
                self.meet(server, settings, asked)
            except Silent as silent:  # it crashed or hangs: what follows says which
                self.tally.blame(str(silent))
                self.ending.set()
                server.signal()
            self.check_end(server.ended(), server.log())
        return self.tally.wrong

    def meet(self, server, settings, asked):
        before = None if self.dies else self.metrics(server)
        course = Course(CLIENTS)
        clients = [Client(server, asked, self.excused, self.tally, self.rng.randrange(2**60), REQUESTS, self.ending, course) for _ in range(CLIENTS)]
        for client in clients:
            client.start()
        for begun in sorted(self.rng.sample(range(CLIENTS * REQUESTS), self.rng.choice([0, 1, 3]))):
            course.wait_for(begun)
            self.write_live(settings)
            server.signal(signal.SIGHUP)
        if self.amid:
            course.wait_for(self.rng.randrange(CLIENTS * REQUESTS))
            self.ending.set()
            server.signal()
        hung_at = time.monotonic() + 5 * HUNG_S
        for client in clients:
            client.join(timeout=max(0, hung_at - time.monotonic()))
            if client.is_alive():
                self.tally.blame("a client is stuck")
        if not self.amid and not self.dies:
            self.check_rest(server, before)
        if not self.amid:
            self.ending.set()
            server.signal()

    def write_live(self, path):
        """Settings that a reload takes up."""
        policy = self.rng.choice(["continuous", "continuous", "windowed", "serial"])
        text = f"scheduler:\n  policy: {policy}\n  target_itl_ms: {self.rng.choice([0, 5, 50])}\n  window: {{window_ms: 20, batch_timeout_ms: 10, min_trigger_interval_ms: 5}}\n"
        if self.canary and self.beside.random() < 0.8:
            draw = self.beside.choice
            text += (f"traffic:\n  breaker: {{upstream: {draw(['off', 'patient', 'quick'])}}}\n  canary:\n    settings: [\"cpu.threads={draw([1, 2])}\"]\n"
                     f"    steps: [{draw([20, 60])}, 80]\n    step_requests: {draw([5, 20])}\n    max_in_flight: {draw([1, 3, 20])}\n")
        path.write_text(text)

    def metrics(self, server):
        """What /metrics says, by name and labels; asked until it is told, since the faults meet this client too."""
        until = time.monotonic() + HUNG_S
        while time.monotonic() < until and server.process.poll() is None:
            try:
                with Line(server) as line:
                    line.send(request_bytes("/metrics"))
                    answer = line.answer()
                if answer.status == 200:
                    return {name: float(value) for name, value in re.findall(r"^(\S+) (\S+)$", answer.body.decode(), re.M)}
            except (Cut, TimeoutError):
                pass
        raise Silent("the server tells no metrics any more")

    def check_rest(self, server, before):
        """Nothing is left, and all that began was counted once as ended. Not at once: the last to leave may just be noticed."""
        until = time.monotonic() + HUNG_S
        while (wrong := self.left_over(self.metrics(server), before)) and time.monotonic() < until:
            pass
        for what in wrong:
            self.tally.blame(what)

    def left_over(self, seen, before):
        resting = ("sluice_requests_running", "sluice_requests_waiting", "sluice_kv_blocks_used", "sluice_traffic_waiting")
        wrong = [f"left behind: {key} {value:g}" for key, value in seen.items() if value and key.split("{")[0] in resting]
        if seen["sluice_http_connections"] != 1:  # the one that asks
            wrong.append(f"left behind: {seen['sluice_http_connections']:g} connections")

        def total(name, labels=r"(\{.*\})?"):
            return sum(value for key, value in seen.items() if re.fullmatch(re.escape(name) + labels, key))

        of_stable = r'\{state="[a-z]+"\}'
        sums = {
            "requests of the engine": (total("sluice_requests_started_total"), total("sluice_requests_finished_total") + total("sluice_requests_rejected_total")),
            "generations": (total("sluice_http_generations_started_total"), total("sluice_http_generations_total")),
            "bytes of keys and values": (total("sluice_kv_bytes", of_stable), sum(v for k, v in before.items() if re.fullmatch("sluice_kv_bytes" + of_stable, k))),
            "bytes that nobody uses": (total("sluice_kv_bytes"), total("sluice_kv_bytes", r'\{state="(free|cached|wasted)".*\}')),
            "lanes": (0, total("sluice_lane_requests_running") + total("sluice_lane_requests_waiting")),
        }
        wrong += [f"{what} do not add up: {one:g} and {other:g}" for what, (one, other) in sums.items() if one != other]
        completed = total("sluice_http_generations_total", r'\{reason="completed"\}')
        if (came := self.tally.counts.get("completed", 0)) > completed:
            wrong.append(f"{came} answers came complete, {completed:g} are counted")
        return wrong

    def check_end(self, status, log):
        said = DEATH.search(log)
        if self.dies and status not in (0, None) and "SLUICE_FAULTS)" in log and "sluice: step" in log:
            said = SANITIZER.search(log)
        elif status != 0:
            self.tally.blame(f"exit status {status}" if status is not None else "SIGTERM did not end it")
        if said:
            self.tally.blame(f"the log says: {log[max(0, said.start() - 300):said.start() + 3000]}")


def learn(binary, model, seed, folder):
    """What a server without faults answers, one request at a time."""
    asked = catalogue(f"{seed}/{model}", ASKED)
    with Server(binary, TINY / model, ["--set", "engine.max_context=900"], folder / f"{model}.log") as server:
        with Line(server) as line:
            for one in asked:
                line.send(request_bytes(one.path, one.body))
                answer = line.answer()
                if answer.status != 200:
                    raise RuntimeError(f"{one}: status {answer.status}: {answer.body[:300]!r}")
                one.right = whole(one.path, answer.json())
        server.signal()
        if (status := server.ended()) != 0:
            raise RuntimeError(f"a server without faults ends with {status}: {server.log()[-3000:]}")
    return asked


def make_certificate(folder):
    if not shutil.which("openssl"):
        return None
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=localhost"],
                   check=True, capture_output=True)
    return cert, key


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=1, help="no round begins later than this")
    parser.add_argument("--seed", type=int, default=None, help="default: chosen, and printed")
    parser.add_argument("--rounds", type=int, default=None, help="so many, however long they take")
    parser.add_argument("--round", type=int, default=None, help="this one alone")
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "build/asan/sluice", help="build/tsan/sluice: under ThreadSanitizer")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    print(f"soak: seed {seed} (again: ./dev soak --seed {seed}, one round: --round K)", flush=True)
    options.folder = pathlib.Path(tempfile.mkdtemp(prefix="soak."))
    options.certificate = make_certificate(options.folder)
    known, passed, failed, until = {}, 0, 0, time.monotonic() + 60 * options.minutes
    number = options.round if options.round is not None else 1
    while True:
        this = Round(seed, number, options)
        if this.model not in known:
            known[this.model] = learn(options.binary, this.model, seed, options.folder)
        print(f"round {number}: {this.model}; SLUICE_FAULTS=\"{this.faults}\"{', TLS' if this.tls else ''}{', a canary' if this.canary else ''}{', stopped amid' if this.amid else ''}", flush=True)
        began = time.monotonic()
        wrong = this.run(known[this.model])
        print(f"  {time.monotonic() - began:.1f} s: " + ", ".join(f"{n} {what}" for what, n in sorted(this.tally.counts.items())), flush=True)
        for what in wrong[:5]:
            print(f"  WRONG in {this.name}: {what[:4000]}", flush=True)
        if wrong:
            print(f"  settings: {' '.join(map(str, this.flags))}\n  log: {this.folder / 'log'} ({len(wrong)} wrong)", flush=True)
        passed, failed = passed + (not wrong), failed + bool(wrong)
        number += 1
        if options.round is not None or number > (options.rounds or number):
            break
        if options.rounds is None and time.monotonic() > until:
            break
    if not failed:
        shutil.rmtree(options.folder, ignore_errors=True)
    print(f"{passed} passed, {failed} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

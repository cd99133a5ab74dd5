"""What traces cost: the same load on servers without traces, with the default ratio and with all requests traced, turn by turn,
so that what the machine does meanwhile hits all alike. Exports go to a socket that says 200, in this process.

    python3 bench/tracing_cost.py --model models/SmolLM2-135M-Instruct.Q4_1.gguf     # about 3 minutes
    python3 bench/tracing_cost.py --dummy null --requests 4000 --output-tokens 64    # nothing is computed: the server alone
    python3 bench/tracing_cost.py --dummy llama-3.1-8b --requests 512 --input-tokens 64 --output-tokens 128 --kv-gib 4    # on a card, 2 minutes
"""
import argparse
import json
import os
import socket
import statistics
import subprocess
import threading

KINDS = {"off": None, "ratio 0.001": "0.001", "ratio 1.0": "1"}
TRACEPARENT = "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-"  # and whether the caller wants it traced


class Sink:
    """Takes any number of exports on any number of connections."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.bytes = 0
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            threading.Thread(target=self.serve, args=(self.listener.accept()[0],), daemon=True).start()

    def serve(self, connection):
        stream = connection.makefile("rb")
        while line := stream.readline():
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
            elif line == b"\r\n":
                self.bytes += len(stream.read(length))
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


class Served:
    def __init__(self, args, ratio, sink):
        tracing = [] if ratio is None else ["--set", f"tracing.endpoint=http://127.0.0.1:{sink.port}", "--set", f"tracing.sample_ratio={ratio}"]
        model = ["--dummy", args.dummy] if args.dummy else [args.model]
        self.args = args
        self.process = subprocess.Popen([args.sluice, "serve", *model, "--port", "0", "--max-sequences", str(args.concurrency), "--log-level", "warn",
                                         "--kv-gib", str(args.kv_gib), *tracing], stdout=subprocess.PIPE, text=True)
        self.url = next(word for word in self.process.stdout.readline().split() if word.startswith("http"))
        self.rates, self.cpu = [], []

    def cpu_seconds(self):
        fields = open(f"/proc/{self.process.pid}/stat").read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def load(self, requests, *flags):
        before = self.cpu_seconds()
        done = subprocess.run([self.args.sluice, "bench", "serve", "--url", self.url, "--concurrency", str(self.args.concurrency), "--requests",
                               str(requests), "--input-tokens", str(self.args.input_tokens), "--output-tokens", str(self.args.output_tokens), "--json", *flags],
                              capture_output=True, text=True, check=True)
        return json.loads(done.stdout)["output_tok_s"], (self.cpu_seconds() - before) / requests

    def round(self):
        rate, cpu = self.load(self.args.requests)
        self.rates.append(rate)
        self.cpu.append(cpu)


class Asked:
    """A server that traces what its callers ask for, and callers who always or never do."""

    def __init__(self, server, flag):
        self.server, self.process, self.header, self.rates, self.cpu = server, server.process, TRACEPARENT + flag, [], []

    def load(self, requests):
        return self.server.load(requests, "--header", self.header)

    round = Served.round
    args = property(lambda self: self.server.args)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sluice", default="build/release/sluice")
    p.add_argument("--model", default="models/SmolLM2-135M-Instruct.Q4_1.gguf")
    p.add_argument("--dummy")
    p.add_argument("--concurrency", type=int, default=128)
    p.add_argument("--requests", type=int, default=256)
    p.add_argument("--input-tokens", type=int, default=16)
    p.add_argument("--output-tokens", type=int, default=32)
    p.add_argument("--one-server", action="store_true", help="none and all requests traced, by their traceparent; servers on a card differ by more than this")
    p.add_argument("--kv-gib", type=float, default=1, help="of each server; three run at once")
    p.add_argument("--rounds", type=int, default=5)
    args = p.parse_args()
    sink = Sink()
    if args.one_server:
        server = Served(args, "0", sink)
        servers = {"off": Asked(server, "00"), "traced": Asked(server, "01")}
    else:
        servers = {kind: Served(args, ratio, sink) for kind, ratio in KINDS.items()}
    try:
        for server in servers.values():
            server.load(args.concurrency)
        for turn in range(args.rounds):
            order = list(servers.values())
            for server in order[turn % len(order):] + order[:turn % len(order)]:
                server.round()
    finally:
        for server in servers.values():
            server.process.terminate()
            server.process.wait()
    off = servers["off"]
    print(f"{'':12}{'tokens/s':>10}{'of off':>9}{'CPU us a request':>18}{'of off':>9}   rounds' share of tokens/s")
    for kind, server in servers.items():
        shares = [rate / base for rate, base in zip(server.rates, off.rates)]
        rate, cpu = statistics.median(server.rates), statistics.median(server.cpu)
        print(f"{kind:12}{rate:10.0f}{statistics.median(shares):9.3f}{cpu * 1e6:18.0f}{cpu / statistics.median(off.cpu):9.3f}   "
              + " ".join(f"{share:.3f}" for share in shares))
    print(f"exported: {sink.bytes} bytes")


if __name__ == "__main__":
    main()

"""How many cores one card wants: the same load on servers that may use 1, 2, 4, 8 and 16 of them, each with threads bound and not.

    python3 bench/cpu_ratio.py [--sluice build/release/sluice] [--out $OUT] [--shape llama-3.1-8b] [--device cuda] [--cores 1,2,4,8,16]
    python3 bench/cpu_ratio.py --device cpu --shape smollm2-135m --cores 1,2 --concurrency 8 --requests 32 --input 32 --output 16

Cores are those of the card's memory node first, one hardware thread of each, by machine.cpu_set. "free": the kernel moves threads among them.
"bound": machine.engine_cpu gives the engine's thread the first core and machine.io_threads a quarter of them (at least one) to network and text,
where there are three cores or more; on two, the engine's alone; on one there is nothing to bind.
The load is closed (`sluice bench serve`) and runs on CPUs that the server may not use, while there are any; a row says where it had to share. Rows
go by turns in --rounds; medians are printed, all of them are in --out. `cores used`: CPU time of the server during the load over its time. With
--device cuda copies are timed (gpu.copy_times) in the last row alone, for the step's h2d, kernels and d2h in µs.
"""
import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import threading
import time
import types
import urllib.request

import h200


def cpu_list(text):
    parts = [part.split("-") for part in text.strip().split(",") if part]
    return [cpu for part in parts for cpu in range(int(part[0]), int(part[-1]) + 1)]


def read(path):
    try:
        return pathlib.Path(path).read_text()
    except OSError:
        return ""


def card_node():
    """The memory node of the first NVIDIA card; 0 where the machine does not say."""
    for device in sorted(pathlib.Path("/sys/bus/pci/devices").glob("*")):
        if read(device / "vendor").strip() == "0x10de" and read(device / "class").startswith(("0x0302", "0x0300")):
            return max(0, int(read(device / "numa_node") or 0))
    return 0


def one_of_each_core():
    """CPUs that may be used: the first hardware thread of each core, those of the card's node first; and all others."""
    allowed = sorted(os.sched_getaffinity(0))
    near = set(cpu_list(read(f"/sys/devices/system/node/node{card_node()}/cpulist"))) or set(allowed)
    seen, firsts = set(), []
    for cpu in allowed:
        core = read(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").strip() or str(cpu)
        if core not in seen:
            seen.add(core)
            firsts.append(cpu)
    return sorted(firsts, key=lambda cpu: (cpu not in near, cpu)), allowed


def settings_of(cpus, bound):
    flags = ["--set", "machine.cpu_set=" + ",".join(map(str, cpus))]
    if bound:
        flags += ["--set", f"machine.engine_cpu={cpus[0]}"]
        if len(cpus) >= 3:
            flags += ["--set", f"machine.io_threads={max(1, len(cpus) // 4)}"]
    return flags


def cpu_seconds(pid):
    fields = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def server_pid(args):
    """The child that serves: of this process there is one."""
    children = read(f"/proc/self/task/{os.getpid()}/children").split()
    return next((int(pid) for pid in children if "sluice" in read(f"/proc/{pid}/comm")), 0)


class Live:
    """Means of the step's parts over the samples of /v1/live in which steps ended."""

    def __init__(self, url):
        self.rows, self.stream = [], urllib.request.urlopen(url + "/v1/live", timeout=60)
        self.thread = threading.Thread(target=self.listen, daemon=True)
        self.thread.start()

    def listen(self):
        try:
            for line in self.stream:
                if line.startswith(b"data: "):
                    step = json.loads(line[6:]).get("step")
                    if step and step.get("tokens"):
                        self.rows.append(step)
        except (OSError, ValueError):
            pass

    def means(self):
        names = ("h2d_us", "kernels_us", "d2h_us", "gap_ms", "launch_ms")
        return {name: statistics.fmean(row.get(name) or 0 for row in self.rows) for name in names} if self.rows else {}


def load(args, url, seed, requests, cpus):
    command = [str(args.sluice), "bench", "serve", "--url", url, "--concurrency", str(args.concurrency), "--requests", str(requests),
               "--input-tokens", str(args.input), "--output-tokens", str(args.output), "--seed", str(seed), "--json"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=max(5, h200.left(args)),
                              preexec_fn=lambda: os.sched_setaffinity(0, cpus))
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", "not done when the time was spent")


def measure(args, cpus, load_cpus, bound, seed, more=()):
    """One server and its load; None where either fails."""
    here = types.SimpleNamespace(**vars(args))
    here.serve_flags = settings_of(cpus, bound) + list(more)
    name = f"cores{len(cpus)}_{'bound' if bound else 'free'}_{seed}"
    with h200.running(here, ["--dummy", args.shape], name) as (url, _):
        if not url:
            return None
        pid, live = server_pid(args), Live(url)
        load(args, url, 1000 + seed, args.concurrency, load_cpus)  # to warm up
        live.rows.clear()
        before, began = cpu_seconds(pid), time.monotonic()
        done = load(args, url, seed, args.requests, load_cpus)
        used = (cpu_seconds(pid) - before) / (time.monotonic() - began)
        if done.returncode:
            print(f"{name}: {done.stderr.strip()[-300:]}")
            return None
        answer = json.loads(done.stdout)
        answer.update(cores=len(cpus), bound=bound, cores_used=used, step=live.means())
        (args.out / f"{name}.json").write_text(json.dumps(answer))
        return answer


HEAD = "cores          QPS   tok/s TTFT p50      p99  ITL p50      p99  e2e p50      p99   used fail   (ms)"


def row(answers, shared):
    def median(look):
        return statistics.median(look(a) for a in answers)
    first = answers[0]
    kind = "bound" if first["bound"] else "free"
    cells = [f"{first['cores']:>5}  {kind:6}", f"{median(lambda a: a['qps']):>8.2f}", f"{median(lambda a: a['output_tok_s']):>8.0f}"]
    for part in ("ttft_ms", "itl_ms", "e2e_ms"):
        cells += [f"{median(lambda a: a[part][p]):>9.2f}" for p in ("p50", "p99")]
    cells += [f"{median(lambda a: a['cores_used']):>7.2f}", f"{sum(a['failed'] for a in answers):>5}"]
    print("".join(cells) + ("   load on the same cores" if shared else ""), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sluice", default="build/release/sluice")
    parser.add_argument("--out", type=pathlib.Path, default=os.environ.get("OUT", "build/cpu_ratio"))
    parser.add_argument("--shape", default="llama-3.1-8b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--port", type=int, default=18090)
    parser.add_argument("--cores", default="1,2,4,8,16")
    parser.add_argument("--concurrency", type=int, default=128)
    parser.add_argument("--requests", type=int, default=384)
    parser.add_argument("--input", type=int, default=512)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--budget", type=float, default=300, help="seconds in all; what does not fit is left out and said")
    parser.add_argument("--flags", type=str.split, default=[], help="more flags for the server, in one argument")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that a server is ended too
    cores, allowed = one_of_each_core()
    counts = [n for n in map(int, args.cores.split(",")) if n <= len(cores)]
    print(f"{len(cores)} cores, {len(allowed)} CPUs; {args.shape} on {args.device}; concurrency {args.concurrency}, {args.input} tokens in, "
          f"{args.output} out, {args.requests} requests, {args.rounds} rounds\n{HEAD}")
    answers = {}
    for turn in range(args.rounds):
        for n in counts:
            rest = [cpu for cpu in allowed if cpu not in cores[:n]]
            for bound in (False, True)[:1 if n == 1 else 2]:
                if h200.left(args) < 10:
                    print(f"{n} cores, {'bound' if bound else 'free'}: left out, the time is spent")
                elif answer := measure(args, cores[:n], rest or allowed, bound, 1 + turn):
                    answers.setdefault((n, bound), []).append(answer)
                    row([answer], not rest)  # at once: what comes later may be cut off
    if args.rounds > 1:
        print("\nmedians\n" + HEAD)
        for (n, _), found in answers.items():
            row(found, n == len(allowed))
    if args.device == "cuda" and answers and h200.left(args) > 15:
        most = max(counts)
        rest = [cpu for cpu in allowed if cpu not in cores[:most]]
        if timed := measure(args, cores[:most], rest or allowed, False, 99, ["--set", "gpu.copy_times=true"]):
            print("\nwith copies timed:")
            row([timed], not rest)
            print("a step, means: " + ", ".join(f"{name} {value:.2f}" for name, value in timed["step"].items()))
    print(f"\n{time.monotonic() - h200.STARTED:.0f} s in all")


if __name__ == "__main__":
    main()

"""The parts of h200.py that are about keys and values, all through HTTP: prefixes that come back from host memory, and how
tok/s and hits of the prefix cache go with the length of a context."""
import concurrent.futures
import http.client
import json
import random
import time
import urllib.parse

# What the project starts from: tok/s and KV hit rate by context (case study), vLLM 0.26's tok/s (../shared/reference/h200.md).
CASE_STUDY = {4096: (124.6, 98.2), 16384: (62.1, 73.5), 32768: (28.9, 51.3)}
VLLM_TOK_S = {4096: 1e3 / 5.11, 16384: 1e3 / 5.48, 32768: 1e3 / 5.99}
PCIE_BYTES_S = 55.4e9  # pinned host memory to the card, 256 MiB at a time, same reference


def ids(seed, count):
    chosen = random.Random(seed)
    return [1000 + chosen.randrange(7000) for _ in range(count)]


class Client:
    def __init__(self, url):
        self.host = urllib.parse.urlparse(url).netloc
        self.model = json.loads(self.get("/v1/models"))["data"][0]["id"]

    def get(self, path):
        connection = http.client.HTTPConnection(self.host, timeout=60)
        connection.request("GET", path)
        return connection.getresponse().read().decode()

    def metrics(self):
        rows = (line.rsplit(" ", 1) for line in self.get("/metrics").splitlines() if line and not line.startswith("#"))
        return {key: float(value) for key, value in rows}

    def complete(self, prompt, tokens):
        """Ids of the answer, and when each chunk came, in seconds from the request."""
        body = json.dumps({"model": self.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True,
                           "return_token_ids": True})
        connection = http.client.HTTPConnection(self.host, timeout=120)
        begin, times, answer = time.monotonic(), [], []
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(response.read().decode()[:300])
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            for choice in json.loads(line[6:]).get("choices", []):
                times.append(time.monotonic() - begin)
                answer += choice.get("token_ids") or []
        return answer, times


def restore(args, running, dummy):
    """A prefix that the pool gave up comes back from host memory, against computing it."""
    lengths = [int(n * args.token_scale) for n in (24576, 32768)]
    room = int(1.05 * (max(lengths) + 64) * args.token_bytes)
    flags = ["--ctx", str(max(lengths) + 64), "--set", f"engine.kv_bytes={room}", "--set", f"kv.host_bytes={3 * room}"]
    from_host, to_pool = 'sluice_prefix_cache_restored_tokens_total{from="host"}', 'sluice_kv_host_copied_bytes_total{to="pool"}'
    print(f"\n{'prompt':>7}{'first token, computed ms':>26}{'restored':>10}{'tokens from host':>18}{'bytes':>8}{'copies at':>12}{'of PCIe':>9}")
    with running(args, [*dummy(args), *flags], "server_restore") as (url, _):
        if not url:
            return
        client = Client(url)
        client.complete(ids(0, 512), 4)
        for n in lengths:
            wanted, other = ids(n, n), ids(n + 1, max(lengths))
            computed = client.complete(wanted, 1)[1][0]
            for _ in range(3):
                client.complete(other, 1)  # takes the place of it
                before = client.metrics()
                restored = client.complete(wanted, 1)[1][0]
                after = client.metrics()
                rate = after['sluice_kv_outside_read_bytes_per_second{where="host"}']
                print(f"{n:>7}{1e3 * computed:>26.1f}{1e3 * restored:>10.1f}{after[from_host] - before[from_host]:>18.0f}"
                      f"{(after[to_pool] - before[to_pool]) / 1e9:>7.2f}G{rate / 1e9:>7.1f} GB/s{100 * rate / PCIE_BYTES_S:>7.0f} %", flush=True)
            beside(client, wanted, other)


def beside(client, wanted, other):
    """What a stream that generates meanwhile feels of it."""
    client.complete(other, 1)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        stream = pool.submit(client.complete, ids(5, 64), 256)
        while client.metrics()["sluice_requests_running"] < 1:
            time.sleep(0.005)
        time.sleep(0.1)
        first = client.complete(wanted, 1)[1][0]
        times = stream.result()[1]
    gaps = sorted(1e3 * (b - a) for a, b in zip(times, times[1:]))
    print(f"        beside a stream: first token {1e3 * first:.1f} ms; between the stream's tokens p50 {gaps[len(gaps) // 2]:.2f}, p95 {gaps[int(0.95 * len(gaps))]:.2f}, "
          f"longest {gaps[-1]:.2f} ms", flush=True)


def contexts(args, running, dummy):
    """Conversations that grow to a length, several at once; then one more turn alone, of 128 tokens."""
    turns, question, answer = 4, max(8, int(256 * args.token_scale)), max(2, int(64 * args.token_scale))
    print(f"\n{'context':>8}{'tok/s':>8}{'vLLM':>7}{'case':>7}{'hits, all turns':>17}{'returning':>11}{'case':>7}{'conversations':>15}")
    wanted = [int(n) for n in args.contexts.split(",")]
    with running(args, [*dummy(args), "--ctx", str(min(131072, int(max(wanted) * args.token_scale) + 512))], "server_contexts") as (url, _):
        if not url:
            return
        client = Client(url)
        client.complete(ids(0, 512), 4)
        for full in wanted:
            n, at_once = int(full * args.token_scale), 4 if full <= 32768 else 2 if full <= 65536 else 1
            said = [ids(full + c, max(16, n - turns * (question + answer) - 128)) for c in range(at_once)]
            counts = [client.metrics()]
            for turn in range(turns):
                with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
                    answers = list(pool.map(lambda prompt: client.complete(prompt, answer)[0], said))
                said = [p + a + ids(turn, question) for p, a in zip(said, answers)]
                counts.append(client.metrics())
            times = client.complete(said[0][:max(16, n - 128)], 128)[1]
            tok_s = (len(times) - 1) / (times[-1] - times[0])

            def hits(a, b):
                looked_up, found = (b[f"sluice_prefix_cache_{what}_total"] - a[f"sluice_prefix_cache_{what}_total"] for what in ("queries", "hits"))
                return 100 * found / looked_up if looked_up else float("nan")
            case = CASE_STUDY.get(full, (float("nan"),) * 2)
            print(f"{n:>8}{tok_s:>8.1f}{VLLM_TOK_S.get(full, float('nan')):>7.0f}{case[0]:>7.1f}{hits(counts[0], counts[-1]):>15.1f} %"
                  f"{hits(counts[1], counts[-1]):>9.1f} %{case[1]:>5.1f} %{at_once:>15}", flush=True)

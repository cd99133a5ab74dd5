"""How many bytes of the cache a request keeps, by the length of its context: what a windowed layer holds grows with the
window, not with the context.

    python3 bench/kv_memory.py models/gemma-3-270m-q4_k_m.gguf --tokens 512 1024 4096 16384 32000
    python3 bench/kv_memory.py models/SmolLM2-135M-Instruct.Q4_1.gguf --tokens 512 1024 4096 8000

One server; each longer prompt begins as the shorter did, so that only its end is computed."""
import argparse
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from conftest import Server  # noqa: E402


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("model")
    args.add_argument("--tokens", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8000])
    args.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="further flags of `sluice serve`")
    args = args.parse_args()
    server = Server(args.model, "--max-sequences", "1", "--log-level", "warn", *args.flags)
    try:
        ids = [1000 + i * 7 % 20000 for i in range(max(args.tokens))]
        for tokens in sorted(args.tokens):
            status, answer = server.post("/v1/completions", {"prompt": ids[:tokens], "max_tokens": 2, "temperature": 0, "ignore_eos": True})
            assert status == 200, answer
            peak = server.metric("sluice_kv_peak_bytes")
            print(json.dumps({"tokens": tokens, "peak_mib": round(peak / 2**20, 1), "bytes_per_token": round(peak / tokens)}), flush=True)
    finally:
        server.stop()


if __name__ == "__main__":
    main()

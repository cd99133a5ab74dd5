"""Needle in a context: a sentence with a number stands somewhere in a long text; does the model find it again, with keys
and values kept in each way? One server for each setting; greedy, so a setting's row is always the same on one machine.

    python3 bench/needle.py models/gemma-3-270m-q4_k_m.gguf --tokens 1000 4000 8000
    python3 bench/needle.py models/SmolLM2-135M-Instruct.Q4_1.gguf --tokens 1000 4000 7900 --settings full tiered sparse-25

The question ends before the verb, so that the number's digits come after a first token of the answer: where decode is
sparse, that is what makes rows of their own ask for them. Texts of one setting share their beginnings up to the needle,
which the prefix cache has then; the deepest needle comes first."""
import argparse
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from conftest import Server  # noqa: E402

CORPUS = ROOT.parent / "shared" / "cases" / "ppl" / "corpus.txt"
SETTINGS = {
    "full": {},
    "int8": {"kv.precision": "int8"},
    "int4": {"kv.precision": "int4"},
    "tiered": {"kv.precision": "tiered"},
    "tiered-short": {"kv.precision": "tiered", "kv.tier_full_tokens": 128, "kv.tier_int8_tokens": 512},
    "sparse-50": {"kv.sparse_above": 512, "kv.sparse_keep": 0.5},
    "sparse-25": {"kv.sparse_above": 512, "kv.sparse_keep": 0.25},
    "sparse-10": {"kv.sparse_above": 512, "kv.sparse_keep": 0.1},
    "tiered-sparse-25": {"kv.precision": "tiered", "kv.sparse_above": 512, "kv.sparse_keep": 0.25},
}
CODES = [("castle of Arnholm", "48213"), ("harbour of Velmora", "73064"), ("library of Kessing", "15982")]
CHARACTERS_PER_TOKEN = 4.0


def text_with(needle, tokens, depth):
    """Whole lines of the corpus, repeated if need be, with the needle after `depth` of them."""
    lines, size = [], 0
    source = CORPUS.read_text().split("\n")
    while size < tokens * CHARACTERS_PER_TOKEN:
        line = source[len(lines) % len(source)]
        lines.append(line)
        size += len(line) + 1
    at = int(len(lines) * depth)
    return "\n".join(lines[:at] + ["", needle, ""] + lines[at:])


def ask(server, tokens, depth, code):
    place, number = code
    fact = f"the secret code of the {place} is {number}."
    text = text_with(f"T{fact[1:]} Remember it: {fact}", tokens, depth)
    status, answer = server.post("/v1/completions", {"prompt": f"{text}\n\nThe secret code of the {place}", "max_tokens": 12, "temperature": 0})
    assert status == 200, answer
    return number in answer["choices"][0]["text"], answer["usage"]["prompt_tokens"]


def row(model, flags, settings, lengths, depths, codes):
    """{tokens asked for: (found, asked, longest prompt)}"""
    flags = [*flags, *(f for key, value in settings.items() for f in ("--set", f"{key}={value}"))]
    server = Server(model, "--max-sequences", "2", "--log-level", "warn", *flags)
    try:
        found = {}
        for tokens in lengths:
            results = [ask(server, tokens, depth, code) for depth in sorted(depths, reverse=True) for code in CODES[:codes]]
            found[tokens] = (sum(ok for ok, _ in results), len(results), max(n for _, n in results))
        return found
    finally:
        server.stop()


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("model")
    args.add_argument("--tokens", type=int, nargs="+", default=[1000, 4000], help="lengths of the text, about")
    args.add_argument("--depths", type=float, nargs="+", default=[0.1, 0.3, 0.5, 0.7, 0.9])
    args.add_argument("--codes", type=int, default=2, help=f"needles for each depth, at most {len(CODES)}")
    args.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    args.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="further flags of `sluice serve`")
    args = args.parse_args()
    for name in args.settings:
        found = row(args.model, args.flags, SETTINGS[name], args.tokens, args.depths, args.codes)
        print(json.dumps({"model": pathlib.Path(args.model).name, "setting": name,
                          "found": {f"{longest} tokens": f"{n} of {asked}" for n, asked, longest in found.values()}}), flush=True)


if __name__ == "__main__":
    main()

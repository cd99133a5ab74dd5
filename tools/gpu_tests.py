"""Runs sluice_gpu_tests, which lies beside this file, in several processes at once: most of its time goes into the judge, which
computes on one core. Prints what failed, a line per suite, and last 'N passed, N failed'.

    python3 gpu_tests.py [--jobs 8] [--limit SECONDS] [--filter PATTERN] [--out FOLDER]
"""
import argparse
import collections
import os
import pathlib
import re
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
RESULT = re.compile(r"^\[ +(OK|FAILED) +\] ([\w/]+)\.([\w/]+).* \((\d+) ms\)$", re.M)
STARTED = re.compile(r"^\[ RUN +\] (\S+)$", re.M)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=min(8, os.cpu_count() or 1))
    parser.add_argument("--limit", type=float, default=300, help="seconds in all")
    parser.add_argument("--filter", default="*")
    parser.add_argument("--out", type=pathlib.Path, default=HERE)
    args = parser.parse_args()
    begin = time.monotonic()
    children = []
    for shard in range(args.jobs):
        log = args.out / f"shard{shard}.log"
        env = dict(os.environ, GTEST_TOTAL_SHARDS=str(args.jobs), GTEST_SHARD_INDEX=str(shard))
        command = [str(HERE / "sluice_gpu_tests"), f"--gtest_filter={args.filter}"]
        children.append((log, subprocess.Popen(command, stdout=open(log, "w"), stderr=subprocess.STDOUT, env=env)))
    passed, failed, slow = collections.Counter(), collections.Counter(), []
    spent = collections.Counter()
    for log, child in children:
        try:
            status = child.wait(timeout=max(0.1, args.limit - (time.monotonic() - begin)))
        except subprocess.TimeoutExpired:
            child.kill()
            status = None
        text = log.read_text(errors="replace")
        results = RESULT.findall(text)
        for outcome, suite, test, took in results:
            (passed if outcome == "OK" else failed)[suite] += 1
            spent[suite] += int(took)
            slow.append((int(took), f"{suite}.{test}"))
        done = {f"{suite}.{test}" for _, suite, test, _ in results}
        for name in STARTED.findall(text):
            if name not in done:
                failed[name.split(".")[0]] += 1
                print(f"{name}: " + ("not done in time" if status is None else f"the program ended with {status}"))
                print(text[-1500:])
        if not results and status != 0:
            failed["sluice_gpu_tests"] += 1
            print(text[-1500:])
        for part in re.split(r"^\[ RUN", text, flags=re.M)[1:]:
            if re.search(r"^\[ +FAILED", part, re.M):
                lines = [line for line in part.splitlines() if " info " not in line]
                print("\n".join(line[:300] for line in lines[:14]))
    print(f"{'suite':28}{'passed':>8}{'failed':>8}{'ms':>9}")
    for suite in sorted(passed | failed):
        print(f"{suite:28}{passed[suite]:>8}{failed[suite]:>8}{spent[suite]:>9}")
    print("slowest: " + ", ".join(f"{name} {took} ms" for took, name in sorted(slow, reverse=True)[:6]))
    print(f"\n{passed.total()} passed, {failed.total()} failed in {time.monotonic() - begin:.0f} s")
    return 0 if passed.total() and not failed.total() else 1


if __name__ == "__main__":
    sys.exit(main())

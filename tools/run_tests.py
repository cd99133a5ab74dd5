"""Runs the project's tests stage by stage, goes on after a failure, and ends with one line 'N passed, N failed'.

    run_tests.py [STAGE…]     all stages, in this order, without arguments:
      checks     layers, format, headers, the generated docs
      unit       every room's test program and the replay of every fuzz corpus (release build)
      blackbox   tests/*.py against the built binary
      browser    tests/browser: the page in a headless Chromium; skipped where /usr/bin/chromium is missing
      accept     the reference cases in ../shared, over HTTP
      cuda       builds the CUDA backend and its tests, which run on a card only; skipped where nvcc is missing
      asan       the rooms that read foreign bytes, and all corpora, under AddressSanitizer and UBSan
      soak       forty rounds of random faults under random traffic (tests/soak), against a server built so
      tsan       the rooms whose threads meet, under ThreadSanitizer
    Only when named:
      transformers  tests/transformers: what `sluice quantize` writes, loaded by transformers on the CPU; installs it from PyPI
      clients    tests/clients: LiteLLM, LangChain and lm-eval against the built binary; installs them from PyPI

Started by ./dev test, which has installed what is needed.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET

ROOT = pathlib.Path(__file__).resolve().parent.parent
CASES = ROOT.parent / "shared"
SKIPPED = object()  # instead of a count: the stage cannot run here; why comes with it
ASAN_ROOMS = ("base", "text", "model", "kv", "sched", "server")
TSAN_ROOMS = ("base", "engine", "server")
# Arithmetic, minutes of it under ThreadSanitizer, on threads that other tests have at work as well.
TSAN_SLOW = ("Batching.TogetherAsAloneOnQuantizedWeights", "Batching.ReplayedAsComputedOpByOp", "KvPrecision.SmallTiersAnswerNearlyAsFullPrecision",
             "LoadModel.SmolLm2Answers")
# What says why a program failed, in the output of gtest, of sanitizers, of CTest and of pytest.
TELLING = re.compile(r"^(?:\[  FAILED  \] .*|\[ HANGS    \] .*|.*(?:ERROR|WARNING): \w+Sanitizer.*|.*runtime error: .*|\s*\d+/\d+ Test .*\*\*\*.*|(?:FAILED|ERROR) tests/.*)$", re.M)
TELLING_LINES = 12  # of one program
told = []  # repeated at the very end, where a reader of a long log looks first
SOAK = ("--rounds", "40", "--seed", "1")  # the same rounds each time; ./dev soak goes on from here


def run(command, **more):
    """Output goes straight through; the status comes back."""
    print("+ " + " ".join(str(c) for c in command), flush=True)
    return subprocess.run([str(c) for c in command], cwd=ROOT, stdin=subprocess.DEVNULL, **more).returncode


def run_counting(command):
    """Shows the output while it comes and returns (status, output)."""
    print("+ " + " ".join(str(c) for c in command), flush=True)
    child = subprocess.Popen([str(c) for c in command], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, errors="replace")
    lines = []
    for line in child.stdout:
        lines.append(line)
        print(line, end="", flush=True)
    status, output = child.wait(), "".join(lines)
    if status:
        told.extend(f"{pathlib.Path(str(command[0])).name}: {line}" for line in dict.fromkeys(TELLING.findall(output)[:TELLING_LINES]))
    return status, output


def build(preset, targets):
    env = dict(os.environ, NINJA_STATUS="[%f/%t %es] ")
    return run(["cmake", "--build", f"build/{preset}", "--target", *targets], env=env) == 0


def ctest(preset, only=None):
    """(passed, failed): the cases of gtest programs one by one, other programs (fuzz replays) as one each."""
    results = ROOT / "build" / preset / "test-results"
    shutil.rmtree(results, ignore_errors=True)
    os.environ["GTEST_OUTPUT"] = f"xml:{results}/"
    status, programs = run_programs(preset, only)
    # A machine that stood still for minutes looks like a hang, so a program that hangs has one more try; that it did is told.
    hung = [name for name, (outcome, text) in programs.items() if "Timeout" in outcome or "[ HANGS " in text]
    for name in hung:
        outcome, text = programs[name]
        told.append(f"{preset}: {name} hung; its last line: {(text.splitlines() or [''])[-1]}")
        programs.update(run_programs(preset, f"^{name}$")[1])
        told.append(f"{preset}: {name}, once more: {programs[name][0]}")
    passed = failed = 0
    for name, (outcome, _) in programs.items():
        try:
            suites = ET.parse(results / f"{name}_test.xml").getroot()
            cases, bad = int(suites.get("tests")), int(suites.get("failures")) + int(suites.get("errors"))
        except (OSError, ET.ParseError):
            cases, bad = 1, 0  # not gtest, or it died before writing
        if outcome != "Passed":
            bad = max(bad, 1)
        passed, failed = passed + cases - bad, failed + bad
    if status and not failed and not hung or not programs:
        failed += 1
    return passed, failed


def run_programs(preset, only):
    """(status, {name: (outcome, what it printed if it failed)})"""
    command = ["ctest", "--test-dir", ROOT / "build" / preset, "--output-on-failure", "--timeout", "900", "-j", "2"]
    status, output = run_counting(command + (["-R", only] if only else []))
    _, *parts = re.split(r"^\s*\d+/\d+ Test\s+#\d+: (\S+) \.+\s*(Passed|[^*\n]*\*\*\*\w+).*\n", output, flags=re.M)
    printed = (re.split(r"^(?:\s+Start\s+\d+: .*|\d+% tests passed.*)$", text, flags=re.M)[0].strip() for text in parts[2::3])
    return status, dict(zip(parts[0::3], zip(parts[1::3], printed)))


def stage_checks():
    commands = [["tools/check_layers"], ["tools/check_format"], ["tools/check_headers"],
                [sys.executable, "tools/config_docs.py", "build/release/sluice", "--check"]]
    built = build("release", ["sluice"])
    outcomes = [run(c) == 0 for c in commands]
    outcomes.append(built)
    return sum(outcomes), len(outcomes) - sum(outcomes)


def stage_unit():
    if not build("release", ["all"]):
        return 0, 1
    return ctest("release")


def pytest(*arguments, python=sys.executable):
    """(passed, failed) of a run over the release build."""
    if not build("release", ["sluice"]):
        return 0, 1
    status, output = run_counting([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=5", *arguments])
    counts = dict((word, int(n)) for n, word in re.findall(r"(\d+) (passed|failed|errors?)\b", output.splitlines()[-1] if output else ""))
    failed = counts.get("failed", 0) + counts.get("error", 0) + counts.get("errors", 0)
    return counts.get("passed", 0), max(failed, 1) if status else failed


def stage_blackbox():
    return pytest("tests", "--ignore=tests/browser", "--ignore=tests/clients", "--ignore=tests/transformers")


def stage_clients():
    return pytest("tests/clients", "-W", "ignore", python=ROOT / "build/clients/bin/python")


def stage_transformers():
    return pytest("tests/transformers", "-W", "ignore", python=ROOT / "build/transformers/bin/python")


def stage_browser():
    if not pathlib.Path("/usr/bin/chromium").exists():
        return SKIPPED, "/usr/bin/chromium is not here"
    return pytest("tests/browser")


def stage_accept():
    script = CASES / "accept" / "accept.py"
    if not script.exists():
        print(f"{script} is missing: the reference cases lie beside the checkout, in ../shared")
        return 0, 1
    if not build("release", ["sluice"]):
        return 0, 1
    status, output = run_counting([sys.executable, script, "--sluice", ROOT / "build/release/sluice", "--models", ROOT / "models",
                                   "--cases", CASES / "cases"])
    last = re.findall(r"^(\d+) passed, (\d+) failed$", output, re.M)
    passed, failed = map(int, last[-1]) if last else (0, 1)
    return passed, max(failed, 1) if status else failed


def with_cuda(preset):
    cache = ROOT / "build" / preset / "CMakeCache.txt"
    return cache.exists() and "SLUICE_CUDA:BOOL=ON" in cache.read_text(errors="replace")


def stage_cuda():
    nvcc = os.environ.get("CUDACXX") or shutil.which("nvcc", path=os.environ.get("PATH", "") + ":/usr/local/cuda/bin")
    if not nvcc:
        return SKIPPED, "nvcc is not here, so the CUDA code was not built"
    preset = "release" if with_cuda("release") else "cuda"
    if not with_cuda(preset) and run(["cmake", "--preset", preset, "-DSLUICE_TESTS=ON"]) != 0:
        return 0, 1
    outcomes = [build(preset, [target]) for target in ("sluice", "sluice_gpu_tests")]
    return sum(outcomes), len(outcomes) - sum(outcomes)


def configured(preset):
    return (ROOT / "build" / preset / "build.ninja").exists() or run(["cmake", "--preset", preset]) == 0


def stage_asan():
    preset = ROOT / "build/asan"
    if not configured("asan"):
        return 0, 1
    listing = subprocess.run(["ninja", "-C", str(preset), "-t", "targets", "all"], capture_output=True, text=True).stdout
    pattern = r"^(fuzz_\w+|(?:" + "|".join(ASAN_ROOMS) + r")_test): phony$"
    targets = re.findall(pattern, listing, re.M)
    if not targets or not build("asan", targets):
        return 0, 1
    names = "|".join(t.removesuffix("_test") for t in targets)
    os.environ.setdefault("ASAN_OPTIONS", "allocator_may_return_null=1")
    return ctest("asan", f"^({names})$")


def stage_soak():
    """Rounds that passed and failed."""
    if not configured("asan") or not build("asan", ["sluice"]):
        return 0, 1
    status, output = run_counting([sys.executable, "tests/soak/soak.py", *SOAK])
    last = re.findall(r"^(\d+) passed, (\d+) failed$", output, re.M)
    passed, failed = map(int, last[-1]) if last else (0, 1)
    return passed, max(failed, 1) if status else failed


def stage_tsan():
    if not configured("tsan") or not build("tsan", [f"{room}_test" for room in TSAN_ROOMS]):
        return 0, 1
    os.environ.setdefault("TSAN_OPTIONS", "second_deadlock_stack=1")
    os.environ["GTEST_FILTER"] = "-" + ":".join(TSAN_SLOW)
    try:
        return ctest("tsan", f"^({'|'.join(TSAN_ROOMS)})$")
    finally:
        del os.environ["GTEST_FILTER"]


STAGES = {"checks": stage_checks, "unit": stage_unit, "blackbox": stage_blackbox, "browser": stage_browser, "accept": stage_accept, "cuda": stage_cuda,
          "asan": stage_asan, "soak": stage_soak, "tsan": stage_tsan}
NIGHTLY = {"clients": stage_clients, "transformers": stage_transformers}  # large downloads: only when named


def main():
    wanted = sys.argv[1:] or list(STAGES)
    stages = STAGES | NIGHTLY
    unknown = [s for s in wanted if s not in stages]
    if unknown:
        print(f"no stage named '{unknown[0]}' (stages: {' '.join(stages)})", file=sys.stderr)
        return 2
    rows, skipped = [], []
    for name in wanted:
        print(f"\n==> {name}", flush=True)
        start = time.monotonic()
        passed, failed = stages[name]()
        if passed is SKIPPED:
            skipped.append(f"{name:10} skipped: {failed}")
            continue
        rows.append((name, passed, failed, time.monotonic() - start))
    print()
    for line in told:
        print(line)
    for name, passed, failed, took in rows:
        print(f"{name:10} {passed:6} passed {failed:4} failed {took:7.0f} s")
    for line in skipped:
        print(line)
    passed, failed = sum(r[1] for r in rows), sum(r[2] for r in rows)
    print(f"\n{passed} passed, {failed} failed", flush=True)
    return 0 if (passed or skipped) and not failed else 1


if __name__ == "__main__":
    sys.exit(main())

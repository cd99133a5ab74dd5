"""`sluice tune` on a tiny model: its report against the raw samples, and what goes wrong. Nothing here depends on how fast the machine is: a slow
one measures less, and says so."""
import json
import math
import random
import re
import signal
import socket
import subprocess

import pytest

from conftest import ROOT, SLUICE, TIMEOUT_S, run_sluice

MODEL = ROOT.parent / "shared" / "cases" / "tiny" / "qwen3-qknorm"
LOAD = ["--concurrency", 4, "--input-tokens", 12, "--output-tokens", 8, "--threads", 1]
STEPS = ["start", "batching", "kv", "weights", "kernels", "scheduler", "system", "search"]
COMPLETED, FAILED, OPEN = range(3)


def tune(folder, *flags, timeout=20 * TIMEOUT_S):
    return run_sluice("tune", MODEL, *LOAD, "-o", folder, *flags, timeout=timeout)


def samples_of(folder):
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines() if line]


def percentile(values, q):
    values, rank = sorted(values), q * (len(values) - 1)
    low = math.floor(rank)
    return values[low] + (rank - low) * (values[min(low + 1, len(values) - 1)] - values[low])


def tokens_between(request, begin, end):
    """Evenly from the first to the last; all at once where they came so."""
    _, first, ended, tokens, _ = request
    if first < 0:
        return 0
    if ended <= first:
        return tokens if begin <= first < end else 0
    return tokens * max(0, min(end, ended) - max(begin, first)) / (ended - first)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tune") / "report"
    done = tune(folder, "--budget", "60s", "--long-contexts", 64)
    assert done.returncode == 0, done.stderr
    return folder, json.loads((folder / "result.json").read_text()), done


def measured(result):
    """Every measurement of a report, also those of variants that were not chosen."""
    for step in result["steps"]:
        if step["measured"]:
            yield step
            yield from step["others"]


def test_every_figure_follows_from_the_raw_samples(report):
    folder, result, _ = report
    runs = {(run["model"], json.dumps(run["settings"])): run for run in samples_of(folder) if run["requests"]}
    assert list(measured(result))[0]["command"].startswith("sluice serve ")
    for step in measured(result):
        if "failure" in step:
            continue
        run = runs[step["model"], json.dumps(step["settings"])]
        ended = [r for r in run["requests"] if r[4] != OPEN and r[2] > step["warm_up_s"]]
        whole = [r for r in ended if r[4] == COMPLETED]
        assert (step["completed"], step["failed"]) == (len(whole), sum(r[4] == FAILED for r in ended))
        assert step["open"] == sum(r[4] == OPEN for r in run["requests"])
        assert step["measured_s"] == pytest.approx(run["load_s"] - step["warm_up_s"])
        if whole and not step["p95_at_least"]:
            assert step["p95_ms"] == pytest.approx(percentile([1000 * (r[2] - r[0]) for r in whole], 0.95))
        counts, tokens, seconds = 0, 0, 0
        for (begin, end), qps in zip(step["windows"], step["qps_samples"]):
            here = sum(begin < r[2] <= end for r in whole)
            assert qps == pytest.approx(here / (end - begin))
            counts, seconds = counts + here, seconds + end - begin
            tokens += sum(tokens_between(r, begin, end) for r in run["requests"])
        if seconds:
            assert step["qps"] == pytest.approx(counts / seconds)
            assert step["output_tok_s"] == pytest.approx(tokens / seconds, rel=1e-6)


def test_the_start_and_seven_steps_are_told_with_reasons(report):
    _, result, done = report
    assert [s["name"] for s in result["steps"]] == STEPS
    assert result["steps"][0]["kept"] and result["steps"][0]["settings"]["scheduler.policy"] == "serial"
    for step in result["steps"]:
        assert step["reason"] and step["name"] in done.stdout
        assert step["measured"] or not step["kept"]
    last = [s for s in result["steps"] if s["kept"]][-1]
    assert result["final"]["step"] == last["name"] and result["final"]["command"] == last["command"]


def test_the_planted_cause_is_named_before_the_step_that_removes_it(report):
    _, result, _ = report
    start, batching = result["steps"][:2]
    if start["completed"] > 50:  # so that there were steps to look at
        assert batching["named_before"] == "batch-policy-mismatch"
        assert start["one_sequence_step_share"] == 1


def test_what_to_keep_is_a_file_to_serve_with(report, start):
    folder, result, _ = report
    last = [s for s in result["steps"] if s["kept"]][-1]
    printed = run_sluice("serve", "--config", folder / "sluice.yaml", "--print-config")
    assert printed.returncode == 0, printed.stderr
    policy = last["settings"].get("scheduler.policy", "")
    assert re.search(rf'^  policy: "{policy}"', printed.stdout, re.M)
    server = start(f"--config={folder / 'sluice.yaml'}")
    assert server.get("/ready")[0] == 200
    assert server.stop()[0] == 0


def test_the_page_needs_nothing_but_itself(report):
    html = (report[0] / "index.html").read_text()
    assert html.startswith("<!doctype html>") and html.count("<svg") > 5
    assert not re.search(r"https?://|<script|<link|<img|src=|url\(", html)


def test_what_was_measured_is_not_measured_again(report):
    folder, before, _ = report
    kept = (folder / "samples.jsonl").read_bytes()
    done = tune(folder, "--budget", "0.1s")
    assert done.returncode == 0, done.stderr
    assert "taken from samples.jsonl" in done.stderr
    after = json.loads((folder / "result.json").read_text())
    assert after["steps"][0]["qps"] == before["steps"][0]["qps"]
    assert (folder / "samples.jsonl").read_bytes().startswith(kept)


def test_other_contexts_are_measured_where_all_else_was_before(report):
    folder, before, _ = report
    done = tune(folder, "--budget", "120s", "--long-contexts", 48)
    assert done.returncode == 0, done.stderr
    after = json.loads((folder / "result.json").read_text())
    assert after["steps"][0]["qps"] == before["steps"][0]["qps"], "taken from samples.jsonl"
    for when in ("long_contexts_before", "long_contexts_after"):  # a fast machine gives an answer in one piece, which has no rate
        assert [row["tokens"] for row in after[when]] == [48] or "48 tokens: an answer of less than two events" in done.stderr, done.stderr


def test_a_budget_that_is_too_short_says_what_it_left_out(tmp_path):
    done = tune(tmp_path / "short", "--budget", "0.1s")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "short" / "result.json").read_text())
    assert "search" in result["left_out"] and any("batching" in what for what in result["left_out"])
    assert "left out" in done.stdout
    assert [s["measured"] for s in result["steps"]] == [True] + 7 * [False]


def test_an_slo_that_cannot_be_kept_names_the_nearest(tmp_path):
    done = tune(tmp_path / "slo", "--budget", "0.1s", "--slo", "p95_ms<0.001")
    assert done.returncode == 1
    assert re.search(r"no configuration kept p95_ms<0.001 under this load; the nearest came to p95_ms", done.stderr)
    assert (tmp_path / "slo" / "sluice.yaml").exists()


def test_an_interruption_keeps_what_was_measured(tmp_path):
    folder = tmp_path / "broken_off"
    process = subprocess.Popen([str(SLUICE), "tune", str(MODEL), *map(str, LOAD), "-o", str(folder), "--budget", "1h", "--long-contexts", "0"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert "start" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode in (1, 130)
    assert "interrupted before the start was measured" in said or (folder / "result.json").exists()
    assert tune(folder, "--budget", "0.1s").returncode == 0  # and it goes on


def test_four_bit_weights_are_made_of_a_real_model(tmp_path):
    for name, seed in (("calibration", 1), ("judged", 2)):
        draw = random.Random(seed)
        (tmp_path / f"{name}.txt").write_text(" ".join("".join(draw.choices("abcdefghijklmnop", k=draw.randint(2, 9))) for _ in range(900)))
    flags = ["--calibration", tmp_path / "calibration.txt", "--eval-data", tmp_path / "judged.txt"]
    done = tune(tmp_path / "small", "--budget", "0.1s", *flags)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "small" / "awq" / "config.json").exists()
    result = json.loads((tmp_path / "small" / "result.json").read_text())
    assert re.match(r"perplexity [0-9.]+, mean KL [0-9.]+ nats", result["accuracy"])
    weights = next(s for s in result["steps"] if s["name"] == "weights")
    assert "budget" in weights["reason"]  # there is something to try, and no time for it
    exact = tune(tmp_path / "exact", "--budget", "0.1s", "--exact", *flags)
    assert exact.returncode == 0 and not (tmp_path / "exact" / "awq").exists()


def test_two_sessions_in_one_folder_are_refused(tmp_path):
    folder = tmp_path / "shared"
    first = subprocess.Popen([str(SLUICE), "tune", str(MODEL), *map(str, LOAD), "-o", str(folder), "--budget", "1h"], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
    assert "start" in first.stderr.readline()
    second = tune(folder)
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=TIMEOUT_S)
    assert (second.returncode, second.stdout) == (1, "")
    assert "another sluice tune works in this folder" in second.stderr


def test_files_and_lengths_that_do_nothing_are_named(tmp_path):
    assert "--calibration: File does not exist" in tune(tmp_path / "a", "--calibration", tmp_path / "none").stderr
    text = tmp_path / "text.txt"
    text.write_text("x")
    assert "--eval-data requires --calibration" in tune(tmp_path / "b", "--eval-data", text).stderr
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        done = tune(tmp_path / "c", "--port", s.getsockname()[1], "--long-contexts", "64,99999")
        assert done.stderr.startswith("--long-contexts: 99999 not measured: the context has 4096 tokens\n")
        assert "or give another port" in done.stderr


def test_a_port_in_use_is_said(tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        done = tune(tmp_path / "port", "--port", s.getsockname()[1])
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 2
    assert "in use" in done.stderr


def test_the_users_own_key_is_not_for_the_servers_that_are_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("SLUICE_API_KEY", "secret")
    done = tune(tmp_path / "key", "--budget", "1s", "--long-contexts", 0)
    assert done.returncode == 0, done.stderr


def test_a_model_that_does_not_fit_is_said(tmp_path):
    done = tune(tmp_path / "large", "--set", "engine.kv_bytes=1000")
    assert done.returncode == 1
    assert "are not enough for a context of" in done.stderr
    assert not (tmp_path / "large" / "result.json").exists()


@pytest.mark.parametrize("flags, said", [
    (["--slo", "p95<3"], "--slo: expected METRIC<MS"),
    (["--order", "kv,speed"], "--order: no step named 'speed'"),
    (["--budget", "soon"], "--budget: expected a time"),
    (["--ctx", "16"], "does not fit the context"),
    (["--shared-prefix", "13"], "--shared-prefix: more than --input-tokens"),
])
def test_wrong_use_is_one_line(tmp_path, flags, said):
    done = tune(tmp_path / "wrong", *flags)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "wrong").exists()


def test_a_report_without_a_name_is_wrong_use():
    done = run_sluice("tune", MODEL, "-o", "")
    assert (done.returncode, done.stdout) == (2, "") and "--output: is empty" in done.stderr

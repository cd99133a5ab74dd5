"""Troubles provoked for real, and what the doctor says of them: each is named, over all other findings of the server's own. What the test
machine does besides (cores that others use) may rank anywhere: it is true there."""
import contextlib
import http.client
import itertools
import json
import os
import socket
import subprocess
import sys
import threading

import pytest
from conftest import SMOLLM2, TIMEOUT_S, run_sluice

OF_THE_MACHINE = {"cpu-scheduling-delay", "oversubscribed-cores", "host-bound"}
WINDOW = "/v1/diagnosis?window_s=120"


@contextlib.contextmanager
def clients(server, count, body_of):
    """`count` clients, each asking again as soon as it has its answer, until the block ends."""
    over = threading.Event()
    failures = []

    def ask(client):
        for turn in range(1_000_000):
            if over.is_set():
                return
            status, answer = server.post("/v1/completions", body_of(client, turn))
            if status != 200:
                failures.append(answer)
                return

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not failures, failures[0]


def short(client, turn):
    return {"prompt": [1000 + 7 * client, 1001 + turn % 5000], "max_tokens": 24, "temperature": 0, "ignore_eos": True}


def prompt_of(tokens, client, turn):
    return [1000 + (client * 131 + turn * 17 + i * 7) % 7000 for i in range(tokens)]


def findings_until(server, cause):
    """What the doctor says once it names `cause`. The server looks once a second, and its live events, which come then, pace the asking."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=TIMEOUT_S)
    connection.request("GET", "/v1/live")
    said = []
    for line in itertools.islice(connection.getresponse(), 3 * TIMEOUT_S):
        if line.startswith(b"data:"):
            said = server.get(WINDOW)[1]["findings"]
            if any(f["cause"] == cause for f in said):
                connection.close()
                return said
    raise AssertionError(f"{cause} is not among {[f['cause'] for f in said]}: {server.get(WINDOW)}")


def of_the_server(findings):
    return [f for f in findings if f["cause"] not in OF_THE_MACHINE]


PROVOKED = {
    "batch-policy-mismatch": (["scheduler.policy=serial"], 8, short),
    "queue-saturation": (["engine.max_sequences=1"], 8, short),
    # Room for two contexts of 2048 tokens, of which each request uses thirty.
    "kv-preallocation-waste": (["kv.allocation=contiguous_max_context", "engine.kv_bytes=100000000"], 12, short),
    # 700 tokens of room for eight requests of 330; the newest give way.
    "preemption-thrash": (["engine.kv_bytes=24000000", "kv.prefix_cache=false"], 8,
                          lambda client, turn: {"prompt": prompt_of(30, client, turn), "max_tokens": 300, "temperature": 0,
                                                "ignore_eos": True}),
    # The same room for two who each come back with four prompts of 500, in turns.
    "prefix-thrash": (["engine.kv_bytes=24000000"], 2,
                      lambda client, turn: {"prompt": prompt_of(500, client, turn % 4), "max_tokens": 2, "temperature": 0}),
}


@pytest.mark.parametrize("cause", PROVOKED)
def test_a_provoked_trouble_is_named_first(start, cause):
    settings, count, body = PROVOKED[cause]
    server = start(SMOLLM2, "--ctx", "2048", *[flag for s in settings for flag in ("--set", s)])
    with clients(server, count, body):
        findings = findings_until(server, cause)
    first = of_the_server(findings)[0]
    assert first["cause"] == cause, findings
    assert 0 < first["lost"] < 1 and first["gain"] == pytest.approx(first["lost"] / (1 - first["lost"]))
    assert len(first["evidence"]) >= 2 and first["setting"] and first["text"]
    assert server.stop()[0] == 0


def test_a_pool_that_is_too_small_is_named(start):
    """700 tokens of room for eight prompts of 200; answers are short, so that nobody is preempted, and prompts come often."""
    server = start(SMOLLM2, "--ctx", "2048", "--set", "engine.kv_bytes=24000000", "--set", "kv.prefix_cache=false")
    with clients(server, 8, lambda client, turn: {"prompt": prompt_of(200, client, turn), "max_tokens": 40, "temperature": 0, "ignore_eos": True}):
        found = next(f for f in findings_until(server, "kv-pool-too-small") if f["cause"] == "kv-pool-too-small")
    assert "engine.kv_bytes" in found["setting"]


def test_clients_that_do_not_read_are_named(start):
    server = start(SMOLLM2, "--set", "server.write_timeout_ms=600000")
    body = json.dumps({"prompt": "Once", "max_tokens": 8000, "stream": True, "ignore_eos": True, "temperature": 0, "logprobs": 20}).encode()
    silent = []
    for _ in range(3):
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect((server.host, server.port))
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        silent.append(s)
    with clients(server, 1, short):  # whoever reads goes on
        findings = findings_until(server, "slow-readers")
    assert "slow-readers" in [f["cause"] for f in of_the_server(findings)]
    for s in silent:
        s.close()


def test_more_compute_threads_than_cores_are_named(start):
    server = start(SMOLLM2, "--threads", 2 * os.cpu_count() + 1)
    with clients(server, 2, short):
        assert "oversubscribed-cores" in [f["cause"] for f in findings_until(server, "oversubscribed-cores")]


# With a fault (docs/faults.md), where the trouble is in the server itself.
PLANTED = {
    "host-bound": ("cpu_stall:every=1,amount=200", 4, short),
    "broken-tokens": ("nan_logits:rate=0.2,amount=3", 4, short),
    "slow-tokens": ("slow_step:every=40,amount=1500", 2, short),
}


@pytest.mark.parametrize("cause", PLANTED)
def test_a_planted_trouble_is_named(start, cause):
    faults, count, body = PLANTED[cause]
    server = start(SMOLLM2, faults=faults)
    with clients(server, count, body):
        found = next(f for f in findings_until(server, cause) if f["cause"] == cause)
    assert 0 < found["lost"] < 1 and len(found["evidence"]) >= 2 and found["setting"] and found["text"]


def test_long_prompts_in_the_steps_of_others_are_named(start):
    server = start(SMOLLM2, "--set", "scheduler.target_itl_ms=60000", "--set", "kv.prefix_cache=false")
    bodies = [lambda c, t: {**short(c, t), "max_tokens": 200},
              lambda c, t: {"prompt": prompt_of(1500, c, t), "max_tokens": 1, "temperature": 0}]
    with clients(server, 3, lambda client, turn: bodies[client == 2](client, turn)):
        findings = findings_until(server, "long-prompt-interference")
    assert "long-prompt-interference" in [f["cause"] for f in of_the_server(findings)]


def test_a_door_that_takes_longer_than_the_engine_is_named(start):
    """An engine that computes nothing leaves the time to JSON and the tokenizer."""
    server = start("--dummy=null", "--step-tokens", 8192)
    with clients(server, 4, lambda client, turn: {"prompt": f"{client} {turn} " + "word " * 1500, "max_tokens": 1}):
        findings = findings_until(server, "door-bound")
    assert of_the_server(findings)[0]["cause"] == "door-bound"


def test_a_machine_that_others_use_is_named(start):
    server = start(SMOLLM2)
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3 * os.cpu_count())]
    try:
        with clients(server, 2, short):
            findings = findings_until(server, "cpu-scheduling-delay")
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    assert "sluice-" in next(f for f in findings if f["cause"] == "cpu-scheduling-delay")["text"]


def test_an_idle_server_has_no_trouble_of_its_own(smollm2):
    answer = smollm2.get("/v1/diagnosis?window_s=1")[1]
    assert answer["object"] == "diagnosis" and not of_the_server(answer["findings"])
    assert {"steps", "bandwidth_share", "compute_share", "gap_share", "cards"} <= answer["seen"].keys()


@pytest.mark.parametrize("window", ["0", "121", "x", "-1"])
def test_a_window_that_is_none_is_refused(smollm2, window):
    status, answer = smollm2.get(f"/v1/diagnosis?window_s={window}")
    assert status == 400 and answer["error"]["param"] == "window_s"


def test_the_command_prints_it_for_people_and_as_json(start):
    server = start(SMOLLM2, "--set", "scheduler.policy=serial")
    with clients(server, 6, short):
        findings_until(server, "batch-policy-mismatch")
        told = run_sluice("doctor", server.url, "--window", 120)
        data = run_sluice("doctor", server.url, "--window", 120, "--json")
    assert told.returncode == 0 and "batch-policy-mismatch" in told.stdout and "change: scheduler.policy: continuous" in told.stdout
    first = of_the_server(json.loads(data.stdout)["findings"])[0]
    assert first["cause"] == "batch-policy-mismatch" and {"cause", "evidence", "setting", "gain"} <= first.keys()


def test_the_command_says_what_is_wrong_with_its_use():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        nobody = run_sluice("doctor", f"http://127.0.0.1:{s.getsockname()[1]}")
    assert nobody.returncode == 1 and nobody.stderr.count("\n") == 1
    assert run_sluice("doctor", "ftp://x").returncode == 2
    assert run_sluice("doctor", "--window", "0").returncode == 2

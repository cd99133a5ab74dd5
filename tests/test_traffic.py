"""Traffic control from outside: a canary in a second process, one that fails, and what a hanging or dying engine leaves."""
import http.server
import signal
import threading

import pytest
from conftest import SMOLLM2, TIMEOUT_S, until

TEXT = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
THERE = {"X-Canary": "always"}


def test_a_canary_in_another_process_streams_and_its_end_is_not_felt(start):
    canary = start(SMOLLM2)
    server = start(SMOLLM2, "--set", f"traffic.canary.upstream={canary.url}")
    status, here = server.post("/v1/completions", TEXT)
    assert status == 200
    status, there = server.post("/v1/completions", TEXT, THERE)
    assert (status, there["choices"]) == (200, here["choices"])
    assert canary.metric("sluice_http_generations_started_total") == 1
    status, events = server.post("/v1/completions", {**TEXT, "stream": True}, THERE)
    assert status == 200 and events.rstrip().endswith("data: [DONE]")
    assert canary.metric("sluice_http_generations_started_total") == 2
    canary.process.kill()
    canary.process.wait(timeout=TIMEOUT_S)
    for _ in range(8):
        assert server.post("/v1/completions", TEXT, THERE)[0] == 200
    metrics = server.get("/metrics")[1]
    assert 'sluice_breaker_openings_total{pool="canary"} 1' in metrics
    assert server.stop()[0] == 0


@pytest.fixture
def failing():
    """A server that answers 500, and counts."""
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.server.asked += 1
            self.send_response(500)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.asked = 0
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_upstream_that_fails_is_left_alone_and_nobody_notices(start, failing):
    url = f"http://127.0.0.1:{failing.server_address[1]}"
    server = start(SMOLLM2, "--set", f"traffic.canary.upstream={url}", "--set", "traffic.breaker.upstream=quick")
    for _ in range(6):
        assert server.post("/v1/completions", TEXT, THERE)[0] == 200
    assert failing.asked == 3
    assert 'sluice_breaker_state{pool="canary"} 1' in server.get("/metrics")[1]
    assert server.stop()[0] == 0


def test_a_step_that_hangs_ends_the_process_with_the_last_steps(start, monkeypatch):
    monkeypatch.setenv("SLUICE_FAULTS", "slow_step:from=40,amount=3600000,count=1")
    server = start(SMOLLM2, "--set", "engine.watchdog_s=20")
    monkeypatch.delenv("SLUICE_FAULTS")
    with pytest.raises(OSError):
        server.post("/v1/completions", {**TEXT, "max_tokens": 200})
    log = server.process.communicate(timeout=TIMEOUT_S)[1]
    assert server.process.returncode not in (0, None)
    assert "watchdog: the engine has been at one step for" in log and "under way: step" in log


def test_a_crash_leaves_the_last_steps(start):
    server = start(SMOLLM2)
    assert server.post("/v1/completions", TEXT)[0] == 200
    server.signal(signal.SIGSEGV)
    log = server.process.communicate(timeout=TIMEOUT_S)[1]
    assert server.process.returncode != 0
    assert f"signal {int(signal.SIGSEGV)}; the last steps:" in log and "sluice: step" in log


def test_under_load_batch_is_refused_first_and_those_let_in_are_answered(start):
    server = start(SMOLLM2, "--set", "traffic.limit.mode=rule", "--set", "traffic.limit.min=8", "--set", "traffic.limit.max=8", "--set",
                   "engine.max_sequences=1")
    long = server.stream("/v1/completions", {**TEXT, "max_tokens": 8000})
    next(long.events())  # it has the only seat
    answers = {"interactive": [], "standard": [], "batch": []}

    def ask(lane):
        answers[lane].append(server.post("/v1/completions", TEXT, {"X-Priority": lane})[0])

    clients = []
    for lane, count in (("batch", 4), ("standard", 2), ("interactive", 2)):
        for _ in range(count):
            clients.append(threading.Thread(target=ask, args=(lane,)))
            clients[-1].start()
            assert until(lambda: server.metric("sluice_traffic_waiting") == len(clients))
        if lane != "interactive":
            ask(lane)
            assert answers[lane] == [429]
    long.close()
    for client in clients:
        client.join(TIMEOUT_S)
    assert sorted(answers["batch"]) == [200] * 4 + [429] and sorted(answers["standard"]) == [200] * 2 + [429]
    assert answers["interactive"] == [200] * 2
    assert server.stop()[0] == 0

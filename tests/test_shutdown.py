"""The end of a server: orderly after one signal, at once after two."""
import signal
import subprocess
import threading

from conftest import SMOLLM2, TIMEOUT_S, until

LONG = {"prompt": "Once upon a time", "max_tokens": 150, "ignore_eos": True}


def test_idle_server_ends_with_zero(start):
    server = start(SMOLLM2)
    assert server.get("/ready")[0] == 200
    assert server.stop()[0] == 0


def test_sigint_is_as_good(start):
    server = start(SMOLLM2)
    server.signal(signal.SIGINT)
    server.process.communicate(timeout=TIMEOUT_S)
    assert server.process.returncode == 0


def test_running_answers_are_finished_and_new_ones_refused(start):
    server = start(SMOLLM2)
    stream = server.stream("/v1/completions", LONG)
    events = stream.events()
    next(events)
    server.signal()
    assert until(lambda: not accepts(server))
    rest = list(events)
    assert rest[-1] == "[DONE]"
    assert rest[-2]["choices"][0]["finish_reason"] == "length"
    server.process.communicate(timeout=TIMEOUT_S)
    assert server.process.returncode == 0


def accepts(server):
    try:
        return server.get("/ready")[0] == 200
    except OSError:
        return False


def test_the_drain_has_an_end(start):
    server = start(SMOLLM2, "--set", "server.drain_timeout_ms=300")
    stream = server.stream("/v1/completions", {**LONG, "max_tokens": 8000})
    next(stream.events())
    assert server.stop()[0] == 0


def test_second_signal_ends_at_once(start):
    server = start(SMOLLM2)
    stream = server.stream("/v1/completions", {**LONG, "max_tokens": 8000})
    next(stream.events())
    server.signal()
    assert until(lambda: not accepts(server))
    # One that comes at once is the same wish said twice; a later one is not.
    assert until(lambda: ends_within(server, 0.1))
    server.process.communicate(timeout=TIMEOUT_S)
    assert server.process.returncode in (128 + signal.SIGTERM, 0)


def ends_within(server, seconds):
    server.signal()
    try:
        return server.process.wait(timeout=seconds) is not None
    except subprocess.TimeoutExpired:
        return False


def test_who_waits_in_a_window_is_answered_at_once(start):
    """A window of a minute, which nothing would fill: the signal ends it."""
    server = start(SMOLLM2, "--set", "scheduler.policy=windowed", "--set", "scheduler.window.window_ms=60000", "--set",
                   "scheduler.window.batch_timeout_ms=60000", "--set", "scheduler.window.min_trigger_interval_ms=60000")
    answers = []
    client = threading.Thread(target=lambda: answers.append(server.post("/v1/completions", {**LONG, "max_tokens": 5})))
    client.start()
    assert until(lambda: server.metric("sluice_requests_waiting") == 1)
    server.signal()
    client.join(timeout=TIMEOUT_S)
    assert answers[0][0] == 200 and answers[0][1]["choices"][0]["finish_reason"] == "length"
    server.process.communicate(timeout=TIMEOUT_S)
    assert server.process.returncode == 0

"""The end of a server: orderly after one signal, at once after two."""
import signal

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
    server.signal()
    server.process.communicate(timeout=TIMEOUT_S)
    assert server.process.returncode in (128 + signal.SIGTERM, 0)

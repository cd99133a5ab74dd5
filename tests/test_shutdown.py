"""The end of a server: orderly after one signal, at once after two."""
import http.client
import signal
import socket
import subprocess
import threading

import pytest
from conftest import SLUICE, SMOLLM2, TIMEOUT_S, until

LONG = {"prompt": "Once upon a time", "max_tokens": 150, "ignore_eos": True}


def ended(server):
    """The exit status of one that has been told to end; Server.stop would tell it again, which is another wish."""
    server.process.communicate(timeout=TIMEOUT_S)
    return server.process.returncode


def test_idle_server_ends_with_zero(start):
    server = start(SMOLLM2)
    assert server.get("/ready")[0] == 200
    assert server.stop()[0] == 0


def test_sigint_is_as_good(start):
    server = start(SMOLLM2)
    server.signal(signal.SIGINT)
    assert ended(server) == 0


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
    assert ended(server) == 0


def accepts(server):
    try:
        return server.get("/ready")[0] == 200
    except OSError:
        return False


def test_while_it_drains_it_lives_but_is_not_ready(start):
    server = start(SMOLLM2)
    stream = server.stream("/v1/completions", {**LONG, "max_tokens": 4000})
    events = stream.events()
    next(events)
    server.signal()
    assert until(lambda: server.get("/ready")[0] == 503)
    assert server.get("/ready")[1]["status"] == "draining" and server.get("/health")[0] == 200
    status, answer = server.post("/v1/completions", LONG)
    assert status == 503 and "shutting down" in answer["error"]["message"]
    stream.close()
    assert ended(server) == 0


@pytest.mark.parametrize("streamed", [True, False])
def test_who_waits_in_the_queue_is_served_while_it_drains(start, streamed):
    server = start(SMOLLM2, "--max-sequences", "1")
    first = server.stream("/v1/completions", LONG)
    running = first.events()
    next(running)
    answers = []
    client = threading.Thread(target=lambda: answers.append(read(server, streamed)))
    client.start()
    assert until(lambda: server.metric("sluice_requests_waiting") == 1)
    server.signal()
    client.join(timeout=TIMEOUT_S)
    assert answers == [(200, "length")]
    assert list(running)[-1] == "[DONE]"
    assert ended(server) == 0


def read(server, streamed):
    if not streamed:
        status, answer = server.post("/v1/completions", {**LONG, "max_tokens": 5})
        return status, answer["choices"][0]["finish_reason"]
    events = list(server.stream("/v1/completions", {**LONG, "max_tokens": 5}).events())
    assert events[-1] == "[DONE]"
    return 200, events[-2]["choices"][0]["finish_reason"]


def test_at_the_deadline_everyone_is_told(start):
    """A stream by an event behind what it has, without [DONE]; who has nothing yet, running or waiting, by a 503."""
    server = start(SMOLLM2, "--max-sequences", "2", "--set", "server.drain_timeout_ms=300")
    endless = {**LONG, "max_tokens": 8000}
    stream = server.stream("/v1/completions", endless)
    events = stream.events()
    next(events)
    answers = []
    clients = [threading.Thread(target=lambda: answers.append(server.post("/v1/completions", endless))) for _ in range(3)]
    for client in clients:
        client.start()
    assert until(lambda: server.metric("sluice_requests_running") == 2 and server.metric("sluice_requests_waiting") == 2)
    server.signal()
    rest = list(events)
    assert "shutting down" in rest[-1]["error"]["message"]
    for client in clients:
        client.join(timeout=TIMEOUT_S)
    assert [status for status, _ in answers] == [503] * 3
    assert all("shutting down" in answer["error"]["message"] for _, answer in answers)
    assert ended(server) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_load_ends_it_with_zero(number):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([str(SLUICE), "serve", "--dummy", "llama-3.2-1b", "--port", str(port), "--set", "engine.max_context=64"], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    assert until(lambda: is_loading(port) or process.poll() is not None, attempts=10**7)
    process.send_signal(number)
    out, log = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0 and "http://" not in out and "stopped while loading" in log


def is_loading(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/ready")
        response = connection.getresponse()
        return response.status == 503 and b"loading" in response.read()
    except OSError:
        return False
    finally:
        connection.close()


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
    assert ended(server) == 0

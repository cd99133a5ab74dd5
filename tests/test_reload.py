"""SIGHUP: sluice.yaml is read again, and scheduling changes while requests run."""
import json
import signal

from conftest import SMOLLM2, until

LONG = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "temperature": 0}


def log_of(server):
    """Standard error so far, read to the next line that says what a reload did."""
    lines = []
    while True:
        line = server.process.stderr.readline()
        assert line, lines
        lines.append(line)
        if " reload: " in line:
            return line


def test_scheduling_changes_while_a_request_runs(start, tmp_path):
    config = tmp_path / "sluice.yaml"
    config.write_text("scheduler:\n  policy: continuous\n")
    server = start(SMOLLM2, "--config", config)
    expected = server.post("/v1/completions", LONG)[1]["choices"][0]["text"]
    stream = server.stream("/v1/completions", {**LONG, "stream": True})
    events = stream.events()
    next(events)
    config.write_text("scheduler:\n  policy: serial\n  target_itl_ms: 30\n  lanes:\n    batch:\n      weight: 2\n")
    server.signal(signal.SIGHUP)
    line = log_of(server)
    assert "batching: continuous -> serial; target_itl_ms: automatic -> 30 ms; lanes: 16/4/1 -> 16/4/2" in line
    text = "".join(e["choices"][0]["text"] for e in [*events] if e != "[DONE]")
    assert expected.endswith(text), "nothing of the answer was lost"
    assert server.post("/v1/completions", {**LONG, "max_tokens": 3})[0] == 200
    assert until(lambda: server.metric("sluice_batches_total") >= 1)


def test_a_refusal_is_one_line_of_the_log(start, tmp_path):
    config = tmp_path / "sluice.yaml"
    config.write_text("scheduler:\n  policy: serial\n  target_itl_ms: 20\n")
    server = start(SMOLLM2, "--config", config, "--log-json")
    config.write_text("scheduler:\n  target_itl_ms: -1\n")
    server.signal(signal.SIGHUP)
    lines = []
    while not any("nothing has changed" in line["message"] for line in lines):
        lines.append(json.loads(server.process.stderr.readline()))  # no line that is none of JSON
    assert "sluice.yaml:2" in lines[-1]["message"] and "scheduler.target_itl_ms" in lines[-1]["message"]
    assert any("scheduler.target_itl_ms: no effect with scheduler.policy serial" in line["message"] for line in lines), "said at start"


def test_a_bad_file_changes_nothing_and_says_why(start, tmp_path):
    config = tmp_path / "sluice.yaml"
    config.write_text("scheduler:\n  policy: continuous\n")
    server = start(SMOLLM2, "--config", config)
    config.write_text("scheduler:\n  target_itl_ms: -1\n")
    server.signal(signal.SIGHUP)
    assert "nothing has changed" in log_of(server)
    config.write_text("scheduler:\n  policy: windowed\n  window:\n    max_batch_size: 4000\n")
    server.signal(signal.SIGHUP)
    line = log_of(server)
    assert "scheduler.window.max_batch_size" in line and "nothing has changed" in line
    assert server.get("/ready")[0] == 200


def test_what_needs_a_restart_is_named(start, tmp_path):
    config = tmp_path / "sluice.yaml"
    config.write_text("engine:\n  max_queue: 100\n")
    server = start(SMOLLM2, "--config", config)
    config.write_text("engine:\n  max_queue: 50\nscheduler:\n  target_itl_ms: 25\n")
    server.signal(signal.SIGHUP)
    assert "needs a restart: engine.max_queue" in log_of(server)
    assert "target_itl_ms: automatic -> 25 ms" in log_of(server)


def test_traffic_changes_while_a_request_runs(start, tmp_path):
    config = tmp_path / "sluice.yaml"
    config.write_text("traffic:\n  limit:\n    mode: 'off'\n")
    server = start(SMOLLM2, "--config", config)
    stream = server.stream("/v1/completions", {**LONG, "stream": True})
    events = stream.events()
    next(events)
    config.write_text("traffic:\n  keys:\n    requests_per_minute: 1\n")
    server.signal(signal.SIGHUP)
    assert "traffic.keys.requests_per_minute" in log_of(server)
    assert server.post("/v1/completions", {**LONG, "max_tokens": 3})[0] == 200
    status, error = server.post("/v1/completions", {**LONG, "max_tokens": 3})
    assert (status, error["error"]["code"]) == (429, "rate_limit_exceeded")
    assert [*events][-1] == "[DONE]", "who runs is left alone"

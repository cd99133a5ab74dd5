"""OpenTelemetry traces, as a real collector (rotel) receives them: the span tree, sampling, errors, W3C trace context."""
import http.client
import json
import os
import re
import socket
import subprocess
import threading

import pytest

from conftest import SLUICE, SMOLLM2, TIMEOUT_S, until

rotel = pytest.importorskip("rotel", reason="the collector rotel is not installed (tests/requirements.txt)")

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CHAT = "/v1/chat/completions"
ASK = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 6, "ignore_eos": True}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Collector:
    """rotel, which prints each span that it receives."""

    def __init__(self, folder, settings=None):
        agent = next(p for p in rotel.__path__) + "/rotel-agent"
        self.port, grpc_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.url_of = {"http/protobuf": self.url, "grpc": f"http://127.0.0.1:{grpc_port}"}
        self.process = subprocess.Popen(
            [agent, "start", *([] if settings else ["--exporter", "blackhole"]), "--debug-log", "traces", "--debug-log-verbosity", "detailed",
             "--otlp-http-endpoint", f"127.0.0.1:{self.port}", "--otlp-grpc-endpoint", f"127.0.0.1:{grpc_port}",
             "--batch-timeout", "10ms", "--pid-file", folder / "rotel.pid", "--log-file", folder / "rotel.log"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **(settings or {})})
        self.lines, self.changed = [], threading.Condition()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        self.wait_for("Starting Rotel", 1)

    def read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(line)
                self.changed.notify_all()

    def wait_for(self, text, count):
        with self.changed:
            assert self.changed.wait_for(lambda: sum(text in line for line in self.lines) >= count, TIMEOUT_S), "".join(self.lines)

    def spans(self, requests):
        """Ends the collector once it has so many requests' traces; all spans, as dicts."""
        self.wait_for("SPAN_KIND_SERVER", requests)
        self.stop()
        found, resource = [], {}
        for line in self.lines:
            attribute = re.match(r"\s+-> (\S+): (\w+)\((.*)\)$", line)
            field = re.match(r"\s*([\w ]+?)\s*: (.*)$", line)
            if line.startswith("ResourceSpans #"):
                resource, within = {}, None
            elif line.startswith("Span #"):
                within = {"attributes": {}, "resource": resource}
                found.append(within)
            elif attribute:
                kind = {"Int": int, "Double": float}.get(attribute[2], str)
                (within["attributes"] if within else resource)[attribute[1]] = kind(attribute[3])
            elif field and within is not None:
                within[field[1]] = field[2]
        return found

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(TIMEOUT_S)
        self.reader.join(TIMEOUT_S)


@pytest.fixture
def collector(tmp_path):
    started = Collector(tmp_path)
    yield started
    started.stop()


def answer_headers(server, body, headers):
    connection = http.client.HTTPConnection(server.host, server.port, timeout=TIMEOUT_S)
    connection.request("POST", CHAT, json.dumps(body), {"Content-Type": "application/json", **headers})
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status, response.headers


def of_request(spans, request_id):
    """The root of a request and what hangs below it, by name."""
    roots = [s for s in spans if s["attributes"].get("sluice.request_id") == request_id]
    assert len(roots) == 1, request_id
    return roots[0], {s["Name"]: s for s in spans if s["Parent ID"] == roots[0]["ID"]}


def nanoseconds(span):
    return int(span["Start time"]), int(span["End time"])


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_request_is_one_tree_in_its_callers_trace(start, collector, monkeypatch, protocol):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url_of[protocol])
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=lab")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "1")
    server = start(SMOLLM2, "--set", "tracing.service_name=llm")
    status, headers = answer_headers(server, {**ASK, "stream": True}, {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1",
                                                                      "X-Request-Id": "of-a-caller"})
    assert status == 200
    assert headers["tracestate"] == "vendor=1"
    version, trace, span, flags = headers["traceparent"].split("-")
    assert (version, trace, flags) == ("00", TRACE, "01") and span != PARENT
    status, answer = server.post(CHAT, {**ASK, "n": 2}, {"X-Request-Id": "of-its-own"})
    assert status == 200
    spans = collector.spans(2)

    root, children = of_request(spans, "of-a-caller")
    assert (root["Trace ID"], root["Parent ID"], root["ID"], root["TraceState"]) == (TRACE, PARENT, span, "vendor=1")
    assert root["Name"] == f"chat {SMOLLM2.stem}" and root["Kind"] == "SPAN_KIND_SERVER"
    assert set(children) == {"accept", "queue", "prefill", "decode", "stream"}
    assert all(child["Trace ID"] == TRACE for child in children.values())
    # One after the other, within the whole; text is streamed while the engine decodes.
    order = [nanoseconds(children[name]) for name in ("accept", "queue", "prefill", "decode")]
    began, ended = nanoseconds(root)
    assert began == order[0][0] and all(before[1] == after[0] for before, after in zip(order, order[1:]))
    stream = nanoseconds(children["stream"])
    assert order[2][1] <= stream[0] <= stream[1] == ended
    assert all(begin < end for begin, end in order[:1] + order[2:])
    assert root["attributes"] | {"sluice.kept_by": "parent", "gen_ai.operation.name": "chat", "gen_ai.provider.name": "sluice",
                                 "gen_ai.request.model": SMOLLM2.stem, "gen_ai.request.max_tokens": 6, "gen_ai.usage.output_tokens": 6,
                                 "gen_ai.response.finish_reasons": "Str(length)", "http.route": CHAT,
                                 "http.response.status_code": 200} == root["attributes"]
    assert root["resource"]["service.name"] == "llm" and root["resource"]["deployment.environment"] == "lab"

    root, children = of_request(spans, "of-its-own")
    assert root["Parent ID"] == "" and root["Trace ID"] != TRACE and root["attributes"]["sluice.kept_by"] == "ratio"
    assert root["attributes"]["gen_ai.response.id"] == answer["id"] and root["attributes"]["gen_ai.request.choice.count"] == 2
    below = [s for s in spans if s["Parent ID"] == root["ID"]]
    assert sorted(s["Name"] for s in below) == ["accept", "decode", "decode", "prefill", "prefill", "queue", "queue", "stream"]


def test_of_what_is_not_sampled_only_errors_and_slow_requests_are_kept(start, collector):
    server = start(SMOLLM2, "--set", f"tracing.endpoint={collector.url}", "--set", "tracing.sample_ratio=0", "--set", "tracing.slow_ms=0",
                   "--set", "tracing.export_interval_ms=10")
    assert server.post(CHAT, ASK, {"X-Request-Id": "plain"})[0] == 200
    assert server.post(CHAT, ASK, {"X-Request-Id": "unsampled", "traceparent": f"00-{TRACE}-{PARENT}-00"})[0] == 200
    assert server.post(CHAT, {"messages": 1}, {"X-Request-Id": "nonsense"})[0] == 400
    assert server.post(CHAT, ASK, {"X-Request-Id": "sampled", "traceparent": f"00-{TRACE}-{PARENT}-01"})[0] == 200
    assert server.post(CHAT, {"messages": 1}, {"X-Request-Id": "refused", "traceparent": f"00-{TRACE}-{PARENT}-01"})[0] == 400
    status, _ = server.post(CHAT, {**ASK, "max_tokens": 4096}, {"X-Request-Id": "late", "x-request-timeout-ms": "1",
                                                               "traceparent": f"00-{TRACE}-{PARENT}-00"})
    assert status == 504
    spans = collector.spans(3)
    kept = {s["attributes"]["sluice.request_id"]: s for s in spans if s["Kind"] == "SPAN_KIND_SERVER"}
    assert set(kept) == {"sampled", "refused", "late"}
    # What the engine did not take is its first span alone, and a client's mistake no error of the server.
    assert not [s for s in spans if s["Parent ID"] == kept["refused"]["ID"]]
    assert kept["refused"]["attributes"]["http.response.status_code"] == 400 and "error.type" not in kept["refused"]["attributes"]
    late = kept["late"]
    assert late["attributes"]["sluice.kept_by"] == "error" and late["attributes"]["error.type"] == "deadline"
    assert late["attributes"]["http.response.status_code"] == 504 and late["Trace ID"] == TRACE
    assert late["Status code"] == "STATUS_CODE_ERROR" and kept["sampled"].get("Status code") != "STATUS_CODE_ERROR"


def test_slow_requests_are_kept(start, collector):
    server = start(SMOLLM2, "--set", f"tracing.endpoint={collector.url}", "--set", "tracing.sample_ratio=0", "--set", "tracing.slow_ms=1",
                   "--set", "tracing.export_interval_ms=10")
    assert server.post(CHAT, ASK)[0] == 200
    [root] = [s for s in collector.spans(1) if s["Kind"] == "SPAN_KIND_SERVER"]
    assert root["attributes"]["sluice.kept_by"] == "slow"


def test_by_grpc_an_export_may_be_larger_than_the_collectors_window(start, collector):
    server = start(SMOLLM2, "--set", f"tracing.endpoint={collector.url_of['grpc']}", "--set", "tracing.protocol=grpc", "--set", "tracing.sample_ratio=1",
                   "--set", "tracing.export_interval_ms=60000")
    for _ in range(80):
        assert server.post(CHAT, {**ASK, "max_tokens": 1})[0] == 200
    assert server.stop()[0] == 0  # what waits is sent now, at once: over the 64 KiB that HTTP/2 grants at first
    assert len({s["Trace ID"] for s in collector.spans(80)}) == 80


def test_the_other_port_of_a_collector_is_refused_with_a_hint(start, collector):
    server = start(SMOLLM2, "--set", f"tracing.endpoint={collector.url}", "--set", "tracing.protocol=grpc", "--set", "tracing.sample_ratio=1",
                   "--set", "tracing.export_interval_ms=1")
    assert server.post(CHAT, ASK)[0] == 200
    status, log = server.stop()
    assert status == 0 and "is this its gRPC port?" in log


def test_a_collector_that_is_away_is_told_of_once_and_stops_nothing(start):
    server = start(SMOLLM2, "--set", f"tracing.endpoint=http://127.0.0.1:{free_port()}", "--set", "tracing.sample_ratio=1",
                   "--set", "tracing.export_interval_ms=1")
    for _ in range(3):
        assert server.post(CHAT, ASK)[0] == 200
    status, log = server.stop()
    assert status == 0
    assert log.count("traces: http://127.0.0.1:") == 1, log


def test_log_lines_of_a_request_carry_its_ids(start):
    server = start(SMOLLM2, "--log-json")
    status, _ = server.post(CHAT, {**ASK, "max_tokens": 4096}, {"X-Request-Id": "late", "x-request-timeout-ms": "1",
                                                               "traceparent": f"00-{TRACE}-{PARENT}-01"})
    assert status == 504
    lines = [json.loads(line) for line in server.stop()[1].splitlines()]
    assert all({"time", "level", "message"} <= set(line) for line in lines)
    [line] = [line for line in lines if line.get("request_id") == "late"]
    assert line["trace_id"] == TRACE and re.fullmatch("[0-9a-f]{16}", line["span_id"]) and line["trace_flags"] == "01"
    assert "deadline" in line["message"]


def test_without_a_collector_a_callers_trace_is_still_named(smollm2):
    status, headers = answer_headers(smollm2, ASK, {"traceparent": f"00-{TRACE}-{PARENT}-01"})
    assert status == 200 and headers["traceparent"].split("-")[1] == TRACE
    status, headers = answer_headers(smollm2, ASK, {})
    assert status == 200 and headers["traceparent"] is None


def test_what_was_refused_during_a_load_that_is_broken_off_is_told(collector):
    port = free_port()
    process = subprocess.Popen([str(SLUICE), "serve", "--dummy", "llama-3.2-1b", "--port", str(port), "--set", "engine.max_context=64", "--set",
                                f"tracing.endpoint={collector.url}", "--set", "tracing.export_interval_ms=60000"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def is_refused():
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        try:
            connection.request("POST", CHAT, json.dumps(ASK), {"traceparent": f"00-{TRACE}-{PARENT}-01"})
            return connection.getresponse().status == 503
        except OSError:
            return False
        finally:
            connection.close()

    assert until(lambda: is_refused() or process.poll() is not None, attempts=10**7)
    process.terminate()
    _, log = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0 and "stopped while loading" in log, log
    assert any(span["Trace ID"] == TRACE for span in collector.spans(1))

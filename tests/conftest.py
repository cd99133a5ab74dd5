"""Black-box tests: the built binary, started on a free port. No test waits for time to pass: each reads until something
that must come has come, with a limit on the read."""
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SLUICE = pathlib.Path(os.environ.get("SLUICE_BINARY", ROOT / "build" / "release" / "sluice"))
SHOTS = ROOT / "build" / "browser"  # screenshots of the last run
SMOLLM2 = ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
GEMMA = ROOT / "models" / "gemma-3-270m-q4_k_m.gguf"
TIMEOUT_S = 120


def run_sluice(*args, timeout=TIMEOUT_S, **more):
    """A finished command: .returncode, .stdout, .stderr."""
    return subprocess.run([str(SLUICE), *map(str, args)], capture_output=True, text=True, timeout=timeout, **more)


class Server:
    """A running `sluice serve`, ready once constructed. `faults`: a plan (docs/faults.md)."""

    def __init__(self, model, *flags, faults=None):
        environment = {**os.environ, "SLUICE_FAULTS": faults} if faults else None
        self.process = subprocess.Popen([str(SLUICE), "serve", str(model), "--port", "0", *map(str, flags)], stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, env=environment)
        line = self.process.stdout.readline()
        found = re.search(r"https?://([0-9.]+):(\d+)", line)
        assert found, f"no URL in {line!r}: {self.process.communicate(timeout=TIMEOUT_S)}"
        self.host, self.port = found[1], int(found[2])
        self.url = f"http://{self.host}:{self.port}"

    def request(self, method, path, body=None, headers=None):
        """(status, parsed JSON or text)"""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT_S)
        try:
            data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
            connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        try:
            return response.status, json.loads(text)
        except ValueError:
            return response.status, text

    def post(self, path, body, headers=None):
        return self.request("POST", path, body, headers)

    def get(self, path, headers=None):
        return self.request("GET", path, None, headers)

    def stream(self, path, body):
        """An open event stream."""
        return EventStream(self, path, body)

    def metric(self, name):
        """Sum over the labels of a metric; None if it is not exported."""
        values = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", self.get("/metrics")[1], re.M)
        return sum(map(float, values)) if values else None

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def stop(self):
        """Exit status and what was logged."""
        if self.process.poll() is None:
            self.signal()
        _, log = self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode, log


class EventStream:
    def __init__(self, server, path, body):
        data = json.dumps({**body, "stream": True}).encode()
        self.socket = socket.create_connection((server.host, server.port), timeout=TIMEOUT_S)
        self.socket.sendall(f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
                            f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
        self.response = http.client.HTTPResponse(self.socket)
        self.response.begin()
        self.status = self.response.status

    def events(self):
        """Parsed events up to [DONE]; the last yield is the string "[DONE]"."""
        for raw in self.response:
            line = raw.decode().rstrip("\r\n")
            if line.startswith("data: "):
                data = line[6:]
                yield data if data == "[DONE]" else json.loads(data)
                if data == "[DONE]":
                    return

    def close(self):
        self.response.close()
        self.socket.close()


@pytest.fixture(scope="session")
def smollm2():
    """One server for all tests that leave it as they found it; that it still runs, and ends well, is itself tested."""
    server = Server(SMOLLM2)
    yield server
    status, log = server.stop()
    assert status == 0, log


@pytest.fixture(scope="session")
def gemma():
    server = Server(GEMMA)
    yield server
    status, log = server.stop()
    assert status == 0, log


@pytest.fixture
def start():
    """Servers of a test's own; what still runs at its end is stopped."""
    started = []

    def make(model, *flags, faults=None):
        started.append(Server(model, *flags, faults=faults))
        return started[-1]

    yield make
    for server in started:
        if server.process.poll() is None:
            server.process.kill()
            server.process.communicate(timeout=TIMEOUT_S)


@pytest.fixture(scope="session")
def chromium():
    """One browser for all that look at pages: two of them cannot be driven by one process."""
    from playwright.sync_api import sync_playwright

    shutil.rmtree(SHOTS, ignore_errors=True)
    SHOTS.mkdir(parents=True)
    with sync_playwright() as playwright:
        # As root, which is what a container's user often is, Chromium has no sandbox to offer.
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        yield browser
        browser.close()


def until(condition, attempts=2000):
    """Asks again and again; each asking is a round trip to the server, which is what paces it."""
    for _ in range(attempts):
        if condition():
            return True
    return False

"""The USDT probes, looked at from outside with bpftrace: that they are there, that they fire, and that the scripts of tools/bpf run."""
import os
import pathlib
import shutil
import signal
import subprocess
import threading

import pytest

from conftest import ROOT, SLUICE, TIMEOUT_S, until

PROBES = {"request_start", "request_admit", "first_token", "token", "preempt", "request_end", "shed", "step_begin", "step_end", "graph_miss",
          "kv_alloc", "kv_evict"}
SCRIPTS = ROOT / "tools" / "bpf"
ASK = {"prompt": "hi", "max_tokens": 5, "ignore_eos": True}


def why_not():
    if os.geteuid() != 0:
        return "attaching to probes needs root"
    if not shutil.which("bpftrace"):
        return "bpftrace is not installed"
    tried = subprocess.run(["bpftrace", "-e", "BEGIN { exit(); }"], capture_output=True, text=True, timeout=TIMEOUT_S)
    return f"bpftrace does not work here: {tried.stderr.strip()}" if tried.returncode else None


def listed():
    found = subprocess.run(["bpftrace", "-l", f"usdt:{SLUICE}:*"], capture_output=True, text=True, timeout=TIMEOUT_S).stdout
    return {line.rsplit(":", 1)[1] for line in found.splitlines() if ":sluice:" in line}


@pytest.fixture(scope="module", autouse=True)
def bpf():
    if reason := why_not():
        pytest.skip(reason)
    if not listed():
        pytest.skip("the binary has no probes: it was built without <sys/sdt.h> (Debian: systemtap-sdt-dev)")


def has_tracepoints():
    return pathlib.Path("/sys/kernel/tracing/events").exists() or pathlib.Path("/sys/kernel/debug/tracing/events").exists()


class Watch:
    """A script of tools/bpf at work on a server."""

    def __init__(self, server, script, *arguments):
        pid = str(server.process.pid)
        self.process = subprocess.Popen(["bpftrace", "-p", pid, SCRIPTS / script, pid, *arguments], stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True)
        self.text = ""
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.text += line

    def end(self):
        """All that it printed."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(TIMEOUT_S)
        self.reader.join(TIMEOUT_S)
        return self.text


@pytest.fixture(scope="module")
def server():
    from conftest import Server
    started = Server("--dummy=null")
    yield started
    started.stop()


def ask_until(server, watch, text):
    """Requests, until the script has seen one: it says nothing of when it is attached."""
    def seen():
        assert watch.process.poll() is None, watch.text
        assert server.post("/v1/completions", ASK, {"X-Request-Id": "the-one"})[0] == 200
        return text in watch.text
    assert until(seen, 100000), watch.text


def test_the_binary_has_all_probes():
    assert listed() == PROBES


def test_a_requests_waterfall(server):
    watch = Watch(server, "waterfall.bt")
    ask_until(server, watch, "the-one")
    line = next(line for line in watch.end().splitlines() if "the-one" in line).split()
    assert line[1] == "the-one" and line[5] == "5" and line[7] == "0" and line[8] == "length", line


@pytest.mark.parametrize("script, says, shows", [("tokens.bt", "a second", "@between_us"), ("steps.bt", "device busy", "@execute_us"),
                                                 ("kv.bt", "taken,", "blocks:")])
def test_the_scripts_count(server, script, says, shows):
    watch = Watch(server, script)
    ask_until(server, watch, says)
    assert shows in watch.end()


@pytest.mark.parametrize("script, says", [("threads.bt", "longest wait to run"), ("sends.bt", "a second")])
def test_the_scripts_of_the_operating_systems_side(server, script, says):
    if not has_tracepoints():
        pytest.skip("there is no tracefs: mount -t tracefs tracefs /sys/kernel/tracing")
    watch = Watch(server, script)
    ask_until(server, watch, says)
    watch.end()

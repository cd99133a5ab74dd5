"""The USDT probes, looked at from outside with bpftrace: that they are there, that they fire, and that the scripts of tools/bpf run."""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import threading

import pytest

from conftest import ROOT, SLUICE, TIMEOUT_S, until

PROBES = {"request_start", "request_admit", "first_token", "token", "preempt", "request_end", "shed", "answer_write", "step_begin", "step_end", "graph_miss",
          "kv_alloc", "kv_evict"}
SCRIPTS = ROOT / "tools" / "bpf"
ASK = {"prompt": "hi", "max_tokens": 5, "ignore_eos": True}


def why_not():
    if os.geteuid() != 0:
        return "attaching to probes needs root"
    if not shutil.which("bpftrace"):
        return "bpftrace is not installed"
    # One of libc's functions in this very process: kernels without uprobes, and containers that may not use them, refuse that.
    tried = subprocess.run(["bpftrace", "-e", "uprobe:libc:getppid { } interval:ms:1 { exit(); }"], capture_output=True, text=True,
                           timeout=TIMEOUT_S)
    return f"bpftrace cannot attach here: {tried.stderr.strip()}" if tried.returncode else None


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
    """Something that looks at a server: a script of tools/bpf, or `sluice trace`."""

    def __init__(self, server, script, *arguments):
        pid = str(server.process.pid)
        command = [SLUICE, "trace", pid] if script == "trace" else ["bpftrace", "-p", pid, SCRIPTS / script, pid]
        self.process = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.text = ""
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.text += line

    def end(self):
        """All that it printed."""
        for _ in range(5):  # bpftrace on a busy machine was seen to sleep through one
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(TIMEOUT_S / 5)
                break
            except subprocess.TimeoutExpired:
                pass
        assert self.process.poll() is not None, self.text
        self.reader.join(TIMEOUT_S)
        return self.text


@pytest.fixture(scope="module")
def server():
    from conftest import Server
    started = Server("--dummy=null")
    yield started
    started.stop()


def ask_until(server, watch, text):
    """Requests, until what was printed matches: a script says nothing of when it is attached, and of requests meanwhile sees a part."""
    def seen():
        assert watch.process.poll() is None, watch.text
        assert server.post("/v1/completions", ASK, {"X-Request-Id": "the-one"})[0] == 200
        return re.search(text, watch.text, re.M)
    assert until(seen, 100000), watch.text


def test_the_binary_has_all_probes():
    assert listed() == PROBES


def test_a_requests_waterfall(server):
    watch = Watch(server, "waterfall.bt")
    whole = r"^\S+ +the-one +\S+ +\S+ +\S+ +5 .*\n"
    ask_until(server, watch, whole)
    line = re.search(whole, watch.end(), re.M)[0].split()
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


@pytest.fixture
def traceable():
    if not SLUICE.with_name("sluice-trace").exists():
        pytest.skip("sluice-trace was not built (Debian: libbpf-dev, clang)")
    if not os.access("/sys/kernel/btf/vmlinux", os.R_OK):
        pytest.skip("this kernel has no BTF: /sys/kernel/btf/vmlinux")


def test_trace_tells_of_each_request(server, traceable):
    watch = Watch(server, "trace")
    whole = r"^the-one +\S+ +\S+ +\S+ +5 .*\n"
    ask_until(server, watch, whole)
    text = watch.end()
    assert watch.process.returncode == 0, text
    words = re.search(whole, text, re.M)[0].split()
    named = dict(zip(["request", "queue", "prefill", "decode", "tokens", "longest", "step", "sends", "bytes", "preempted", "not_run", "ended"], words))
    assert (named["tokens"], named["preempted"], named["ended"]) == ("5", "0", "length"), text
    assert float(named["queue"]) >= 0 and int(named["sends"]) <= 1 and (named["sends"] == "0" or int(named["bytes"]) > 100), text


def test_trace_shows_the_events_of_one_request(server, traceable):
    watch = Watch(server, "trace", "--request", "the-one")
    whole = r"^ +\S+ +start .*\n +\S+ +admitted .*\n(?: +\S+ +token .*\n){5}(?:(?! +\S+ +start ).*\n)*? +\S+ +sent .*\n"
    ask_until(server, watch, whole)
    lines = re.search(whole, watch.end(), re.M)[0].splitlines()
    events = [line.split()[1] for line in lines]
    assert events[:2] == ["start", "admitted"] and events.count("token") == 5, lines
    assert events.index("end") > events.index("token") and "sent" in events, lines


def test_trace_says_what_stands_in_its_way(server, traceable):
    def refused(*arguments, **more):
        tried = subprocess.run([SLUICE, "trace", *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, **more)
        assert tried.returncode != 0 and tried.stdout == ""
        return tried.stderr

    assert "is not there" in refused("999999999")
    assert "has no probe" in refused(str(os.getpid()))
    assert "not both" in refused("--request", "a", "--slow", "1")
    assert "one process at a time" in refused(str(os.getpid()), str(server.process.pid))
    assert "at least 1" in refused(str(server.process.pid), "--seconds", "0")  # 0 meant for ever


def test_trace_finds_the_probes_of_a_binary_that_was_replaced(traceable, tmp_path):
    """As after an upgrade: the file that the server runs has no name any more."""
    binary = shutil.copy2(SLUICE, tmp_path / "sluice")
    with subprocess.Popen([binary, "serve", "--dummy", "null", "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        try:
            assert b"http://" in server.stdout.readline()
            binary.unlink()
            tried = subprocess.run([SLUICE, "trace", str(server.pid), "--request", "nope", "--seconds", "1"], capture_output=True, text=True, timeout=TIMEOUT_S)
        finally:
            server.terminate()
    assert "attached to process" in tried.stderr, tried.stderr


def test_trace_says_that_a_request_never_came(server, traceable):
    tried = subprocess.run([SLUICE, "trace", str(server.process.pid), "--request", "nope", "--seconds", "1"], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert tried.returncode == 1 and "nothing of request 'nope' was seen" in tried.stderr


def test_trace_says_that_it_needs_root(server, traceable):
    try:
        tried = subprocess.run([SLUICE, "trace", str(server.process.pid)], capture_output=True, text=True, timeout=TIMEOUT_S, user="nobody", cwd="/")
    except (PermissionError, LookupError):
        pytest.skip("another user cannot start the binary where it lies")
    assert tried.returncode == 1 and "this user may not" in tried.stderr and "root" in tried.stderr

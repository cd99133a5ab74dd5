"""SIGHUP with another model: it is loaded beside the one that serves and takes its place; no stream is dropped."""
import http.client
import json
import os
import queue
import re
import signal
import threading

from conftest import GEMMA, SMOLLM2, TIMEOUT_S, run_sluice, until

STORY = {"prompt": "Once upon a time", "max_tokens": 96, "ignore_eos": True, "temperature": 0}


def wait_for(server, words):
    """Standard error up to the line that has these words."""
    lines = []
    while not lines or words not in lines[-1]:
        lines.append(server.process.stderr.readline())
        assert lines[-1], lines
    return "".join(lines)


def served(server):
    return server.get("/v1/models")[1]["data"][0]["root"]


def configure(path, model, more=""):
    path.write_text(f"model:\n  path: {model}\n{more}")


def asks(server, body, headers):
    """A connection whose answer nobody has read yet."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=TIMEOUT_S)
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    return connection


def streamed(server, body):
    """Whose answer it was, its text, and what the caller notes at each event."""
    stream = server.stream("/v1/completions", body)
    assert stream.status == 200
    events = [*stream.events()]
    assert events[-1] == "[DONE]", "it was cut"
    return events[0]["model"], "".join(e["choices"][0]["text"] for e in events[:-1])


class Client(threading.Thread):
    """One stream after the other, until it is told to stop: which model answered, and with what."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.answers, self.stopped = server, queue.Queue(), False
        self.start()

    def run(self):
        while not self.stopped:
            self.answers.put(streamed(self.server, STORY))

    def next(self):
        return self.answers.get(timeout=TIMEOUT_S)

    def stop(self):
        """What has not been asked for yet."""
        self.stopped = True
        self.join()
        return [*iter(lambda: None if self.answers.empty() else self.answers.get(), None)]


def test_streams_that_run_across_a_swap_are_those_without_one(start, tmp_path):
    config = tmp_path / "sluice.yaml"
    configure(config, SMOLLM2)
    server = start(f"--config={config}", "--ctx", 1024)
    clients = [Client(server) for _ in range(3)]
    answers = [client.next() for client in clients]
    for model in (GEMMA, SMOLLM2):  # there and back, under load
        configure(config, model)
        server.signal(signal.SIGHUP)
        wait_for(server, "is freed")
        assert served(server) == str(model)
        for client in clients:
            while (answer := client.next())[0] != model.stem:
                answers.append(answer)
            answers.append(answer)
    for client in clients:
        answers += client.stop()
    expected = {}
    for model in (SMOLLM2, GEMMA):
        configure(config, model)
        if served(server) != str(model):
            server.signal(signal.SIGHUP)
            wait_for(server, "is freed")
        name, text = streamed(server, STORY)
        expected[name] = text
    assert len(expected) == 2 and {name for name, _ in answers} == set(expected), "both have answered"
    assert all(expected[name] == text for name, text in answers)
    assert server.metric("sluice_model_swaps_total") == 3
    assert server.metric("sluice_requests_started_total") == server.metric("sluice_requests_finished_total")
    assert server.metric("sluice_kv_blocks") > 0
    assert server.stop()[0] == 0


def test_what_cannot_be_loaded_leaves_the_old_one_and_says_why(start, tmp_path):
    config = tmp_path / "sluice.yaml"
    configure(config, SMOLLM2)
    server = start(f"--config={config}")
    expected = streamed(server, STORY)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(SMOLLM2.read_bytes()[:100_000])
    twice_all_memory = 2 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for model, more, why in ((tmp_path / "none.gguf", "", "none.gguf"), (broken, "", "broken.gguf"),
                             (GEMMA, "engine:\n  max_context: 1000000\n", "engine.max_context"),
                             (GEMMA, f"engine:\n  kv_bytes: {twice_all_memory}\n", "engine.kv_bytes"),
                             (GEMMA, "kv:\n  precision: fp8\n", "kv.precision")):
        configure(config, model, more)
        server.signal(signal.SIGHUP)
        log = wait_for(server, "goes on")
        assert why in log.splitlines()[-1], log
        assert served(server) == str(SMOLLM2)
        assert streamed(server, STORY) == expected
    assert server.metric("sluice_model_swaps_total") == 5
    status, log = server.stop()
    assert status == 0, log


def test_hangups_in_a_burst_are_taken_up_one_after_the_other(start, tmp_path):
    config = tmp_path / "sluice.yaml"
    configure(config, SMOLLM2)
    server = start(f"--config={config}", "--ctx", 1024)
    for _ in range(3):
        for model in (GEMMA, SMOLLM2):
            configure(config, model)
            server.signal(signal.SIGHUP)
            server.signal(signal.SIGHUP)
    configure(config, GEMMA, "scheduler:\n  target_itl_ms: 33\n")
    server.signal(signal.SIGHUP)
    # Whatever was on its way in between, the last word counts.
    if "is loaded beside" in wait_for(server, "-> 33 ms").splitlines()[-1]:
        wait_for(server, "is served now")
    assert served(server) == str(GEMMA)
    assert streamed(server, STORY)[0] == GEMMA.stem
    status, log = server.stop()
    assert status == 0, log


def test_another_file_behind_the_same_link_is_another_model(start, tmp_path):
    link = tmp_path / "current.gguf"
    link.symlink_to(SMOLLM2)
    server = start(link, "--ctx", 1024)
    before = streamed(server, STORY)[1]
    link.unlink()
    link.symlink_to(GEMMA)
    server.signal(signal.SIGHUP)
    wait_for(server, "is freed")
    assert streamed(server, STORY)[1] != before
    assert server.get("/v1/models")[1]["data"][0]["meta"]["architecture"] == "gemma3"


def test_a_stop_while_a_model_is_loaded_is_a_stop(start, tmp_path):
    config = tmp_path / "sluice.yaml"
    configure(config, SMOLLM2)
    server = start(f"--config={config}")
    stream = server.stream("/v1/completions", STORY)
    events = stream.events()
    next(events)
    configure(config, GEMMA)
    server.signal(signal.SIGHUP)
    wait_for(server, "is loaded beside")
    server.signal(signal.SIGTERM)
    assert [*events][-1] == "[DONE]", "what ran was finished"
    _, log = server.process.communicate(timeout=TIMEOUT_S)
    assert server.process.returncode == 0, log


def test_a_replaced_model_that_hangs_holds_up_nothing(start, tmp_path):
    config = tmp_path / "sluice.yaml"
    configure(config, SMOLLM2)
    server = start(f"--config={config}", "--ctx", 1024, "--set", "server.drain_timeout_ms=100",
                   faults="slow_step:request=hang,amount=3600000,count=2")
    hangs = asks(server, STORY, {"X-Request-Id": "hang-1"})
    assert until(lambda: server.metric("sluice_faults_injected_total") == 1)
    configure(config, GEMMA)
    server.signal(signal.SIGHUP)
    wait_for(server, "is served now")
    assert streamed(server, STORY)[0] == GEMMA.stem
    hangs.close()  # from here on nobody has it
    assert f"{SMOLLM2} cannot be freed" in wait_for(server, "its engine has been at one step for")
    assert server.metric("sluice_stuck_engines_total") == 1
    configure(config, SMOLLM2, "scheduler:\n  target_itl_ms: 33\n")
    server.signal(signal.SIGHUP)
    wait_for(server, "-> 33 ms")
    wait_for(server, "is served now")
    assert streamed(server, STORY)[0] == SMOLLM2.stem
    # So does the one that serves, and still it ends.
    hangs = asks(server, STORY, {"X-Request-Id": "hang-2"})
    assert until(lambda: server.metric("sluice_faults_injected_total") == 2)
    status, log = server.stop()
    assert status == 1 and "stopped with 2 engines that cannot be" in log, log
    assert hangs.getresponse().status == 503


def test_memory_that_the_old_ones_cache_may_still_take_is_not_given_away(start, tmp_path):
    everything = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    refused = run_sluice("serve", SMOLLM2, "--dry-run", "--set", f"engine.kv_bytes={2 * everything}").stderr
    most = 6 * int(re.search(r"the machine's (\d+)", refused)[1]) // 10  # one fits, two do not
    config = tmp_path / "sluice.yaml"
    configure(config, SMOLLM2, f"engine:\n  kv_bytes: {most}\n")
    server = start(f"--config={config}", "--ctx", 1024)
    configure(config, GEMMA, f"engine:\n  kv_bytes: {most}\n")
    server.signal(signal.SIGHUP)
    why = wait_for(server, "goes on").splitlines()[-1]
    assert "engine.kv_bytes" in why and re.search(r"whose caches may still take \d+ MiB", why), why
    configure(config, GEMMA, "engine:\n  kv_bytes: 200000000\n")
    server.signal(signal.SIGHUP)
    wait_for(server, "is served now")

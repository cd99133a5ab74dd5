"""SIGHUP with another model: it is loaded beside the one that serves and takes its place; no stream is dropped."""
import os
import queue
import signal
import threading

from conftest import GEMMA, SMOLLM2, TIMEOUT_S, until

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

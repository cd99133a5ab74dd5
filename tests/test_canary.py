"""A second model in the same process gets a part of the requests; whatever becomes of it, the first one goes on."""
import json
import os
import re
import signal

from conftest import GEMMA, SMOLLM2, run_sluice
from test_swap import asks, served, wait_for

ASK = {"prompt": "Once upon a time", "max_tokens": 12, "ignore_eos": True, "temperature": 0}
THERE, HERE = {"X-Canary": "always"}, {"X-Canary": "never"}


def configure(path, canary, model=SMOLLM2, more=""):
    path.write_text(f"model:\n  path: {model}\nengine:\n  max_context: 1024\n  kv_bytes: 200000000\ntraffic:\n  canary:\n"
                    f"    steps: []\n{canary}{more}")


def complete(server, headers, **members):
    status, answer = server.post("/v1/completions", {**ASK, **members}, headers)
    assert status == 200, answer
    return answer["model"], answer["choices"][0]["text"]


def of_pool(server, metric, pool):
    found = re.search(rf'^{metric}\{{[^}}]*pool="{pool}"[^}}]*\}} (\S+)$', server.get("/metrics")[1], re.M)
    return float(found[1]) if found else None


def test_two_models_answer_side_by_side(start, tmp_path):
    config = tmp_path / "sluice.yaml"
    configure(config, f"    model: {GEMMA}\n")
    server = start(f"--config={config}")
    assert [m["id"] for m in server.get("/v1/models")[1]["data"]] == [SMOLLM2.stem, GEMMA.stem]
    here, there = complete(server, HERE), complete(server, THERE)
    assert (here[0], there[0]) == (SMOLLM2.stem, GEMMA.stem) and here[1] != there[1]
    assert complete(server, {}, model=GEMMA.stem) == there, "by its name"
    assert complete(server, THERE, model=SMOLLM2.stem) == there, "it stands for the other"
    assert complete(server, {}) == here
    # What one's engine counts is not in the other's.
    both = server.metric("sluice_generated_tokens_total")
    assert of_pool(server, "sluice_generated_tokens_total", "canary") == 3 * ASK["max_tokens"]
    assert both == 5 * ASK["max_tokens"]
    assert of_pool(server, "sluice_pool_requests_total", "stable") == 2
    status, log = server.stop()
    assert status == 0, log


def test_another_configuration_of_the_same_model(start, tmp_path):
    config = tmp_path / "sluice.yaml"
    configure(config, '    settings: ["kv.precision=int8", "engine.max_context=512"]\n')
    server = start(f"--config={config}")
    models = server.get("/v1/models")[1]["data"]
    assert [m["max_model_len"] for m in models] == [1024], "one name, one entry"
    def answered():
        return [of_pool(server, "sluice_pool_requests_total", pool) for pool in ("stable", "canary")]

    assert complete(server, THERE)[0] == SMOLLM2.stem
    assert answered() == [0, 1]
    # The canary has no room for it, and so it is not the one that says so.
    assert complete(server, THERE, prompt="word " * 600)[0] == SMOLLM2.stem
    assert answered() == [1, 1]


def test_what_the_canarys_engine_breaks_nobody_sees(start, tmp_path):
    config = tmp_path / "sluice.yaml"
    configure(config, f"    model: {GEMMA}\n")
    # Each strikes once, and so not the stable pool, which answers in its place.
    faults = "nan_logits:request=nan,count=1; step_failure:request=dead,count=1"
    server = start(f"--config={config}", faults=faults)
    expected = complete(server, HERE)
    for name in ("nan", "dead"):
        assert complete(server, {**THERE, "X-Request-Id": f"{name}-1"}) == expected
    assert complete(server, THERE)[0] == GEMMA.stem, "it goes on"
    assert server.metric("sluice_faults_injected_total") == 2
    status, log = server.stop()
    assert status == 0, log


def test_it_comes_changes_and_goes_with_a_hangup(start, tmp_path):
    config = tmp_path / "sluice.yaml"
    configure(config, "")
    server = start(f"--config={config}")
    assert complete(server, THERE)[0] == SMOLLM2.stem, "there is none"
    steps = ((f"    model: {GEMMA}\n", "is a canary now", GEMMA.stem),
             (f'    model: {GEMMA}\n    settings: ["engine.max_context=512"]\n', "is a canary now", GEMMA.stem),
             (f"    model: {tmp_path / 'none.gguf'}\n", "there is no canary", SMOLLM2.stem),
             (f"    model: {GEMMA}\n", "is a canary now", GEMMA.stem), ("", "is freed", SMOLLM2.stem))
    for canary, words, answers in steps:
        configure(config, canary)
        server.signal(signal.SIGHUP)
        wait_for(server, words)
        assert complete(server, THERE)[0] == answers
        assert complete(server, HERE)[0] == SMOLLM2.stem
    status, log = server.stop()
    assert status == 0, log


def test_a_swap_while_the_canary_runs(start, tmp_path):
    config = tmp_path / "sluice.yaml"
    configure(config, f"    model: {SMOLLM2}\n", model=GEMMA)
    server = start(f"--config={config}")
    stream = server.stream("/v1/completions", {**ASK, "max_tokens": 200, "model": SMOLLM2.stem})
    events = stream.events()
    assert next(events)["model"] == SMOLLM2.stem
    # What was the canary becomes the model, and there is a canary no more.
    configure(config, "", model=SMOLLM2)
    server.signal(signal.SIGHUP)
    wait_for(server, "is served now")
    assert [*events][-1] == "[DONE]"
    assert served(server) == str(SMOLLM2)
    assert complete(server, THERE)[0] == SMOLLM2.stem
    status, log = server.stop()
    assert status == 0, log


def test_memory_for_both_is_there_before_it_is_ready(tmp_path):
    config = tmp_path / "sluice.yaml"
    all_memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    configure(config, f'    model: {GEMMA}\n    settings: ["engine.kv_bytes={2 * all_memory}"]\n')
    for how in (("--port", 0), ("--dry-run",)):
        refused = run_sluice("serve", f"--config={config}", *how)
        assert refused.returncode == 1 and (how[0] == "--dry-run" or refused.stdout == "")
        assert "the canary: " in refused.stderr and "engine.kv_bytes" in refused.stderr
    configure(config, f"    model: {GEMMA}\n")
    told = run_sluice("serve", f"--config={config}", "--dry-run").stdout
    assert str(SMOLLM2) in told and f"canary: {GEMMA}" in told


def test_settings_that_make_no_sense_are_refused_by_name(tmp_path):
    config = tmp_path / "sluice.yaml"
    for canary, why in (('    settings: ["kv.precison=int8"]\n', "traffic.canary.settings"),
                        ('    settings: ["server.port=1"]\n', "server.port"),
                        (f"    model: {GEMMA}\n    upstream: http://127.0.0.1:1\n", "traffic.canary.upstream")):
        configure(config, canary)
        refused = run_sluice("serve", f"--config={config}", "--port", 0)
        assert refused.returncode in (1, 2) and why in refused.stderr, refused


def test_a_canary_that_hangs_is_given_up_and_holds_nothing_up(start, tmp_path):
    config = tmp_path / "sluice.yaml"
    configure(config, f"    model: {GEMMA}\n")
    server = start(f"--config={config}", "--set", "engine.watchdog_s=20", "--set", "server.drain_timeout_ms=200",
                   faults="slow_step:from=40,amount=3600000,count=1")
    stream = server.stream("/v1/completions", {**ASK, "max_tokens": 200, "model": GEMMA.stem})
    assert stream.status == 200
    waits = asks(server, {**ASK, "max_tokens": 200}, THERE)
    wait_for(server, "is no canary any more")
    assert json.loads(waits.getresponse().read())["model"] == SMOLLM2.stem, "it had nothing yet"
    assert "The engine failed" in [*stream.events()][-1]["error"]["message"], "it had something"
    wait_for(server, "cannot be freed")
    assert complete(server, THERE, max_tokens=4)[0] == SMOLLM2.stem
    configure(config, f'    model: {GEMMA}\n    settings: ["engine.max_context=512"]\n')
    server.signal(signal.SIGHUP)
    wait_for(server, "is a canary now")
    assert complete(server, THERE, max_tokens=4)[0] == GEMMA.stem
    status, log = server.stop()
    assert status == 1 and "stopped with 1 engine" in log, log

"""machine.*: where threads and memory are to go, told before a start, and where the kernel says that threads are after it."""
import http.client
import json
import os
import pathlib
import re

import pytest

from conftest import ROOT, SMOLLM2, TIMEOUT_S, run_sluice

TWO_SOCKETS = {**os.environ, "HWLOC_XMLFILE": str(ROOT / "src/base/testdata/two_sockets_four_cards.xml")}
CPUS = sorted(os.sched_getaffinity(0))
several_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="one CPU is here")


def dry_run(*flags, **more):
    return run_sluice("serve", SMOLLM2, "--device", "cpu", "--dry-run", "--ctx", "1024", *flags, **more)


def plan(*flags, **more):
    done = dry_run(*flags, **more)
    assert done.returncode == 0, done.stderr
    at = done.stdout.index("  machine  ")
    return " ".join(done.stdout[at:].replace("  machine  ", "", 1).split())


def cpus_of(text):
    parts = [part.split("-") for part in text.split(",")]
    return {cpu for part in parts for cpu in range(int(part[0]), int(part[-1]) + 1)}


def allowed(server):
    """What the kernel lets each thread of the server run on, by name."""
    found = {}
    for task in pathlib.Path(f"/proc/{server.process.pid}/task").iterdir():
        status = (task / "status").read_text()
        cpus = next(line.split()[1] for line in status.splitlines() if line.startswith("Cpus_allowed_list"))
        found.setdefault((task / "comm").read_text().strip(), set()).update(cpus_of(cpus))
    return found


@pytest.mark.parametrize("flags, said", [
    ((), "2 memory nodes, 8 cores, CPUs 0-15; 8 compute threads model on CPUs 0-15, network and text on CPUs 0-15; memory spread over "
         "nodes 0, 1"),
    (("--set", "machine.numa=1"), "8 cores, CPUs 0-15; 4 compute threads model on CPUs 4-7,12-15 (node 1), network and text on CPUs 4-7,12-15"),
    (("--set", "machine.numa=off"), "8 compute threads; no thread is bound"),
    (("--set", "machine.cpu_set=0-3"), "1 memory node, 4 cores, CPUs 0-3; 4 compute threads; no thread is bound"),
    (("--set", "machine.io_threads=2"), "6 compute threads model on CPUs 0-5,8-13, network and text on CPUs 6-7,14-15"),
    (("--set", "machine.numa=0", "--set", "machine.engine_cpu=8"), "3 compute threads model on CPUs 1-3,9-11 (node 0), engine on CPU 8, network and text on CPUs 1-3,9-11"),
    (("--threads", "2"), "2 compute threads"),
])
def test_the_plan_of_a_described_machine(flags, said):
    assert said in plan(*flags, env=TWO_SOCKETS)


@pytest.mark.parametrize("setting, said", [
    ("machine.numa=2", "machine.numa: must be auto, off or a memory node whose CPUs may be used (here 0, 1), not \"2\""),
    ("machine.numa=on", "machine.numa: must be auto, off"),
    ("machine.cpu_set=0-", "machine.cpu_set: must be a list of CPUs"),
    ("machine.cpu_set=3,16", "machine.cpu_set: CPU 16 may not be used here; there are 0-15"),
    ("machine.io_threads=8", "machine.io_threads: must be from 0 to 7"),
    ("machine.io_threads=-1", "machine.io_threads: expected an integer from 0 to 4096"),
    ("machine.engine_cpu=16", "machine.engine_cpu: must be one of the CPUs that may be used (0-15)"),
])
def test_wrong_settings_are_refused_with_what_they_may_be(setting, said):
    done = dry_run("--set", setting, env=TWO_SOCKETS)
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_by_default_one_node_binds_nothing(start):
    server = start(SMOLLM2, "--device", "cpu", "--ctx", "512")
    machine = server.get("/v1/diagnosis")[1]["machine"]
    if machine["plan"].startswith("1 memory node"):
        assert machine["plan"].endswith("no thread is bound")
        assert all(cpus == set(CPUS) for cpus in allowed(server).values())
    assert {"sluice-engine", "sluice-executor", "sluice-net", "sluice-text"} <= {t["name"] for t in machine["threads"]}
    assert all(t["refused"] is None for t in machine["threads"])


@several_cpus
def test_threads_are_where_the_plan_says(start):
    server = start(SMOLLM2, "--device", "cpu", "--ctx", "512", "--set", f"machine.cpu_set={CPUS[0]},{CPUS[-1]}",
                   "--set", f"machine.engine_cpu={CPUS[-1]}")
    threads = allowed(server)
    assert threads["sluice-engine"] == {CPUS[-1]}
    assert server.post("/v1/completions", {"prompt": "One", "max_tokens": 4})[0] == 200
    told = {t["name"]: cpus_of(t["cpus"]) for t in server.get("/v1/diagnosis")[1]["machine"]["threads"]}
    for name in ("sluice-engine", "sluice-executor", "sluice-net", "sluice-text"):
        assert told[name] == threads[name], name
    assert set().union(*threads.values()) <= {CPUS[0], CPUS[-1]}
    assert server.stop()[0] == 0


@several_cpus
def test_what_was_allowed_before_the_start_is_respected():
    last = CPUS[-1]
    told = plan(preexec_fn=lambda: os.sched_setaffinity(0, {last}))
    assert f"1 core, CPU {last}; 1 compute thread" in told
    done = dry_run("--set", f"machine.cpu_set={CPUS[0]}", preexec_fn=lambda: os.sched_setaffinity(0, {last}))
    assert f"machine.cpu_set: CPU {CPUS[0]} may not be used here; there are {last}" in done.stderr


@several_cpus
def test_commands_that_compute_here_keep_to_the_set():
    done = run_sluice("bench", "engine", SMOLLM2, "--device", "cpu", "--batch", "1", "--depth", "0", "--prompt-tokens", "8",
                      "--generate-tokens", "2", "--repeat", "1", "--json", "--set", f"machine.cpu_set={CPUS[0]}")
    assert done.returncode == 0 and '"threads":1' in done.stdout.replace(" ", "")


@several_cpus
def test_commands_that_serve_nothing_keep_no_core_for_it():
    def threads(*flags):
        done = run_sluice("bench", "engine", SMOLLM2, "--device", "cpu", "--batch", "1", "--depth", "0", "--prompt-tokens", "8",
                          "--generate-tokens", "2", "--repeat", "1", "--json", *flags)
        assert done.returncode == 0, done.stderr
        return re.search(r'"threads": *(\d+)', done.stdout)[1]
    assert threads("--set", "machine.io_threads=1", "--set", f"machine.engine_cpu={CPUS[0]}") == threads()


def test_a_steps_way_between_host_and_card_is_told_and_on_a_cpu_there_is_none(start):
    server = start(SMOLLM2, "--device", "cpu", "--ctx", "512", "--set", "gpu.copy_times=true")
    connection = http.client.HTTPConnection(server.host, server.port, timeout=TIMEOUT_S)
    connection.request("GET", "/v1/live")
    steps = None
    for line in connection.getresponse():
        if not line.startswith(b"data:"):
            continue
        steps = json.loads(line[5:]).get("step")
        if steps:
            break
        assert server.post("/v1/completions", {"prompt": "One", "max_tokens": 2})[0] == 200
    connection.close()
    assert steps["execute_ms"] > 0
    assert (steps["h2d_us"], steps["kernels_us"], steps["d2h_us"]) == (0, 0, 0)

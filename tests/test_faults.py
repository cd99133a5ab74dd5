"""A server that breaks on purpose (docs/faults.md): what it does, and that it is well afterwards."""
import concurrent.futures
import http.client
import json
import os
import socket

import pytest
from conftest import SMOLLM2, TIMEOUT_S, run_sluice, until

BODY = {"prompt": "The river rises in", "max_tokens": 24, "temperature": 0, "ignore_eos": True}


def ask(server, name="x", **more):
    return server.post("/v1/completions", {**BODY, **more}, {"X-Request-Id": name})


def text(answer):
    return answer["choices"][0]["text"]


@pytest.fixture(scope="module")
def expected(smollm2):
    return text(ask(smollm2)[1])


def ends_well(server):
    assert until(lambda: server.metric("sluice_requests_running") == 0 and server.metric("sluice_kv_blocks_used") == 0)
    status, log = server.stop()
    assert status == 0, log
    return log


def test_nothing_is_planted_and_nothing_is_said_unless_it_is_set(smollm2):
    assert smollm2.metric("sluice_faults_injected_total") is None


def test_the_log_warns_and_what_struck_is_counted(start, expected):
    server = start(SMOLLM2, faults="slow_step:from=3,count=1,amount=1")
    assert text(ask(server)[1]) == expected
    assert server.metric("sluice_faults_injected_total") == 1
    assert "fails on purpose" in ends_well(server)


@pytest.mark.parametrize("plan", ["nonsense", "eagain:often=1", "eagain:rate=7", "eagain:request=x"])
def test_a_plan_that_is_none_is_refused(plan):
    refused = run_sluice("serve", SMOLLM2, env={**os.environ, "SLUICE_FAULTS": plan})
    assert refused.returncode == 2 and "SLUICE_FAULTS" in refused.stderr and refused.stderr.count("\n") <= 2


def test_a_server_that_others_can_reach_takes_no_plan():
    refused = run_sluice("serve", SMOLLM2, "--host", "0.0.0.0", "--port", "0", env={**os.environ, "SLUICE_FAULTS": "eagain"})
    assert refused.returncode == 1 and "SLUICE_FAULTS" in refused.stderr


def test_a_socket_that_takes_little_gets_every_byte(start, expected):
    server = start(SMOLLM2, faults="seed=5; short_write:rate=0.5,amount=7; short_read:rate=0.5,amount=5; eagain:rate=0.3")
    assert text(ask(server)[1]) == expected
    events = list(server.stream("/v1/completions", BODY).events())
    assert "".join(e["choices"][0]["text"] for e in events[:-1] if e["choices"]) == expected and events[-1] == "[DONE]"
    ends_well(server)


@pytest.mark.parametrize("side", [1, 2])
def test_a_connection_that_breaks_harms_no_other(start, expected, side):
    server = start(SMOLLM2, faults=f"kill_connection:from=4,every=4,count=2,amount={side}")
    answers = []
    for _ in range(12):
        try:
            answers.append(ask(server, stream=False)[1])
        except (http.client.HTTPException, OSError):
            pass
    assert answers and all(text(a) == expected for a in answers)
    ends_well(server)


def pieces(**more):
    """A request in halves of its head and of its body."""
    body = json.dumps({**BODY, **more}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
    return [head[:30], head[30:], body[:20], body[20:]]


@pytest.mark.parametrize("state, request_pieces", [
    (3, [b"".join(pieces())]), (4, pieces()[:2]), (5, [b"".join(pieces()[:3]), pieces()[3]]), (6, [b"".join(pieces(stream=True))]),
    (7, [b"".join(pieces())]), (8, [b"".join(pieces()), b"more"])], ids=["idle", "head", "body", "answering", "closing", "linger"])
def test_a_connection_may_break_in_each_of_its_states(start, expected, state, request_pieces):
    server = start(SMOLLM2, faults=f"kill_connection:count=1,amount={state}")
    with socket.create_connection((server.host, server.port), timeout=TIMEOUT_S) as client:
        for piece in request_pieces:
            client.sendall(piece)
            # Answered on the same thread behind what came before: the piece has been read. In linger the answer has come.
            assert state == 8 or server.get("/health")[0] == 200
            if state == 8 and piece != b"more":
                answer = b""
                while not answer.endswith(b"}}"):
                    assert (more := client.recv(100_000)), "the answer was cut"
                    answer += more
        assert until(lambda: server.metric("sluice_faults_injected_total") == 1)
    assert text(ask(server)[1]) == expected
    ends_well(server)


@pytest.mark.parametrize("place, status", [(1, 500), (2, 429), (3, None), (4, None), (5, None)])
def test_memory_that_is_not_there_costs_one_client_its_answer(start, expected, place, status):
    """The second time that the place is met; two answers to a request, so that one of them is handed over before."""
    server = start(SMOLLM2, faults=f"alloc_failure:from=2,count=1,amount={place}")
    outcomes = []
    while len(outcomes) < 4:
        try:
            code, answer = ask(server, n=2)
            outcomes.append(code)
            assert code != 200 or [c["text"] for c in answer["choices"]] == [expected] * 2
        except (http.client.HTTPException, OSError):
            outcomes.append(None)
    assert outcomes.count(status) == 1 and outcomes.count(200) == 3
    ended = server.metric("sluice_http_generations_total")
    assert server.metric("sluice_http_generations_started_total") == ended
    ends_well(server)


def test_a_failed_step_ends_its_requests_and_no_others(start, expected):
    server = start(SMOLLM2, faults="step_failure:request=broken,from=5,count=1")
    status, answer = ask(server, "broken")
    assert status == 500 and answer["error"]["message"]
    assert text(ask(server, "other")[1]) == expected
    ends_well(server)


def test_what_a_nan_has_spoilt_is_not_found_by_others(start, expected):
    server = start(SMOLLM2, faults="nan_logits:request=odd,from=3,amount=2,count=1")
    assert ask(server, "odd")[0] == 200
    again = ask(server, "even")[1]
    assert text(again) == expected
    ends_well(server)


def test_preemptions_evictions_and_stalls_change_no_answer(start):
    """Four at once, so that they are computed together, against each alone."""
    prompts = [[1000 + i] * 40 for i in range(4)]
    alone = start(SMOLLM2)
    wanted = [text(ask(alone, prompt=p)[1]) for p in prompts]
    server = start(SMOLLM2, faults="seed=2; preempt:rate=0.2,count=6; evict_cache:every=7; cpu_stall:every=11,amount=2; off_cpu:every=13,amount=2; "
                                   "engine_alloc:every=5,amount=1000; slow_step:every=9,amount=2")
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda p: text(ask(server, prompt=p)[1]), prompts)) == wanted
    assert server.metric("sluice_preemptions_total") > 0
    ends_well(server)


def test_a_request_that_finds_no_memory_is_told_to_come_again(start, expected):
    server = start(SMOLLM2, faults="alloc_failure:from=1,count=2")
    assert [ask(server)[0] for _ in range(3)] == [429, 429, 200]
    ends_well(server)


def test_a_full_disk_costs_files_and_nothing_else(start, expected, tmp_path):
    server = start(SMOLLM2, "--set", f"kv.disk_path={tmp_path}", "--set", "kv.host_bytes=30000000", "--set", "engine.kv_bytes=30000000",
                   faults="disk_full; slow_disk:amount=1")
    assert all(ask(server, prompt=[1000 + i] * 600)[0] == 200 for i in range(4))
    assert text(ask(server)[1]) == expected
    ends_well(server)


def test_a_lost_device_ends_the_process_with_its_last_steps(start):
    server = start(SMOLLM2, faults="device_error:from=6")
    with pytest.raises((http.client.HTTPException, OSError)):
        ask(server)
    server.process.wait(timeout=60)
    status, log = server.stop()
    assert status != 0 and "the device is lost" in log and "step 4:" in log and "under way: step 6:" in log


@pytest.mark.parametrize("thread", [0, 1])
def test_an_exception_that_nobody_expects_ends_the_process_with_its_last_steps(start, thread):
    server = start(SMOLLM2, faults=f"engine_exception:from=6,amount={thread}")
    with pytest.raises((http.client.HTTPException, OSError)):
        ask(server)
    server.process.wait(timeout=60)
    status, log = server.stop()
    assert status != 0 and "SLUICE_FAULTS" in log and "step 4:" in log


def test_a_clock_that_jumps_stops_nothing(start, expected):
    server = start(SMOLLM2, faults="clock_jump:from=5,count=1,amount=60000; clock_jump:from=12,count=1,amount=-30000")
    assert text(ask(server)[1]) == expected
    ends_well(server)

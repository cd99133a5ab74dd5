"""Requests against each other, against disconnects, and against nonsense."""
import concurrent.futures
import json
import socket

import pytest

from conftest import TIMEOUT_S, until

PROMPTS = ["The river rises in", "def fibonacci(n):", "Once upon a time there was", "1, 2, 3, 4,", "Ich wohne in", "The opposite of hot is",
           "A list of fruits:\n-", "SELECT name FROM"]


def mixed_requests():
    """Sixteen: short and long prompts, few and many tokens, with and without log-probabilities."""
    for i in range(16):
        yield {"prompt": PROMPTS[i % 8] * (1 + 12 * (i % 3)), "max_tokens": 4 + 7 * (i % 5), "temperature": 0, "ignore_eos": True,
               "return_token_ids": True, **({"logprobs": 2} if i % 4 == 0 else {})}


@pytest.mark.parametrize("server", ["smollm2", "gemma"])
def test_a_request_among_others_equals_itself_alone(server, request):
    server = request.getfixturevalue(server)
    bodies = list(mixed_requests())
    alone = [server.post("/v1/completions", body) for body in bodies]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda body: server.post("/v1/completions", body), bodies))
    for (status, one), (_, other) in zip(alone, together):
        assert status == 200
        assert one["choices"] == other["choices"]


def test_a_disconnect_frees_within_a_step(smollm2):
    stream = smollm2.stream("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 4000, "ignore_eos": True})
    next(stream.events())
    assert smollm2.metric("sluice_requests_running") >= 1
    stream.close()
    assert until(lambda: smollm2.metric("sluice_requests_running") == 0 and smollm2.metric("sluice_kv_blocks_used") == 0)


def test_a_client_that_reads_nothing_stalls_nobody(smollm2):
    silent = smollm2.stream("/v1/completions", {"prompt": "a", "max_tokens": 3000, "ignore_eos": True})
    status, answer = smollm2.post("/v1/completions", {"prompt": "b", "max_tokens": 3})
    assert status == 200 and answer["usage"]["completion_tokens"] <= 3
    silent.close()
    assert until(lambda: smollm2.metric("sluice_requests_running") == 0)


@pytest.mark.parametrize("body, field", [
    (b"{", None), (b"", None), (b"[]", None), (b"null", None), (b'{"prompt": "\xff"}', None),
    ({}, "prompt"), ({"prompt": 5}, "prompt"), ({"prompt": []}, "prompt"), ({"prompt": [-1]}, "prompt"), ({"prompt": [49152]}, "prompt"),
    ({"prompt": [1.5]}, "prompt"), ({"prompt": "x" * 200_000}, "prompt"),
    ({"prompt": "x", "max_tokens": -1}, "max_tokens"), ({"prompt": "x", "max_tokens": "5"}, "max_tokens"), ({"prompt": "x", "n": 0}, "n"),
    ({"prompt": "x", "n": 100000}, "n"), ({"prompt": "x", "temperature": "hot"}, "temperature"), ({"prompt": "x", "temperature": -0.1}, "temperature"),
    ({"prompt": "x", "top_p": 2}, "top_p"), ({"prompt": "x", "stop": 5}, "stop"), ({"prompt": "x", "logit_bias": {"a": 1}}, "logit_bias"),
    ({"prompt": "x", "logit_bias": {"999999": 1}}, "logit_bias"), ({"prompt": "x", "stream": "yes"}, "stream"), ({"prompt": "x", "logprobs": 1000}, "logprobs"),
    ({"prompt": "x", "seed": "s"}, "seed"),
])
def test_bad_completions_get_a_400_that_names_the_field(smollm2, body, field):
    status, answer = smollm2.post("/v1/completions", body)
    assert status == 400, answer
    assert set(answer["error"]) >= {"message", "type", "param", "code"}
    if field:
        assert (answer["error"]["param"] or "").startswith(field)
        assert field in answer["error"]["message"]
    assert smollm2.get("/ready")[0] == 200


@pytest.mark.parametrize("body", [{}, {"messages": []}, {"messages": "hi"}, {"messages": [{}]}, {"messages": [{"role": "user"}]},
                                  {"messages": [{"role": 5, "content": "x"}]}, {"messages": [{"role": "user", "content": 5}]}])
def test_bad_chats_get_a_400(smollm2, body):
    status, answer = smollm2.post("/v1/chat/completions", body)
    assert status == 400, answer
    assert answer["error"]["message"]


def test_wrong_paths_and_methods(smollm2):
    assert smollm2.get("/nowhere")[0] == 404
    assert smollm2.get("/v1/completions")[0] == 405
    assert smollm2.post("/v1/completions", {"prompt": "x", "model": "gpt-17"})[0] == 404


def test_deep_nesting_is_refused_and_survived(smollm2):
    status, _ = smollm2.post("/v1/completions", b'{"prompt": ' + b"[" * 200_000 + b"]" * 200_000 + b"}")
    assert status == 400
    assert smollm2.get("/ready")[0] == 200


def raw_exchange(server, data):
    """What comes back for these bytes, up to the server's end of the connection."""
    with socket.create_connection((server.host, server.port), timeout=TIMEOUT_S) as s:
        s.sendall(data)
        answer = b""
        while part := s.recv(65536):
            answer += part
    return answer


@pytest.mark.parametrize("data", [b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
                                  b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
                                  b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"GET /health HTTP/1.1\r\n" + b"A: b\r\n" * 20000 + b"\r\n"])
def test_broken_http_gets_an_error_or_a_closed_connection(smollm2, data):
    try:
        answer = raw_exchange(smollm2, data)
    except ConnectionError:
        answer = b""  # closed while it was still being sent
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4") or answer.startswith(b"HTTP/1.1 5"), answer[:200]
    assert smollm2.get("/ready")[0] == 200


def test_a_body_over_the_limit_is_a_413(start):
    from conftest import SMOLLM2
    server = start(SMOLLM2, "--set", "server.max_body_bytes=4096")
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"
    assert raw_exchange(server, head).startswith(b"HTTP/1.1 413")


def test_pipelined_requests_are_answered_in_order(smollm2):
    one = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    last = b"GET /nowhere HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer = raw_exchange(smollm2, one + one + last)
    assert answer.count(b"HTTP/1.1 200") == 2 and answer.rindex(b"HTTP/1.1 404") > answer.rindex(b"HTTP/1.1 200")


def test_tokenize_and_back(smollm2):
    text = "naïve 日本語 🙂\n\tend"
    tokens = smollm2.post("/tokenize", {"content": text})[1]["tokens"]
    assert smollm2.post("/detokenize", {"tokens": tokens})[1]["content"] == text
    status, rendered = smollm2.post("/apply-template", {"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": True})
    assert status == 200 and rendered["prompt"].endswith("<|im_start|>assistant\n")


def test_metrics_speak_prometheus(smollm2):
    status, text = smollm2.get("/metrics")
    assert status == 200
    for line in text.splitlines():
        assert line.startswith("#") or len(line.rsplit(" ", 1)) == 2 and float(line.rsplit(" ", 1)[1]) is not None
    assert smollm2.metric("sluice_steps_total") > 0


def test_max_tokens_zero_and_one(smollm2):
    status, none = smollm2.post("/v1/completions", {"prompt": "x", "max_tokens": 0})
    assert status == 200 and none["choices"][0]["text"] == "" and none["usage"]["completion_tokens"] == 0
    status, one = smollm2.post("/v1/completions", {"prompt": "x", "max_tokens": 1, "ignore_eos": True})
    assert status == 200 and one["usage"]["completion_tokens"] == 1


def test_the_context_is_the_end(start):
    from conftest import SMOLLM2
    server = start(SMOLLM2, "--ctx", "64")
    status, answer = server.post("/v1/completions", {"prompt": "a b c", "max_tokens": 10_000, "ignore_eos": True})
    if status == 200:
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["total_tokens"] <= 64
    else:
        assert status == 400 and answer["error"]["param"] in ("max_tokens", "prompt")
    assert server.post("/v1/completions", {"prompt": list(range(100, 165)), "max_tokens": 1})[0] == 400


def test_many_idle_connections_leave_room_for_one_more(smollm2):
    idle = [socket.create_connection((smollm2.host, smollm2.port), timeout=TIMEOUT_S) for _ in range(500)]
    try:
        assert smollm2.post("/v1/completions", {"prompt": "x", "max_tokens": 2})[0] == 200
    finally:
        for s in idle:
            s.close()


def test_streams_end_with_done_and_carry_ids(smollm2):
    body = {"prompt": "The capital of France is", "max_tokens": 5, "temperature": 0, "return_token_ids": True, "ignore_eos": True}
    whole = smollm2.post("/v1/completions", body)[1]["choices"][0]
    events = list(smollm2.stream("/v1/completions", body).events())
    assert events[-1] == "[DONE]"
    choices = [c for e in events[:-1] for c in e["choices"]]
    assert "".join(c["text"] for c in choices) == whole["text"]
    assert [i for c in choices for i in c.get("token_ids") or []] == whole["token_ids"]
    assert json.dumps(choices[-1]["finish_reason"]) == '"length"'

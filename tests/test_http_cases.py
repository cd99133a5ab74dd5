"""Inputs that broke other servers, with the right answer for each. The letters name the case in ../shared/cases/http; cases that need a
grammar or tools stand in test_http_cases_grammar.py, those of files and templates beside their parsers."""
import json

import pytest

from conftest import SMOLLM2, Server, until

CHAT, TEXT, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"


def chat(content="Say hello.", **members):
    return {"messages": [{"role": "user", "content": content}], "temperature": 0, **members}


def answer(server, path, body):
    status, value = server.post(path, body)
    assert status == 200, value
    return value


def refused(server, path, body, param=None, status=400):
    got, value = server.post(path, body)
    assert got == status, (body if len(str(body)) < 300 else str(body)[:300], value)
    error = value["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    if param:
        assert error["param"] == param and (status != 400 or error["type"] == "invalid_request_error"), error
    return error


def streamed_text(server, path, body):
    """(text, finish reasons) of choice 0 of a stream that must end with [DONE]."""
    events = list(server.stream(path, body).events())
    assert events[-1] == "[DONE]"
    choices = [c for e in events[:-1] for c in e["choices"] if c["index"] == 0]
    text = "".join((c["delta"].get("content") or "") if "delta" in c else c["text"] for c in choices)
    return text, [c["finish_reason"] for c in choices if c["finish_reason"]]


@pytest.fixture(scope="module")
def small():
    """A context of 256 tokens, one seat, four more that may wait."""
    server = Server(SMOLLM2, "--ctx", "256", "--set", "engine.max_sequences=1", "--set", "engine.max_queue=4")
    yield server
    status, log = server.stop()
    assert status == 0, log


# -- A, B: streams and stop strings -----------------------------------------------------------------------------------

def test_text_held_back_for_a_stop_string_comes_when_the_answer_ends_otherwise(smollm2):  # A08
    body = {"prompt": "x", "temperature": 0, "stop": ["YYYZ"], "max_tokens": 3, "logit_bias": {"73": 100}}
    assert answer(smollm2, TEXT, body)["choices"][0]["text"] == "YYY"
    assert streamed_text(smollm2, TEXT, body) == ("YYY", ["length"])


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long_is_a_400_before_any_stream(smollm2, small, stream):  # A10, D01
    for server, words in ((smollm2, 20_000), (small, 400)):
        for path, body in ((CHAT, chat("a " * words, stream=stream)), (TEXT, {"prompt": "a " * words, "stream": stream})):
            error = refused(server, path, body)
            assert error["code"] == "context_length_exceeded" and error["message"].count("tokens") >= 2
        status, value = server.post(MESSAGES, {"max_tokens": 8, "stream": stream, **chat("a " * words)})
        assert (status, value["type"], value["error"]["type"]) == (400, "error", "invalid_request_error")


@pytest.mark.parametrize("stop, right", [([], True), (None, True), (["a", "b", "c", "d", "e"], True), ("", False), ([""], False), ([1, 2], False),
                                         ([f"s{i}" for i in range(100_000)], False), (["x" * 1_000_000], False)])
def test_stop_is_bounded(smollm2, stop, right):  # B05
    body = chat(stop=stop, max_tokens=2)
    if right:
        answer(smollm2, CHAT, body)
    else:
        refused(smollm2, CHAT, body, "stop")


def test_what_a_stop_trims_is_trimmed_from_every_array(smollm2):  # B08
    choice = answer(smollm2, TEXT, {"prompt": "1 2 3 4 5 6 7", "temperature": 0, "stop": ["10"], "logprobs": 2, "max_tokens": 40})["choices"][0]
    logprobs = choice["logprobs"]
    assert choice["text"].startswith(" 8 9") and "1" not in choice["text"] and choice["finish_reason"] == "stop"
    assert len({len(logprobs[k]) for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}) == 1
    assert logprobs["text_offset"] == sorted(logprobs["text_offset"]) and logprobs["text_offset"][-1] <= len(choice["text"])


def test_which_stop_matched_is_told(smollm2):  # B09
    choice = answer(smollm2, TEXT, {"prompt": "1 2 3 4 5 6 7", "temperature": 0, "stop": ["zz", "9"], "max_tokens": 40})["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "9")
    choice = answer(smollm2, CHAT, chat("hi", stop_token_ids=[2], max_tokens=40))["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", 2)


# -- C, D: limits -----------------------------------------------------------------------------------------------------

def test_max_tokens_zero_is_an_empty_answer(smollm2):  # C01
    for path, body in ((TEXT, {"prompt": "1 2 3"}), (CHAT, chat("hi"))):
        value = answer(smollm2, path, {**body, "max_tokens": 0})
        assert value["usage"]["completion_tokens"] == 0 and value["choices"][0]["finish_reason"] == "length"
        assert streamed_text(smollm2, path, {**body, "max_tokens": 0}) == ("", ["length"])
    scored = answer(smollm2, TEXT, {"prompt": "1 2 3", "max_tokens": 0, "echo": True, "logprobs": 1})["choices"][0]
    assert scored["text"] == "1 2 3" and scored["logprobs"]["token_logprobs"][0] is None
    assert all(p <= 0 for p in scored["logprobs"]["token_logprobs"][1:])


@pytest.mark.parametrize("path, body, param", [
    (CHAT, chat(n=0), "n"), (CHAT, chat(n=129), "n"), (CHAT, chat(n=2147483647), "n"), (TEXT, {"prompt": ["a"] * 1_000_000}, "prompt"),
    (TEXT, {"prompt": "a", "best_of": 21}, "best_of"), (TEXT, {"prompt": "a", "best_of": 2, "n": 3}, "best_of"),
    (TEXT, {"prompt": "a", "best_of": 2, "stream": True}, "best_of"),
])
def test_fan_out_is_bounded(smollm2, path, body, param):  # C04
    refused(smollm2, path, {"max_tokens": 1, **body}, param)


def test_the_end_of_the_context_ends_the_answer(small):  # D04
    value = answer(small, CHAT, chat("Write a very long story.", logit_bias={"2": -100, "0": -100}))
    assert value["choices"][0]["finish_reason"] == "length" and value["usage"]["total_tokens"] <= 256
    value = answer(small, MESSAGES, {"max_tokens": 100_000, "logit_bias": {"2": -100, "0": -100}, **chat("Write a very long story.")})
    assert value["stop_reason"] == "model_context_window_exceeded"


# -- E: messages and members ------------------------------------------------------------------------------------------

@pytest.mark.parametrize("body, param", [
    ({"messages": []}, "messages"), ({"model": "m"}, "messages"), ({}, "messages"), ({"messages": {"role": "user", "content": "x"}}, "messages"),
    ({"messages": ["x"]}, "messages[0]"), ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"), ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"), ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,%%%"}}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
])
def test_messages_that_are_none_are_named(smollm2, body, param):  # E01, E03
    refused(smollm2, CHAT, body, param)


def test_parts_of_a_message_are_its_text(smollm2):  # E03
    text = answer(smollm2, CHAT, chat(max_tokens=8))
    parts = answer(smollm2, CHAT, chat([{"type": "text", "text": "Say hello."}], max_tokens=8))
    assert parts["usage"]["prompt_tokens"] == text["usage"]["prompt_tokens"] == 33 and parts["choices"] == text["choices"]
    prompts = [smollm2.post("/apply-template", {"messages": [{"role": "user", "content": c}]})[1]["prompt"]
               for c in ("Say \nhello.", [{"type": "text", "text": "Say "}, {"type": "text", "text": "hello."}])]
    assert prompts[0] == prompts[1]  # joined by a newline, and no JSON in the prompt


def test_unknown_members_are_told_and_null_is_not_given(smollm2):  # E04
    stream = smollm2.stream(CHAT, chat(max_tokens=2, foo=1, metadata={"a": "b"}, store=False, user="u1", service_tier="auto"))
    assert stream.status == 200
    assert set(stream.response.headers["x-sluice-ignored"].split(", ")) == {"foo", "metadata", "store", "user", "service_tier"}
    stream.close()
    names = ("temperature", "stop", "tools", "tool_choice", "top_p", "seed", "logit_bias", "response_format", "stream", "stream_options")
    answer(smollm2, CHAT, {**chat(max_tokens=2), **dict.fromkeys(names)})


def test_samplers_have_an_effect_or_are_refused(smollm2):  # E05
    def text(**members):
        return answer(smollm2, TEXT, {"prompt": "The", "max_tokens": 20, **members})["choices"][0]["text"]
    assert text(temperature=1.5, seed=7, min_p=1.0) == text(temperature=1.5, seed=7, top_k=1) == text(temperature=0)
    for path, body in ((TEXT, {"prompt": "a a a a a a"}), (CHAT, chat("a a a a a a"))):
        texts = [json.dumps(answer(smollm2, path, {**body, "temperature": 0, "max_tokens": 20, "repetition_penalty": p})["choices"]) for p in (5.0, 1.0)]
        assert texts[0] != texts[1]
    for name, value in (("suffix", "x"), ("audio", {"voice": "v"}), ("prompt_logprobs", 1), ("truncate_prompt_tokens", 4)):
        refused(smollm2, TEXT, {"prompt": "The", name: value}, name)


# -- F: JSON (framing is in test_http_framing.py) ---------------------------------------------------------------------

@pytest.mark.parametrize("bytes_", [b"\xc4\xe3\xba\xc3", b"\xff", b"\xc0\x80", b"\xed\xa0\xbd"])
def test_bytes_that_are_not_utf8_are_refused_and_not_repeated(smollm2, bytes_):  # F01
    error = refused(smollm2, CHAT, b'{"messages":[{"role":"user","content":"' + bytes_ + b'"}]}')
    assert "UTF-8" in error["message"] and "column 40" in error["message"] and error["message"].isascii()


@pytest.mark.parametrize("body", [b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b'{"prompt":"x","a":' * 3000 + b"1" + b"}" * 3000,
                                  b'{"messages":' + b'[{"content":' * 10_000 + b"1" + b"}]" * 10_000 + b"}"])
def test_deep_nesting_is_refused(smollm2, body):  # F04
    assert "too deep" in refused(smollm2, CHAT, body)["message"]


def test_numbers_no_type_holds_name_their_member(smollm2):
    for number in ("1e999", "-1e999", "123456789012345678901234567890"):
        refused(smollm2, TEXT, b'{"prompt":"x","temperature":' + number.encode() + b"}", "temperature")
    refused(smollm2, TEXT, {"prompt": "x", "max_tokens": 2**63}, "max_tokens")
    refused(smollm2, TEXT, {"prompt": "x", "max_tokens": 1e300}, "max_tokens")


def test_a_member_given_twice_is_refused(smollm2):
    refused(smollm2, TEXT, b'{"prompt":"x","max_tokens":1,"max_tokens":2}', "max_tokens")
    refused(smollm2, CHAT, b'{"messages":[{"role":"user","role":"system","content":"x"}]}', "messages[0].role")


# -- G, H, I: sampling, log-probabilities, usage ----------------------------------------------------------------------

@pytest.mark.parametrize("name, value, right", [
    ("temperature", -0.1, False), ("temperature", 2.1, False), ("temperature", 999999, False), ("top_p", 1.1, False), ("top_p", 0, True), ("top_p", -1, False),
    ("top_k", -2, False), ("top_k", -1, True), ("top_k", 10**9, True), ("min_p", 1.5, False), ("min_p", -0.1, False), ("repetition_penalty", 0, False),
    ("repetition_penalty", -1, False), ("repetition_penalty", 1e30, False), ("frequency_penalty", 2.5, False), ("presence_penalty", -2.5, False),
    ("seed", -1, True), ("seed", 2**63 - 1, True), ("seed", 1.5, False),
])
def test_sampling_values_have_ranges(smollm2, name, value, right):  # G01
    body = chat(max_tokens=2) | {name: value}
    if right:
        answer(smollm2, CHAT, body)
    else:
        refused(smollm2, CHAT, body, name)


@pytest.mark.parametrize("prompt, choices", [([33, 216, 34], 1), ([49151], 1), ([[33], [34]], 2), ([49152], 0), ([-1], 0), ([4294967295], 0),
                                             ([9223372036854775808], 0), ([], 0), ([[]], 0), ([33, "a"], 0)])
def test_token_ids_are_checked_against_the_vocabulary(smollm2, prompt, choices):  # G04
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 1}
    if choices:
        assert len(answer(smollm2, TEXT, body)["choices"]) == choices
    else:
        refused(smollm2, TEXT, body, "prompt")
    refused(smollm2, CHAT, chat(stop_token_ids=[49152, -5]), "stop_token_ids")


def test_a_seed_repeats_alone_and_among_others(smollm2):  # G05, G08, G09
    def texts(**members):
        value = answer(smollm2, TEXT, {"prompt": "Once upon a time", "max_tokens": 24, "temperature": 1, **members})
        assert [c["index"] for c in value["choices"]] == list(range(len(value["choices"])))
        return [c["text"] for c in value["choices"]]
    alone = texts(seed=42)
    three = texts(seed=42, n=3)
    assert alone == texts(seed=42) == three[:1] and three == texts(seed=42, n=3) and len(set(three)) == 3
    assert texts(seed=43) != alone
    prompts = ["1 2 3", "a b c", "x y z"]
    together = texts(prompt=prompts, temperature=0, max_tokens=4)
    assert together == [texts(prompt=p, temperature=0, max_tokens=4)[0] for p in prompts]


def test_log_probabilities_have_their_shapes(smollm2):  # H01, H04
    body = chat("hi", max_tokens=4, logprobs=True, top_logprobs=3)
    content = answer(smollm2, CHAT, body)["choices"][0]["logprobs"]["content"]
    assert len(content) == 4 and all(set(e) == {"token", "logprob", "bytes", "top_logprobs"} and len(e["top_logprobs"]) <= 3 for e in content)
    events = list(smollm2.stream(CHAT, body).events())[:-1]
    assert [e for event in events for c in event["choices"] for e in (c["logprobs"] or {}).get("content", [])] == content
    logprobs = answer(smollm2, TEXT, {"prompt": "1 2 3", "temperature": 0, "max_tokens": 4, "logprobs": 3})["choices"][0]["logprobs"]
    assert [len(logprobs[k]) for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset")] == [4] * 4
    assert answer(smollm2, CHAT, chat(max_tokens=1))["choices"][0]["logprobs"] is None
    refused(smollm2, CHAT, chat(top_logprobs=2), "top_logprobs")


def test_prompt_log_probabilities_are_whole_however_often_they_are_asked(smollm2):  # H05
    body = {"prompt": "one two three " * 60, "temperature": 0, "max_tokens": 1, "echo": True, "logprobs": 1}
    first, second = (answer(smollm2, TEXT, body)["choices"][0]["logprobs"] for _ in range(2))
    assert first == second and None not in first["token_logprobs"][1:]


def test_usage_comes_where_it_was_asked_for(smollm2):  # I01, I03
    body = chat(max_tokens=6)
    want = answer(smollm2, CHAT, body)["usage"]
    events = list(smollm2.stream(CHAT, {**body, "stream_options": {"include_usage": True}}).events())[:-1]
    assert events[-1]["choices"] == []
    assert all(events[-1]["usage"][k] == want[k] for k in ("prompt_tokens", "completion_tokens", "total_tokens"))
    assert all("usage" not in e or e["usage"] is None for e in events[:-1])
    assert all("usage" not in e for e in list(smollm2.stream(CHAT, body).events())[:-1])
    both = answer(smollm2, TEXT, {"prompt": ["1 2 3", "a"], "max_tokens": 3, "n": 2, "temperature": 0, "ignore_eos": True})["usage"]
    assert (both["prompt_tokens"], both["completion_tokens"]) == (6, 12)


def test_finish_reasons(smollm2):  # I04
    def ending(**members):
        value = answer(smollm2, CHAT, chat("x", max_tokens=5, **members))
        return value["choices"][0]["finish_reason"], value["usage"]["completion_tokens"]
    assert ending(logit_bias={"2": 100}) == ("stop", 1)  # the end token counts: it was sampled
    assert ending(logit_bias={"2": 100}, ignore_eos=True) == ("length", 5)
    assert ending(logit_bias={"73": 100}) == ("length", 5)
    assert ending(logit_bias={"73": 100}, stop="YYY") == ("stop", 3)


# -- L, M: templates and special tokens -------------------------------------------------------------------------------

def test_clients_bring_no_templates_and_set_no_reserved_names(smollm2):  # L04
    refused(smollm2, CHAT, chat(chat_template="{{ 1 }}"), "chat_template")
    refused(smollm2, CHAT, chat(chat_template_kwargs={"chat_template": "x"}), "chat_template_kwargs.chat_template")
    answer(smollm2, CHAT, chat(chat_template_kwargs={"enable_thinking": False}, max_tokens=1))


def test_the_prompt_ends_as_the_template_says(smollm2):  # L05
    def prompt(*messages, **members):
        return smollm2.post("/apply-template", {"messages": [{"role": r, "content": c} for r, c in messages], **members})[1]["prompt"]
    assert prompt(("user", "  Say hello.  \n")).endswith("<|im_start|>user\n  Say hello.  \n<|im_end|>\n<|im_start|>assistant\n")
    assert prompt(("user", "a"), ("assistant", "b ")).endswith("<|im_start|>assistant\nb ")
    assert not prompt(("user", "a"), add_generation_prompt=False).endswith("assistant\n")


def test_a_beginning_of_sequence_is_not_doubled(smollm2, gemma):  # M01
    def tokens(server, prompt):
        return answer(server, TEXT, {"prompt": prompt, "max_tokens": 1})["usage"]["prompt_tokens"]
    assert tokens(gemma, "Hello") == tokens(gemma, "<bos>Hello") == 2
    assert tokens(smollm2, "Hello") == 1


# -- N, O, Q: lives of requests, the queue, what is told --------------------------------------------------------------

def test_leaving_clients_leave_nothing_behind(smollm2):  # N01, N04, N05
    for body in ({"n": 4, "logprobs": 5}, {}, {"stop": ["zz"]}):
        for reads in (0, 2):
            stream = smollm2.stream(TEXT, {"prompt": "Once upon a time", "max_tokens": 3000, "ignore_eos": True, **body})
            for _ in zip(range(reads), stream.events()):
                pass
            stream.close()
    assert until(lambda: smollm2.metric("sluice_requests_running") == 0 and smollm2.metric("sluice_requests_waiting") == 0)
    answer(smollm2, TEXT, {"prompt": "x", "max_tokens": 2})


def test_a_deadline_ends_the_work(smollm2):  # N07
    body = {"prompt": "Once upon a time", "max_tokens": 4000, "ignore_eos": True}
    status, value = smollm2.post(TEXT, body, {"X-Request-Timeout-Ms": "300"})
    assert status == 504 and value["error"]["code"] == "deadline_exceeded"
    status, value = smollm2.post(MESSAGES, {"max_tokens": 4000, "ignore_eos": True, **chat()}, {"X-Request-Timeout-Ms": "300"})
    assert status == 504 and value["error"]["type"] == "timeout_error"
    assert until(lambda: smollm2.metric("sluice_requests_running") == 0)


def test_a_full_queue_says_so_and_harms_nobody(small):  # O04
    streams = [small.stream(TEXT, {"prompt": "a", "max_tokens": 200, "ignore_eos": True})]
    events = streams[0].events()
    next(events)
    waiting = [raw_post(small, TEXT, {"prompt": "a", "max_tokens": 1}) for _ in range(4)]
    assert until(lambda: small.metric("sluice_requests_waiting") == 4)
    error = refused(small, TEXT, {"prompt": "a", "max_tokens": 1}, status=429)
    assert error["type"] == "rate_limit_error"
    assert small.post(MESSAGES, {"max_tokens": 1, **chat()})[0] == 529
    assert small.get("/health")[0] == 200
    assert list(events)[-1] == "[DONE]"
    assert all(b" 200 " in s.recv(65536).split(b"\r\n")[0] for s in waiting)


def raw_post(server, path, body):
    """A request that is sent, its answer not yet read."""
    import socket
    data = json.dumps(body).encode()
    s = socket.create_connection((server.host, server.port), timeout=120)
    s.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    return s


def test_series_do_not_grow_with_what_clients_send(smollm2):  # Q03, Q04
    def series():
        return {line.rsplit(" ", 1)[0] for line in smollm2.get("/metrics")[1].splitlines() if not line.startswith("#")}
    before = series()
    for i in range(50):
        smollm2.post(TEXT, {"prompt": "x", "max_tokens": 0, "model": f"m{i}", "user": f"u{i}", f"member{i}": i}, {"X-Request-Id": f"id{i}", "User-Agent": f"a{i}"})
        smollm2.request(f"M{i}", f"/v1/{i}")
    assert series() == before
    names = [line.split()[2] for line in smollm2.get("/metrics")[1].splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names))


# -- S: Anthropic's API -----------------------------------------------------------------------------------------------

def test_usage_of_messages_adds_up(smollm2):  # S01, S04, S05
    body = {"max_tokens": 1, **chat()}
    usage = answer(smollm2, MESSAGES, body)["usage"]
    assert usage["input_tokens"] + usage["cache_creation_input_tokens"] + usage["cache_read_input_tokens"] == 33
    assert answer(smollm2, MESSAGES + "/count_tokens", chat()) == {"input_tokens": 33}
    assert answer(smollm2, MESSAGES, {**body, "max_tokens": 0})["content"] == []

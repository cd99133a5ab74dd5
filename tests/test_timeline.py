"""Where a request's time went: GET /v1/requests and below, and what may be asked at the door."""
import concurrent.futures
import time

import pytest

from conftest import SMOLLM2, until

SPANS = ["read", "parse", "tokenize", "queue", "prefix_lookup", "prefill", "prefill_wait", "decode", "decode_wait", "preempted", "recompute",
         "paused", "other_choices", "format", "write"]


def timed(server, path, body, request_id, **headers):
    """(status, answer, the client's own wall time in ms)"""
    began = time.monotonic()
    status, answer = server.post(path, body, {"X-Request-Id": request_id, **headers})
    return status, answer, (time.monotonic() - began) * 1e3


def timeline(server, request_id):
    status, found = server.get(f"/v1/requests/{request_id}/timeline")
    assert status == 200, found
    for account in [found, *found.get("choices", [])]:
        assert [span["name"] for span in account["spans"]] == SPANS
        assert sum(span["ms"] for span in account["spans"]) == pytest.approx(found["total_ms"], rel=0.01)
        assert all(span["ms"] >= 0 for span in account["spans"])
    return found


def spans(account):
    return {span["name"]: span["ms"] for span in account["spans"]}


def finished_timeline(server, request_id):
    """The log is written as the last byte goes out, so a client may ask a moment too early."""
    assert until(lambda: server.get(f"/v1/requests/{request_id}/timeline")[1].get("state") == "finished")
    return timeline(server, request_id)


@pytest.mark.parametrize("path, ask", [("/v1/completions", {"prompt": "The river rises in"}),
                                       ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})])
@pytest.mark.parametrize("stream", [False, True])
def test_spans_add_up_to_the_whole_and_the_whole_fits_the_clients_time(smollm2, path, ask, stream):
    name = f"whole-{path}-{stream}".replace("/", "-")
    status, answer, wall_ms = timed(smollm2, path, {**ask, "max_tokens": 8, "ignore_eos": True, "stream": stream}, name)
    assert status == 200
    found = finished_timeline(smollm2, name)
    # The client may have read the last byte before the server has heard that it was taken.
    assert 0 < found["total_ms"] - spans(found)["write"] <= wall_ms
    assert found["finish_reason"] == "length" and found["ended"] == "completed" and found["lane"] == "standard"
    assert found["generated"] == len(found["tokens"]) == 8 and found["tokens_cut"] == 0
    assert spans(found)["prefill"] > 0 and spans(found)["decode"] > 0
    steps = [token["step"] for token in found["tokens"]]
    assert steps == sorted(set(steps))
    assert all(token["latency_ms"] > 0 and 0 <= token["kv_hit"] < 1 for token in found["tokens"])
    assert found["tokens"][-1]["kv_hit"] == pytest.approx(1 - 1 / (found["prompt_tokens"] + 7))
    # The answer's own id names it too.
    if not stream:
        assert timeline(smollm2, answer["id"])["request_id"] == name
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == found["cached_tokens"]


def test_each_choice_has_an_account_of_its_own(smollm2):
    status, answer, _ = timed(smollm2, "/v1/completions", {"prompt": "a", "n": 3, "max_tokens": 5, "temperature": 1, "ignore_eos": True,
                                                           "return_token_ids": True}, "three")
    assert status == 200
    found = finished_timeline(smollm2, "three")
    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2]
    for mine, said in zip(found["choices"], answer["choices"]):
        assert [token["id"] for token in mine["tokens"]] == said["token_ids"]


def test_a_deadline_ends_it_frees_its_blocks_and_shows(smollm2):
    status, answer, _ = timed(smollm2, "/v1/completions", {"prompt": "x", "max_tokens": 4000, "ignore_eos": True}, "late", **{"X-Request-Timeout-Ms": "200"})
    assert status == 504 and set(answer["error"]) >= {"message", "type", "param", "code"}
    assert until(lambda: smollm2.metric("sluice_requests_running") == 0)
    found = finished_timeline(smollm2, "late")
    assert found["ended"] == "deadline" and found["total_ms"] >= 200


def test_a_deadline_within_a_stream_is_an_event(smollm2):
    import http.client
    import json
    connection = http.client.HTTPConnection(smollm2.host, smollm2.port, timeout=120)
    connection.request("POST", "/v1/completions", json.dumps({"prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": True}),
                       {"X-Request-Timeout-Ms": "500"})
    response = connection.getresponse()
    assert response.status == 200
    try:
        text = response.read().decode()
    except http.client.IncompleteRead as cut:
        text = cut.partial.decode()
    assert "deadline_exceeded" in text and "[DONE]" not in text
    connection.close()


@pytest.mark.parametrize("value", ["0", "-5", "soon", "1e3", "99999999999999999999", "1.5"])
def test_a_timeout_that_is_none_is_a_400(smollm2, value):
    status, answer = smollm2.post("/v1/completions", {"prompt": "x", "max_tokens": 1}, {"X-Request-Timeout-Ms": value})
    assert status == 400 and answer["error"]["param"] == "x-request-timeout-ms"


def test_a_client_that_leaves_has_an_account_too(smollm2):
    stream = smollm2.stream("/v1/completions", {"prompt": "leave", "max_tokens": 4000, "ignore_eos": True})
    answer_id = next(stream.events())["id"]
    status, running = smollm2.get(f"/v1/requests/{answer_id}/timeline")
    assert status == 200 and running["state"] == "running"
    assert sum(span["ms"] for span in running["spans"]) == pytest.approx(running["total_ms"], rel=0.01)
    stream.close()
    found = finished_timeline(smollm2, answer_id)
    assert found["ended"] == found["finish_reason"] == "client_disconnect"


def test_a_preempted_request_shows_what_it_cost(start):
    server = start(SMOLLM2, "--ctx", "512", "--set", "engine.kv_bytes=26214400")

    def ask(i):
        body = {"prompt": [1000 + i] * 40, "max_tokens": 300, "ignore_eos": True, "temperature": 0}
        return server.post("/v1/completions", body, {"X-Request-Id": f"crowd-{i}"})[0]

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        assert list(pool.map(ask, range(6))) == [200] * 6
    found = [finished_timeline(server, f"crowd-{i}") for i in range(6)]
    preempted = [account for account in found if account["preemptions"]]
    assert len(preempted) > 0 and server.metric("sluice_preemptions_total") > 0
    for account in preempted:
        assert spans(account)["preempted"] > 0
        assert account["preemptions"] >= sum(token["kv_hit"] < 0.5 for token in account["tokens"][1:])


def test_the_list_and_the_attribution(smollm2):
    for i in range(3):
        timed(smollm2, "/v1/completions", {"prompt": "list", "max_tokens": 1 + 5 * i}, f"list-{i}")
    finished_timeline(smollm2, "list-2")
    recent = smollm2.get("/v1/requests?recent=3")[1]["data"]
    assert [entry["request_id"] for entry in recent] == ["list-2", "list-1", "list-0"]
    totals = [entry["total_ms"] for entry in smollm2.get("/v1/requests?slowest=1000")[1]["data"]]
    assert totals == sorted(totals, reverse=True)
    status, attribution = smollm2.get("/v1/requests/attribution?window_s=3600")
    assert status == 200 and attribution["requests"] >= 3 and attribution["complete"]
    for part in (attribution, attribution["slowest"]):
        assert sum(span["share"] for span in part["spans"]) == pytest.approx(1)
        assert sum(span["mean_ms"] for span in part["spans"]) == pytest.approx(part["mean_ms"])
        assert [p["name"] for p in part["parts"]] == ["door", "queue", "prefill", "decode", "cpu_scheduling", "preemption", "write"]
        assert sum(p["share"] for p in part["parts"]) == pytest.approx(1) and all(p["share"] >= 0 for p in part["parts"])
    mine = smollm2.get("/v1/requests/attribution?window_s=3600&request_id_prefix=list-")[1]
    assert mine["requests"] == 3, "of all that the server has answered"
    assert smollm2.get("/v1/requests/attribution?request_id_prefix=nobody-")[1]["requests"] == 0
    assert smollm2.metric("sluice_request_span_seconds_total") > 0


@pytest.mark.parametrize("path", ["/v1/requests?recent=0", "/v1/requests?slowest=1001", "/v1/requests?recent=x", "/v1/requests/attribution?window_s=-1"])
def test_numbers_out_of_range_are_refused_by_name(smollm2, path):
    status, answer = smollm2.get(path)
    assert status == 400 and answer["error"]["param"] in path


def test_an_unknown_id_is_a_404_that_says_what_is_kept(smollm2):
    status, answer = smollm2.get("/v1/requests/nobody/timeline")
    assert status == 404 and "1000" in answer["error"]["message"]
    assert smollm2.get("/v1/requests/nobody")[0] == 404


def test_a_key_sees_its_own_requests_only(start, tmp_path):
    (tmp_path / "sluice.yaml").write_text("server:\n  api_keys: [first-key-000, second-key-00]\n")
    server = start(SMOLLM2, "--config", tmp_path / "sluice.yaml")
    first, second = ({"Authorization": f"Bearer {key}"} for key in ("first-key-000", "second-key-00"))
    assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, {**first, "X-Request-Id": "mine"})[0] == 200
    assert until(lambda: server.get("/v1/requests/mine/timeline", first)[0] == 200)
    assert server.get("/v1/requests/mine/timeline", second)[0] == 404
    assert server.get("/v1/requests", second)[1]["data"] == []
    assert server.get("/v1/requests/mine/timeline")[0] == 401


def test_priorities_are_a_closed_set(smollm2):
    for headers, more in [({"X-Priority": "batch"}, {}), ({}, {"priority": "interactive"}), ({}, {"priority": -1})]:
        assert smollm2.post("/v1/completions", {"prompt": "x", "max_tokens": 1, **more}, headers)[0] == 200
    status, answer = smollm2.post("/v1/completions", {"prompt": "x"}, {"X-Priority": "urgent"})
    assert status == 400 and answer["error"]["param"] == "x-priority" and "interactive, standard, batch" in answer["error"]["message"]
    status, answer = smollm2.post("/v1/completions", {"prompt": "x", "priority": "urgent"})
    assert status == 400 and answer["error"]["param"] == "priority"

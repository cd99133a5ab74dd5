"""HTTP as attackers and broken clients speak it: every answer is an error or a closed connection, and the next client is served."""
import re
import socket

import pytest

from conftest import SMOLLM2, TIMEOUT_S, Server

HEAD = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
BODY = b'{"content":"x"}'


def connect(server):
    return socket.create_connection((server.host, server.port), timeout=TIMEOUT_S)


def read_all(s):
    data = b""
    while part := s.recv(65536):
        data += part
    return data


def exchange(server, data):
    """All that is answered until the server closes. What cannot be sent any more is not sent."""
    with connect(server) as s:
        try:
            s.sendall(data)
        except ConnectionError:
            pass
        try:
            return read_all(s)
        except ConnectionError:
            return b""


def alive(server):
    return server.post("/tokenize", {"content": "x"})[0] == 200


@pytest.mark.parametrize("headers, body, status", [
    (b"Content-Length: 15\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n", 400),  # which one counts differs between servers
    (b"Content-Length: 15\r\nContent-Length: 16\r\n", BODY, 400), (b"Content-Length: 15\r\nContent-Length: 15\r\n", BODY, 400),
    (b"Content-Length: 1, 1\r\n", BODY, 400), (b"Content-Length: +15\r\n", BODY, 400), (b"Content-Length: -1\r\n", BODY, 400),
    (b"Content-Length: 0x0f\r\n", BODY, 400), (b"Content-Length: 99999999999999999999\r\n", b"", 400),
    (b"Transfer-Encoding: chunked, identity\r\n", BODY, None), (b"Transfer-Encoding: xchunked\r\n", BODY, None),
    (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", b"0\r\n\r\n", None), (b"Transfer-Encoding : chunked\r\n", b"0\r\n\r\n", 400),
    (b"X-A: 1\r\n folded: 2\r\nContent-Length: 15\r\n", BODY, None),  # obs-fold: RFC 9112, 5.2
    (b"X-A: a\0b\r\nContent-Length: 15\r\n", BODY, 400), (b"Content-Length: 3000000000\r\n", b"", 413),
    (b"Content-Encoding: gzip\r\nContent-Length: 15\r\n", BODY, 415), (b"Host: y\r\nContent-Length: 15\r\n", BODY, 400),
    (b"X-Big: " + b"a" * 100_000 + b"\r\n", b"", 431), (b"A: b\r\n" * 10_000, b"", 431),
])
def test_heads_that_two_servers_could_read_differently_are_refused(smollm2, headers, body, status):
    answer = exchange(smollm2, HEAD + headers + b"Connection: close\r\n\r\n" + body + b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    first = int(answer.split(b" ")[1])
    if status:
        assert first == status, answer[:300]
    elif first != 200:
        assert 400 <= first < 600, answer[:300]
    assert len(re.findall(rb"HTTP/1.1 \d", answer)) == 1  # nothing behind it was taken for a request
    assert b"X-Request-Id: " in answer
    assert alive(smollm2)


@pytest.mark.parametrize("body", [b"zz\r\n", b"5\r\nabc", b"-1\r\n", b"ffffffffffffffffffff\r\n", b"f\r\n" + BODY, b"f;" + b"a" * 200_000, b"f\r\n" + BODY + b"xx0\r\n\r\n"])
def test_chunked_bodies_that_are_cut_or_wrong(smollm2, body):
    with connect(smollm2) as s:
        s.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + body)
        s.shutdown(socket.SHUT_WR)
        answer = read_all(s)
    assert b" 200 " not in answer.split(b"\r\n")[0]
    assert alive(smollm2)


def test_continue_is_said_before_the_body(smollm2):
    with connect(smollm2) as s:
        s.sendall(HEAD + b"Expect: 100-continue\r\nContent-Length: 15\r\nConnection: close\r\n\r\n")
        assert s.recv(100).startswith(b"HTTP/1.1 100 Continue\r\n\r\n")
        s.sendall(BODY)
        assert b"HTTP/1.1 200 OK" in read_all(s)
    answer = exchange(smollm2, HEAD + b"Expect: 100-continue\r\nContent-Length: 3000000000\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413") and b"100 Continue" not in answer


@pytest.mark.parametrize("size", [7_000, 9_000, 100_000, 1_000_000])
def test_ordinary_large_bodies_are_never_a_413(smollm2, size):
    status, value = smollm2.post("/tokenize", {"content": "a " * (size // 2)})
    assert status == 200 and len(value["tokens"]) >= size // 2


def test_pipelined_requests_wait_for_each_other(smollm2):
    generate = b'{"prompt":"x","max_tokens":3,"stream":true}'
    post = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(generate) + generate
    answer = exchange(smollm2, post * 3 + b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert answer.count(b"HTTP/1.1 200 OK") == 4 and answer.count(b"[DONE]") == 3
    assert answer.rindex(b'{"status":"ok"}') > answer.rindex(b"[DONE]")


def test_a_half_closed_client_has_left(smollm2):
    from conftest import until
    body = b'{"prompt":"x","max_tokens":4000,"ignore_eos":true}'
    with connect(smollm2) as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        s.shutdown(socket.SHUT_WR)
        assert read_all(s) == b""
    assert until(lambda: smollm2.metric("sluice_requests_running") == 0)


@pytest.fixture(scope="module")
def impatient():
    server = Server(SMOLLM2, "--set", "server.header_timeout_ms=400", "--set", "server.body_timeout_ms=400")
    yield server
    status, log = server.stop()
    assert status == 0, log


def test_slow_clients_are_sent_away_and_others_served(impatient):
    silent = [connect(impatient) for _ in range(200)]
    slow = [connect(impatient) for _ in range(200)]
    for s in slow[:100]:
        s.sendall(b"GET /hea")
    for s in slow[100:]:
        s.sendall(HEAD + b"Content-Length: 15\r\n\r\n{")
    assert alive(impatient)
    for s in slow:
        assert read_all(s).startswith(b"HTTP/1.1 408")
    for s in silent + slow:
        s.close()


def test_an_id_is_echoed_clean_or_replaced(smollm2):
    def id_of(header):
        answer = exchange(smollm2, b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + header + b"\r\n")
        return next(line[14:] for line in answer.split(b"\r\n") if line.lower().startswith(b"x-request-id: "))
    assert id_of(b"X-Request-Id: abc-1\r\n") == b"abc-1"
    assert id_of(b"X-Request-Id: " + b"a" * 10_000 + b"\r\n") == b"a" * 128
    for bad in (b"X-Request-Id: a b\r\n", b"X-Request-Id: \xff\r\n", b"X-Request-Id:\r\n", b""):
        assert id_of(bad).startswith(b"req-")

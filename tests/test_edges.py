"""What stands between the internet and the model: keys, other origins' pages, TLS, limits."""
import hashlib
import http.client
import socket
import ssl
import subprocess

import openai
import pytest

from conftest import SMOLLM2, TIMEOUT_S, until


def digest(key):
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


def test_keys_lie_hashed_in_the_file(start, tmp_path):
    config = tmp_path / "sluice.yaml"
    config.write_text(f"server:\n  api_keys: [{digest('one')}, 'bob={digest('two')}']\n")
    server = start(SMOLLM2, "--config", config)
    for headers, status in (({"Authorization": "Bearer one"}, 200), ({"x-api-key": "two"}, 200), ({"Authorization": "Bearer three"}, 401),
                            ({"Authorization": "Bearer " + digest("one")}, 401), ({}, 401)):
        assert server.get("/v1/models", headers)[0] == status
    status, error = server.post("/v1/messages", {}, {"x-api-key": "three"})
    assert status == 401 and error["error"]["type"] == "authentication_error"
    assert "as it is" not in server.stop()[1]


def test_a_page_of_a_listed_origin_may_call(start):
    server = start(SMOLLM2, "--set", "server.cors_origins=https://a.example")

    def headers_of(method, origin, **more):
        connection = http.client.HTTPConnection(server.host, server.port, timeout=TIMEOUT_S)
        connection.request(method, "/v1/chat/completions", b"{}" if method == "POST" else None, {"Origin": origin, **more})
        response = connection.getresponse()
        connection.close()
        return response.status, response.headers
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    status, headers = headers_of("OPTIONS", "https://a.example", **asked)
    assert status == 204 and headers["Access-Control-Allow-Origin"] == "https://a.example" and "POST" in headers["Access-Control-Allow-Methods"]
    assert headers["Access-Control-Allow-Headers"] == asked["Access-Control-Request-Headers"]
    assert headers_of("POST", "https://a.example")[1]["Access-Control-Allow-Origin"] == "https://a.example"  # errors can be read too
    for method in ("OPTIONS", "POST"):
        assert "Access-Control-Allow-Origin" not in headers_of(method, "https://b.example", **asked)[1]


@pytest.fixture
def certificate(tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return cert, key


def test_the_sdk_speaks_tls(start, certificate):
    cert, key = certificate
    server = start(SMOLLM2, "--set", f"server.tls.cert_file={cert}", "--set", f"server.tls.key_file={key}")
    context = ssl.create_default_context(cafile=str(cert))
    http_client = openai.DefaultHttpxClient(verify=context)
    with openai.OpenAI(base_url=f"https://{server.host}:{server.port}/v1", api_key="none", max_retries=0, http_client=http_client) as client:
        whole = client.completions.create(model="SmolLM2", prompt="Once", max_tokens=30, temperature=0).choices[0].text
        chunks = client.completions.create(model="SmolLM2", prompt="Once", max_tokens=30, temperature=0, stream=True)
        assert "".join(c.choices[0].text for c in chunks) == whole
        with pytest.raises(openai.BadRequestError) as error:
            client.completions.create(model="SmolLM2", prompt="a " * 1_000_000, max_tokens=1)
        assert error.value.code == "context_length_exceeded"
    with socket.create_connection((server.host, server.port), timeout=TIMEOUT_S) as plain:
        plain.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        try:
            assert b"200" not in plain.recv(100)
        except ConnectionResetError:  # closed before it read all: fine too
            pass
    old = ssl.create_default_context(cafile=str(cert))
    with pytest.warns(DeprecationWarning):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection((server.host, server.port), timeout=TIMEOUT_S) as raw, pytest.raises(ssl.SSLError):
        old.wrap_socket(raw, server_hostname="127.0.0.1")


def test_a_bad_certificate_is_refused_at_start(certificate, tmp_path):
    from conftest import run_sluice
    cert, key = certificate
    (tmp_path / "empty.pem").write_text("")
    empty, none = tmp_path / "empty.pem", tmp_path / "none.pem"
    for pair, why in (((none, key), f"server.tls.cert_file: {none}: No such file or directory"), ((empty, key), f"server.tls.cert_file: {empty}: no start line"),
                      ((cert, empty), f"server.tls.key_file: {empty}: "), ((cert, ""), "server.tls.key_file")):
        done = run_sluice("serve", SMOLLM2, "--port", "0", "--set", f"server.tls.cert_file={pair[0]}", "--set", f"server.tls.key_file={pair[1]}")
        assert done.returncode == 1 and why in done.stderr and "error:" not in done.stderr, done.stderr


def own_address():
    """An address of this machine's that is not loopback; None: it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("203.0.113.1", 9))  # sends nothing
            return probe.getsockname()[0]
        except OSError:
            return None


def test_one_address_has_a_limited_number_of_connections(start):
    address = own_address()
    if address is None or address.startswith("127."):
        pytest.skip("this machine has no address but loopback")
    server = start(SMOLLM2, "--host", "0.0.0.0", "--set", "server.max_connections_per_address=2")

    def status(connection):
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        return connection.recv(4096).split()[1]

    connect = lambda host: socket.create_connection((host, server.port), timeout=TIMEOUT_S)
    with connect(address) as first, connect(address) as second:
        assert status(first) == status(second) == b"200"
        with connect(address) as third:
            assert third.recv(4096).split()[1] == b"429"
        with connect("127.0.0.1") as local:
            assert status(local) == b"200"

    def let_in():
        with connect(address) as again:
            try:
                return status(again) == b"200"
            except OSError:
                return False
    assert until(let_in)

"""What lies in deploy/, loaded by the programs that it is for: a real Prometheus, promtool, a real collector. What neither
Debian nor PyPI has (Grafana, Loki) is checked for its form, and for what it refers to."""
import http.client
import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request

import pytest

from conftest import ROOT, SMOLLM2, TIMEOUT_S, until
from test_tracing import ASK, CHAT, PARENT, TRACE, Collector, free_port

DEPLOY = ROOT / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "sluice.json").read_text())
needs_prometheus = pytest.mark.skipif(not shutil.which("prometheus") or not shutil.which("promtool"),
                                      reason="prometheus is not installed (Debian package prometheus)")


def of_panels():
    """All PromQL of the dashboard, with Grafana's variables filled in."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            yield target["expr"].replace("$__rate_interval", "1m").replace("$job", ".*").replace("$instance", ".*")


def of_rules():
    return re.findall(r"\bsluice_[a-z0-9_]+", (DEPLOY / "prometheus" / "sluice.rules.yml").read_text())


def scrape(server, accept):
    connection = http.client.HTTPConnection(server.host, server.port, timeout=TIMEOUT_S)
    connection.request("GET", "/metrics", headers={"Accept": accept})
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.headers["Content-Type"], text


def test_every_series_that_panels_and_rules_name_exists(smollm2):
    _, text = scrape(smollm2, "text/plain")
    exported = {re.match(r"[a-zA-Z_:][\w:]*", line)[0] for line in text.splitlines() if line and not line.startswith("#")}
    exported |= set(re.findall(r"^# TYPE (\S+) ", text, re.M))
    named = {name for expr in of_panels() for name in re.findall(r"\b(?:sluice|process)_[a-z0-9_]+", expr)} | set(of_rules())
    assert named and named <= exported, named - exported


@needs_prometheus
def test_metrics_and_rules_are_what_promtool_accepts(smollm2):
    text = scrape(smollm2, "text/plain")[1]
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=TIMEOUT_S)
    # 3: names that it finds unusual (vLLM's), not wrong.
    assert checked.returncode in (0, 3), checked.stderr
    checked = subprocess.run(["promtool", "check", "config", DEPLOY / "prometheus" / "prometheus.yml"], capture_output=True, text=True,
                             timeout=TIMEOUT_S)
    assert checked.returncode == 0, checked.stderr + checked.stdout


class Prometheus:
    """Debian's, on a configuration of ours with the target's port put in."""

    def __init__(self, folder, server):
        for name in ("prometheus.yml", "sluice.rules.yml"):
            text = (DEPLOY / "prometheus" / name).read_text()
            text = text.replace("127.0.0.1:8000", f"{server.host}:{server.port}").replace("interval: 5s", "interval: 200ms")
            (folder / name).write_text(text.replace("interval: 15s", "interval: 200ms"))
        self.port = free_port()
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address=127.0.0.1:{self.port}", "--enable-feature=exemplar-storage"],
            stdout=subprocess.DEVNULL, stderr=(folder / "log").open("w"))

    def get(self, path, **query):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}?{urllib.parse.urlencode(query)}", timeout=TIMEOUT_S) as answer:
                return json.load(answer)["data"]
        except OSError:  # it is not there yet
            return None

    def values(self, query):
        data = self.get("/api/v1/query", query=query)
        return [] if data is None else [float(row["value"][1]) for row in data["result"]]


@pytest.fixture
def prometheus(tmp_path):
    started = []

    def make(server):
        started.append(Prometheus(tmp_path, server))
        return started[-1]

    yield make
    for one in started:
        one.process.kill()
        one.process.wait(TIMEOUT_S)


@pytest.fixture
def collect(tmp_path):
    started = []

    def make(settings=None):
        started.append(Collector(tmp_path, settings))
        return started[-1]

    yield make
    for collector in started:
        collector.process.kill()  # one whose backend is away would go on trying
        collector.stop()


@needs_prometheus
def test_a_real_prometheus_scrapes_evaluates_and_keeps_exemplars(start, prometheus, collect):
    collector = collect()
    server = start(SMOLLM2, "--set", f"tracing.endpoint={collector.url}")
    assert server.post(CHAT, ASK, {"traceparent": f"00-{TRACE}-{PARENT}-01"})[0] == 200
    running = prometheus(server)
    assert until(lambda: 1.0 in running.values('up{job="sluice"}'), 100000)
    assert until(lambda: 6.0 in running.values("sluice_generated_tokens_total"), 100000)
    assert running.values("sluice_time_to_first_token_seconds_count") == [1.0]
    for expr in of_panels():
        assert running.get("/api/v1/query", query=expr) is not None, expr
    assert until(lambda: running.values("sluice:requests_failed:ratio5m"), 100000)
    rules = [rule for group in running.get("/api/v1/rules")["groups"] for rule in group["rules"]]
    assert len(rules) > 10 and all(rule["health"] in ("ok", "unknown") for rule in rules), rules

    def exemplars():
        return running.get("/api/v1/query_exemplars", query="sluice_time_to_first_token_seconds_bucket", start="0", end="9999999999")

    assert until(exemplars, 100000)
    [series] = exemplars()
    assert series["exemplars"][0]["labels"]["trace_id"] == TRACE
    between = running.get("/api/v1/query_exemplars", query="sluice_inter_token_seconds_bucket", start="0", end="9999999999")
    assert between[0]["exemplars"][0]["labels"]["trace_id"] == TRACE


def test_open_metrics_by_content_negotiation(smollm2):
    kind, text = scrape(smollm2, "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5")
    assert kind.startswith("application/openmetrics-text; version=1.0.0") and text.endswith("# EOF\n")
    assert "# TYPE sluice_generated_tokens counter\n" in text and "\nsluice_generated_tokens_total " in text
    families = re.findall(r"^# TYPE (\S+) ", text, re.M)
    assert len(families) == len(set(families))
    kind, text = scrape(smollm2, "text/plain")
    assert kind.startswith("text/plain") and "# EOF" not in text


def test_the_collectors_settings_are_taken_by_rotel(collect, start):
    lines = (DEPLOY / "collector" / "rotel.env").read_text().splitlines()
    settings = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    collector = collect({**settings, "ROTEL_OTLP_EXPORTER_ENDPOINT": f"http://127.0.0.1:{free_port()}"})
    server = start(SMOLLM2, "--set", f"tracing.endpoint={collector.url}", "--set", "tracing.sample_ratio=1")
    assert server.post(CHAT, ASK)[0] == 200
    collector.wait_for("SPAN_KIND_SERVER", 1)


def test_the_dashboard_is_whole():
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    assert all(panel["type"] == "row" or panel["targets"] for panel in DASHBOARD["panels"])

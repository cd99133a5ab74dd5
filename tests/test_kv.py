"""The KV cache by its settings: precisions, reserved contexts, windows, what the memory goes to, and `sluice eval`."""
import json
import re
import shutil

import pytest

from conftest import SMOLLM2, run_sluice, until

PROMPT = " ".join(f"Item {i} of the list is the number {i * i}." for i in range(60))


def complete(server, prompt=PROMPT, tokens=48):
    status, answer = server.post("/v1/completions", {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True})
    assert status == 200, answer
    return answer["choices"][0]["text"]


def labelled(server, name, label):
    return {value: float(number) for value, number in
            re.findall(rf'^{name}\{{{label}="(\w+)"\}} (\S+)$', server.get("/metrics")[1], re.M)}


def test_bytes_of_all_states_are_the_pool(start):
    server = start(SMOLLM2, "--ctx", "2048", "--max-sequences", "4")
    pool = labelled(server, "sluice_kv_bytes", "state")
    assert pool["used"] == pool["reserved"] == pool["cached"] == pool["wasted"] == 0
    complete(server)
    assert until(lambda: server.metric("sluice_kv_blocks_used") == 0)
    after = labelled(server, "sluice_kv_bytes", "state")
    assert after["cached"] > 0
    assert sum(after.values()) == sum(pool.values())
    assert server.metric("sluice_kv_peak_bytes") > 0
    assert labelled(server, "sluice_kv_tier_blocks", "tier") == {"full": server.metric("sluice_kv_blocks_cached"), "int8": 0, "fp8": 0, "int4": 0}


@pytest.mark.parametrize("precision, tier", [("int8", "int8"), ("int4", "int4"), ("tiered", "int8")])
def test_blocks_are_kept_in_the_precision_asked_for(start, precision, tier):
    server = start(SMOLLM2, "--ctx", "2048", "--max-sequences", "4", "--set", f"kv.precision={precision}", "--set", "kv.tier_full_tokens=128")
    first = complete(server)
    converted = labelled(server, "sluice_kv_conversions_total", "tier")
    assert converted[tier] >= 8, "a prompt of some 900 tokens has a dozen blocks of 64"
    assert len(first) > 20
    assert until(lambda: server.metric("sluice_kv_blocks_used") == 0)
    complete(server)
    assert server.metric("sluice_prefix_cache_hits_total") > 500, "converted blocks are found again"
    assert server.stop()[0] == 0


def test_whole_contexts_are_reserved_and_seen(start):
    server = start(SMOLLM2, "--ctx", "2048", "--max-sequences", "2", "--set", "kv.allocation=contiguous_max_context")
    stream = server.stream("/v1/completions", {"prompt": "One", "max_tokens": 2000, "temperature": 0, "ignore_eos": True})
    events = stream.events()
    next(events)
    reserved = []
    assert until(lambda: reserved.append(labelled(server, "sluice_kv_bytes", "state")) or reserved[-1]["reserved"] > 0)
    assert server.metric("sluice_kv_blocks_used") in (128, 0), "2048 tokens in blocks of 16, if it still runs"
    stream.close()
    assert until(lambda: server.metric("sluice_kv_blocks_used") == 0)


def test_a_forced_window_frees_what_is_behind_it(start):
    server = start(SMOLLM2, "--ctx", "2048", "--step-tokens", "64", "--max-sequences", "4", "--set", "kv.sliding_window=128", "--set", "kv.prefix_cache=false")
    complete(server)
    full = 2 * 30 * 3 * 64 * 2  # bytes of a token: keys and values of 30 layers, 3 heads of 64, half precision
    assert server.metric("sluice_kv_peak_bytes") <= (128 + 2 * 64 + 3 * 16) * full


def test_what_the_device_lacks_and_what_contradicts_itself_is_refused():
    lacks = run_sluice("serve", SMOLLM2, "--device", "cpu", "--set", "kv.precision=fp8")
    assert lacks.returncode == 1
    assert lacks.stderr.count("\n") == 1 and "kv.precision" in lacks.stderr and "bf16, int8, int4, tiered" in lacks.stderr
    for setting in ("kv.precision=int3", "kv.allocation=lazy", "kv.tier_full_tokens=-1", "kv.sliding_window=x"):
        assert run_sluice("serve", SMOLLM2, "--set", setting).returncode == 2
    both = run_sluice("serve", SMOLLM2, "--set", "kv.precision=int8", "--set", "kv.allocation=contiguous_max_context")
    assert both.returncode == 2 and "kv.allocation" in both.stderr


def other_prompt(number):
    return " ".join(f"Line {i} of book {number} is about {i + number} things." for i in range(60))


def outside(tmp_path, *more):
    """A pool of some 2,600 tokens, host memory for more than 10,000, and files."""
    return ("--ctx", "2048", "--max-sequences", "2", "--set", "engine.kv_bytes=60000000", "--set", "kv.host_bytes=300000000",
            "--set", f"kv.disk_path={tmp_path}", *more)


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_prefixes_come_back_from_host_memory_and_after_a_restart_from_files(start, tmp_path, precision):
    settings = outside(tmp_path, "--set", f"kv.precision={precision}")
    server = start(SMOLLM2, *settings)
    first = complete(server, tokens=16)
    for number in range(5 if precision == "bf16" else 9):
        complete(server, other_prompt(number), tokens=4)
    assert labelled(server, "sluice_prefix_cache_restored_tokens_total", "from") == {"host": 0, "disk": 0}
    again = complete(server, tokens=16)
    restored = labelled(server, "sluice_prefix_cache_restored_tokens_total", "from")
    assert restored["host"] > 500 and restored["disk"] == 0
    if precision == "bf16":
        assert again == first, "a block that comes back is the block that went"
    assert labelled(server, "sluice_kv_outside_blocks", "where")["host"] > 0
    assert server.stop()[0] == 0
    assert any(tmp_path.rglob("*.kv"))

    server = start(SMOLLM2, *settings)
    assert labelled(server, "sluice_kv_outside_blocks", "where")["disk"] > 0
    assert complete(server, tokens=16) == again or precision != "bf16"
    assert labelled(server, "sluice_prefix_cache_restored_tokens_total", "from")["disk"] > 500
    status, log = server.stop()
    assert status == 0 and "are there from before" in log


def test_a_disk_that_hangs_is_not_waited_for(start, tmp_path):
    """Seconds for each block, dozens of blocks: the prompt is computed, and says that nothing was found."""
    server = start(SMOLLM2, *outside(tmp_path))
    first = complete(server, tokens=8)
    for number in range(5):
        complete(server, other_prompt(number), tokens=4)
    assert server.stop()[0] == 0
    server = start(SMOLLM2, *outside(tmp_path), faults="slow_disk:amount=4000")
    assert labelled(server, "sluice_kv_outside_blocks", "where")["disk"] > 0
    status, body = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 8, "temperature": 0})
    assert status == 200 and body["choices"][0]["text"] == first
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_tokens_that_are_missed_because_they_gave_way_are_counted(start):
    server = start(SMOLLM2, "--ctx", "2048", "--max-sequences", "2", "--set", "engine.kv_bytes=60000000")
    complete(server, tokens=4)
    for number in range(5):
        complete(server, other_prompt(number), tokens=4)
    assert server.metric("sluice_prefix_cache_missed_evicted_tokens_total") == 0, "nobody came back"
    complete(server, tokens=4)
    assert server.metric("sluice_prefix_cache_missed_evicted_tokens_total") > 500


def test_corrupt_files_are_computed_again_and_a_disk_that_fails_is_said_once(start, tmp_path):
    server = start(SMOLLM2, *outside(tmp_path))
    first = complete(server, tokens=8)
    assert server.stop()[0] == 0
    for file in tmp_path.rglob("*.kv"):
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    server = start(SMOLLM2, *outside(tmp_path))
    assert complete(server, tokens=8) == first
    assert labelled(server, "sluice_kv_disk_errors_total", "kind")["corrupt"] > 0
    status, log = server.stop()
    assert status == 0 and log.count("checksum differs") == 1

    nowhere = tmp_path / "later_a_file"
    server = start(SMOLLM2, *outside(nowhere))
    shutil.rmtree(nowhere, ignore_errors=True)
    nowhere.write_text("where a folder was")
    assert complete(server, tokens=8) == first
    assert until(lambda: labelled(server, "sluice_kv_disk_errors_total", "kind")["write"] > 1)
    status, log = server.stop()
    assert status == 0 and log.count("cannot write") == 1


def test_long_contexts_are_decoded_over_a_part_of_their_blocks(start):
    server = start(SMOLLM2, "--ctx", "2048", "--max-sequences", "2", "--set", "kv.sparse_above=512", "--set", "kv.sparse_keep=0.25")
    assert len(complete(server, tokens=16)) > 10
    assert 0.24 < server.metric("sluice_kv_sparse_read_ratio") < 0.28
    assert server.metric("sluice_kv_sparse_blocks_read_total") < 0.3 * server.metric("sluice_kv_sparse_blocks_total")


NEEDLE = "the secret code of the castle of Arnholm is 48213."
HAY = "\n".join(f"The {what} of {place} is {how}, and nobody knows who built it." for what in ["road", "old river", "wall", "tower", "white bridge"]
                for place in ["Lund", "Mora", "Visby"] for how in ["long", "steep", "narrow", "closed"])


@pytest.mark.parametrize("settings", [{}, {"kv.precision": "int8"}, {"kv.precision": "tiered", "kv.tier_full_tokens": 64, "kv.tier_int8_tokens": 256},
                                      {"kv.sparse_above": 256, "kv.sparse_keep": 0.25}], ids=["full", "int8", "tiered", "sparse"])
def test_a_needle_is_found_however_the_cache_is_kept(start, settings):
    server = start(SMOLLM2, "--ctx", "2048", "--max-sequences", "2", *(f for k, v in settings.items() for f in ("--set", f"{k}={v}")))
    text = HAY.split("\n")
    text.insert(25, f"T{NEEDLE[1:]} Remember it: {NEEDLE}")
    assert "48213" in complete(server, "\n".join(text) + "\n\nThe secret code of the castle of Arnholm", 12)


def test_settings_outside_the_pool_that_cannot_be_are_named(tmp_path):
    for key, flags in {"kv.disk_path": [f"kv.disk_path={tmp_path}"], "kv.host_bytes": ["kv.host_bytes=1000000000", "kv.prefix_cache=false"],
                       "kv.sparse_keep": ["kv.sparse_above=100", "kv.sparse_keep=0"]}.items():
        refused = run_sluice("serve", SMOLLM2, *(f for flag in flags for f in ("--set", flag)))
        assert refused.returncode in (1, 2) and key in refused.stderr, refused.stderr
    (tmp_path / "file").write_text("not a folder")
    for no_folder in (tmp_path / "file", tmp_path / "file" / "kv", "/dev/null"):
        for dry in ([], ["--dry-run"]):
            refused = run_sluice("serve", SMOLLM2, *dry, "--set", "kv.host_bytes=1000000000", "--set", f"kv.disk_path={no_folder}")
            assert refused.returncode in (1, 2) and "kv.disk_path" in refused.stderr, refused.stderr
    few = run_sluice("serve", SMOLLM2, "--set", "kv.host_bytes=1000")
    assert few.returncode in (1, 2) and "kv.host_bytes" in few.stderr and "too few" in few.stderr


def test_eval_compares_precisions(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(PROMPT)
    done = run_sluice("eval", SMOLLM2, "--data", text, "--kv-precision", "int8,int4", "--max-tokens", "300", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    int8, int4 = found["results"]
    assert found["perplexity"] == int8["perplexity"] and found["mean_kl"] == int8["mean_kl"]
    assert int8["tokens"] == int4["tokens"] >= 299 and int8["full_perplexity"] == int4["full_perplexity"]
    assert 0 < int8["mean_kl"] < int4["mean_kl"] < 0.1
    assert int4["kv_bytes_per_token"] < int8["kv_bytes_per_token"] < int8["full_kv_bytes_per_token"]
    assert int8["top1_agreement"] > 0.9
    missing = run_sluice("eval", SMOLLM2, "--data", tmp_path / "nowhere.txt")
    assert missing.returncode == 1 and "nowhere.txt" in missing.stderr

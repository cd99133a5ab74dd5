"""`sluice quantize` and what `sluice eval` says of its results, on tiny models."""
import json
import shutil
import random
import subprocess

import pytest

from conftest import ROOT, SLUICE, SMOLLM2, Server, run_sluice

TINY = ROOT.parent / "shared" / "cases" / "tiny"
MODEL = TINY / "qwen3-qknorm"


def words(seed, count):
    draw = random.Random(seed)
    return " ".join("".join(draw.choices("abcdefghijklmnop", k=draw.randint(2, 9))) for _ in range(count))


@pytest.fixture
def texts(tmp_path):
    """A calibration file and a text to judge by, which share nothing."""
    calibration, judged = tmp_path / "calibration.jsonl", tmp_path / "judged.txt"
    calibration.write_text("".join(json.dumps({"text": words(i, 60), "kind": "made up"}) + "\n" for i in range(20)))
    judged.write_text(words(99, 120))
    return calibration, judged


def quantize(*flags, model=MODEL):
    return run_sluice("quantize", model, *flags)


@pytest.mark.parametrize("method", ["rtn", "awq", "gptq", "int8", "fp8"])
def test_a_quantized_model_is_served_and_judged(method, texts, tmp_path):
    calibration, judged = texts
    flags = () if method in ("rtn", "fp8") else ("--calibration", calibration, "--samples", 8, "--eval-data", judged)
    done = quantize("-o", tmp_path / "out", "--method", method, *flags)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert f"{tmp_path / 'out'}: " in done.stderr and f" % of {MODEL}'s " in done.stderr
    server = Server(tmp_path / "out", "--ctx", 256)
    try:
        status, body = server.post("/v1/completions", {"prompt": "abc", "max_tokens": 3, "ignore_eos": True})
        assert status == 200 and body["usage"]["completion_tokens"] == 3
    finally:
        assert server.stop()[0] == 0
    done = run_sluice("eval", tmp_path / "out", "--baseline", MODEL, "--data", judged, "--window-tokens", 128, "--batch", 0, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["baseline"] == str(MODEL) and 0 < found["mean_kl"] < found["p99_kl"]
    assert 0.2 < found["top1_agreement"] <= 1  # random weights: their tokens are close to each other


def test_a_method_that_measures_asks_for_a_text(tmp_path):
    done = quantize("-o", tmp_path / "out", "--method", "awq")
    assert (done.returncode, done.stderr) == (2, "sluice: --calibration: awq needs a text to measure activations on; name a file\n")


def test_a_text_is_either_for_calibration_or_for_judging(texts, tmp_path):
    calibration, judged = texts
    with open(calibration, "a") as f:
        f.write(json.dumps({"text": judged.read_text()}) + "\n")
    done = quantize("-o", tmp_path / "out", "--method", "awq", "--calibration", calibration, "--eval-data", judged)
    assert done.returncode == 1 and "shares a passage with" in done.stderr and not (tmp_path / "out").exists()
    assert quantize("-o", tmp_path / "out", "--method", "int8", "--calibration", calibration).returncode == 0
    done = run_sluice("eval", tmp_path / "out", "--data", judged)
    assert done.returncode == 1 and done.stderr.startswith(f"sluice: --data: {tmp_path / 'out'} was calibrated on a part of {judged}")
    (tmp_path / "empty.txt").write_text("")
    done = run_sluice("eval", MODEL, "--data", tmp_path / "empty.txt")
    assert (done.returncode, done.stderr) == (1, "sluice: --data: the text has no two tokens: give a longer one\n")


def test_what_is_no_text_is_refused(texts, tmp_path):
    _, judged = texts
    binary = tmp_path / "binary.txt"
    binary.write_bytes(judged.read_text().encode("utf-16"))
    for flags in (("--calibration", binary), ("--calibration", texts[0], "--eval-data", binary)):
        done = quantize("-o", tmp_path / "out", "--method", "awq", *flags)
        assert done.returncode == 1 and done.stderr == f"sluice: {flags[-2]}: {binary}: is not UTF-8 text\n"
    done = run_sluice("eval", MODEL, "--data", binary)
    assert done.returncode == 1 and f"{binary}: is not UTF-8 text" in done.stderr


@pytest.mark.parametrize("flags, message", [
    (("--bits", "8", "--layout", "awq", "--method", "rtn"), "--layout: awq cannot hold what rtn with 8 bits makes"),
    (("--group-size", "48", "--method", "rtn"), "--group-size: 48 is not supported"),
    (("--block", "128", "--method", "rtn"), "--block: goes with fp8 alone"),
    (("--observer", "median", "--method", "rtn"), "--observer: expected minmax, moving-average or percentile"),
    (("--observe-per", "row", "--method", "int8"), "--observe-per: expected channel, group[:2 - 65536] or tensor, got 'row'"),
    (("--group-size", "64", "--method", "fp8"), "--group-size: has no effect on fp8 in layout compressed-tensors"),
    (("--calibration", "nowhere", "--method", "rtn"), "--calibration: has no effect on rtn in layout awq"),
    (("--no-clip", "--method", "gptq"), "--clip: has no effect on gptq in layout gptq"),
    (("--observer", "percentile", "--method", "awq"), "--observer: has no effect on awq in layout awq"),
    (("--observe-per", "tensor", "--method", "awq"), "--observe-per: has no effect on awq in layout awq"),
    (("--layout", "fp8", "--method", "gptq"), "--layout: fp8 cannot hold what gptq with 4 bits makes"),
    (("--bits", "4", "--method", "int8"), "--bits: int8 has 8"),
    (("--calibration", "", "--method", "fp8"), "--calibration: is empty; name a file"),
])
def test_what_does_not_go_together_is_wrong_use_and_named(flags, message, tmp_path):
    done = quantize("-o", tmp_path / "out", *flags)
    assert done.returncode == 2 and done.stderr.startswith("sluice: " + message), done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("out, flags, message", [
    ("", (), "is empty; name a folder to make"),
    ("OUT.GGUF", (), "a GGUF file ends in .gguf (in small letters)"),
    ("out.gguf/", (), "a GGUF file ends in .gguf (in small letters), and a folder does not"),
    ("out", ("--layout", "gguf"), "out with --layout gguf: a GGUF file ends in .gguf, and a folder does not"),
    ("out.gguf", ("--layout", "awq"), "out.gguf with --layout awq: a GGUF file ends in .gguf"),
])
def test_what_an_output_may_be_called(out, flags, message, tmp_path):
    done = quantize("-o", f"{tmp_path}/{out}" if out else "", "--method", "rtn", *flags)
    assert done.returncode == 2 and done.stderr.startswith("sluice: --output: ") and message in done.stderr, done.stderr


def test_a_file_that_is_not_there_is_named_with_its_flag(texts, tmp_path):
    calibration, _ = texts
    for flags in (("--calibration", tmp_path / "no.txt"), ("--calibration", calibration, "--eval-data", tmp_path / "no.txt")):
        done = quantize("-o", tmp_path / "out", "--method", "awq", *flags)
        assert (done.returncode, done.stderr) == (1, f"sluice: {flags[-2]}: {tmp_path / 'no.txt'}: cannot open: No such file or directory\n")
    done = run_sluice("eval", MODEL, "--data", tmp_path / "no.txt")
    assert (done.returncode, done.stderr) == (1, f"sluice: --data: {tmp_path / 'no.txt'}: cannot open: No such file or directory\n")


def test_observers_stand_in_the_result(texts, tmp_path):
    calibration, _ = texts
    for number, (observer, unit) in enumerate((("percentile:99", "group:32"), ("moving-average", "tensor"))):
        done = quantize("-o", tmp_path / str(number), "--method", "int8", "--calibration", calibration, "--observer", observer, "--observe-per", unit)
        assert done.returncode == 0, done.stderr
        made = json.loads((tmp_path / str(number) / "config.json").read_text())["sluice_quantization"]["calibration"]
        assert (made["observer"], made["observed"]) == (observer, unit)
        assert made["data"].startswith("xxh3-128:")


def test_a_folder_without_a_tokenizer_is_said_to_have_none(tmp_path):
    bare = tmp_path / "bare"
    shutil.copytree(MODEL, bare, copy_function=shutil.copyfile, ignore=shutil.ignore_patterns("tokenizer*"))
    done = quantize("-o", tmp_path / "out", "--method", "rtn", model=bare)
    assert done.returncode == 0 and "no tokenizer is written, so the result serves token ids alone" in done.stderr


def test_an_interrupted_run_says_where_it_goes_on(tmp_path):
    assert quantize("-o", tmp_path / "out", "--method", "rtn").returncode == 0
    begun = tmp_path / "again.partial"
    # As a run that was killed behind its first layer leaves it: settings are written before any layer.
    resource = subprocess.run(["bash", "-c", f"ulimit -f 16; exec {SLUICE} quantize {MODEL} -o {tmp_path / 'again'} --method rtn"],
                              capture_output=True, text=True)
    assert resource.returncode != 0 and begun.is_dir() and not (tmp_path / "again").exists()
    shutil.copy(tmp_path / "out" / "model-00002-of-00003.safetensors", begun)
    done = quantize("-o", tmp_path / "again", "--method", "rtn")
    assert done.returncode == 0 and "an interrupted run goes on: 1 of 2 layers are there" in done.stderr, done.stderr
    for file in (tmp_path / "out").iterdir():
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes(), file


def test_a_seed_is_not_negative(tmp_path):
    done = quantize("-o", tmp_path / "out", "--seed", "-1")
    assert done.returncode == 2 and done.stderr.startswith("sluice: --seed: Value -1 not in range")


def test_several_models_stand_in_one_table_and_on_one_page(texts, tmp_path):
    _, judged = texts
    for method in ("rtn", "fp8"):
        assert quantize("-o", tmp_path / method, "--method", method).returncode == 0
    done = run_sluice("eval", tmp_path / "rtn", "--models", tmp_path / "fp8", "--baseline", MODEL, "--data", judged, "--window-tokens", 64,
                      "--batch", "1,2", "--html", tmp_path / "page.html", "--ctx", 256)
    assert done.returncode == 0, done.stderr
    head, title, *rows = done.stdout.splitlines()
    assert "perplexity" in head and "tok/s at 1" in title and "tok/s at 2" in title
    assert [row.split()[0] for row in rows] == ["rtn", "fp8"]
    page = (tmp_path / "page.html").read_text()
    assert page.count("<circle") == 2 and "<svg" in page and "http" not in page


def test_a_gguf_file_of_eight_bits_computes_what_the_file_computed(tmp_path):
    """Q4_1 as Q8_0 loses little, unless rows of queries and keys were put in another order than the file's."""
    judged = tmp_path / "judged.txt"
    judged.write_text("The river rises in the hills and runs through three towns before it reaches the sea. " * 4)
    out = tmp_path / "model.gguf"
    assert quantize("-o", out, "--method", "rtn", "--bits", "8", model=SMOLLM2).returncode == 0
    done = run_sluice("eval", out, "--baseline", SMOLLM2, "--data", judged, "--window-tokens", 64, "--batch", 0, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["mean_kl"] < 0.02
    done = quantize("-o", tmp_path / "again.gguf", "--method", "rtn", model=out)
    assert done.returncode == 1 and "this model is quantized already" in done.stderr and not (tmp_path / "again.gguf.partial").exists()


def test_what_an_evaluation_found_is_not_lost(texts, tmp_path):
    """A model that computes no numbers fails, by name, and the rows of the others are printed; without --baseline the first model is it."""
    _, judged = texts
    broken = tmp_path / "broken"
    shutil.copytree(MODEL, broken, copy_function=shutil.copyfile)
    weights = bytearray((broken / "model.safetensors").read_bytes())
    size = int.from_bytes(weights[:8], "little")
    at = 8 + size + json.loads(weights[8:8 + size])["model.norm.weight"]["data_offsets"][0]
    weights[at:at + 4] = b"\xff\x7f\xff\x7f"
    (broken / "model.safetensors").write_bytes(weights)
    assert quantize("-o", tmp_path / "fp8", "--method", "fp8").returncode == 0
    done = run_sluice("eval", MODEL, "--models", f"{broken},{tmp_path / 'fp8'}/", "--data", judged, "--window-tokens", 64, "--batch", 0)
    assert done.returncode == 1 and f"{broken}: the model computes numbers that are none" in done.stderr
    assert f"beside {MODEL} with perplexity" in done.stdout
    assert [row.split()[0] for row in done.stdout.splitlines()[2:]] == [MODEL.name, "fp8"]
    for flags, message in ((("--models", tmp_path / "nowhere"), "nowhere"), (("--html", tmp_path / "no" / "page.html"), "cannot be written")):
        done = run_sluice("eval", MODEL, "--data", judged, *flags)
        assert done.returncode == 1 and message in done.stderr and done.stdout == ""

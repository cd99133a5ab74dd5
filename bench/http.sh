#!/usr/bin/env bash
# What HTTP costs: `sluice serve --dummy null`, whose model answers at once, beside a bare "hello" server on the same
# library; load by wrk and by `sluice bench serve`, on the same machine. Ratios are taken within a round.
#
#     ./dev deps bench && bench/http.sh                 # builds what it needs; about a minute
#     PARTS="rate" ROUNDS=5 SECONDS_EACH=3 bench/http.sh
#     PARTS="io" bench/http.sh                          # pooled I/O beside the plain way (io.pooled: false), in turn
#
# By environment: PARTS (idle rate distinct stream latency io; idle first, before others leave memory to reuse), ROUNDS, SECONDS_EACH, CONNECTIONS (wrk's), STREAMS, NETWORK_THREADS,
# LOAD_THREADS (wrk's) and GENERATORS (processes of `bench serve`), FLAGS (for serve), SLUICE, HELLO, WRK (programs).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=$here/../build/release
SLUICE=${SLUICE:-$build/sluice} HELLO=${HELLO:-$build/src/server/hello_server} WRK=${WRK:-wrk}
PARTS=${PARTS:-idle rate distinct stream latency} ROUNDS=${ROUNDS:-3} SECONDS_EACH=${SECONDS_EACH:-4}
CONNECTIONS=${CONNECTIONS:-64} STREAMS=${STREAMS:-100} NETWORK_THREADS=${NETWORK_THREADS:-1} LOAD_THREADS=${LOAD_THREADS:-1}
GENERATORS=${GENERATORS:-1} FLAGS=${FLAGS:-} IDLE=${IDLE:-4000}
PORT=${PORT:-8191} HELLO_PORT=${HELLO_PORT:-8192}
if [ "$SLUICE" = "$build/sluice" ]; then ninja -C "$build" sluice hello_server >/dev/null; fi
ulimit -n "$(ulimit -Hn)" 2>/dev/null || true

pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true' EXIT
"$HELLO" "$HELLO_PORT" "$NETWORK_THREADS" & pids+=($!)

# serve PORT SERVE_FLAGS…: starts a server; its process into $server, its address into $URL.
serve() {
  URL=http://127.0.0.1:$1
  # shellcheck disable=SC2086
  "$SLUICE" serve --dummy null --device cpu --port "$1" --set log.level=warn --set server.network_threads="$NETWORK_THREADS" \
    --max-sequences $((STREAMS > 256 ? STREAMS : 256)) $FLAGS "${@:2}" >/dev/null & server=$!; pids+=($server)
  for _ in $(seq 100); do
    if (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null && "$SLUICE" bench serve --url "$URL" --requests 1 --concurrency 1 --input-tokens 4 \
      --output-tokens 1 --json >/dev/null 2>&1; then break; fi
    sleep 0.1
  done
}
serve "$PORT"

# CPU time of the server's threads so far, seconds: of all, and of those that own connections.
cpu() {
  python3 - "$server" <<'PY'
import os, sys
total = network = 0
for task in os.listdir(f"/proc/{sys.argv[1]}/task"):
    name, rest = open(f"/proc/{sys.argv[1]}/task/{task}/stat").read().split("(", 1)[1].rsplit(")", 1)
    used = sum(map(int, rest.split()[11:13])) / os.sysconf("SC_CLK_TCK")
    total += used
    network += used if name == "sluice-net" else 0
print(total, network)
PY
}
calc() { python3 -c "print(f'{$1:$2}')"; }

# load PATH SCRIPT…: requests a second by wrk, into $rate, latencies into $p50 and $p99; answers other than 200 end the run.
load() {
  local url=$1 output
  shift
  output=$("$WRK" -t "$LOAD_THREADS" -c "$CONNECTIONS" -d "${SECONDS_EACH}s" --latency "$url" "$@")
  case $output in *Non-2xx* | *"Socket errors"*) printf '%s\n' "$output" >&2; exit 1 ;; esac
  rate=$(awk '/Requests\/sec/ {print $2}' <<<"$output") p50=$(awk '$1 == "50%" {print $2}' <<<"$output") p99=$(awk '$1 == "99%" {print $2}' <<<"$output")
}

# side_by_side TITLE WORD…
side_by_side() {
  local title=$1 ratios="" hello before after
  shift
  printf '\n%s (%s connections, %s network threads, %s of wrk)\n%8s %12s %12s %8s %14s %12s\n' "$title" "$CONNECTIONS" "$NETWORK_THREADS" \
    "$LOAD_THREADS" round hello/s sluice/s ratio "p99 (full load)" "CPU us each"
  for round in $(seq "$ROUNDS"); do
    load "http://127.0.0.1:$HELLO_PORT/"; hello=$rate
    before=$(cpu)
    load "$URL/v1/chat/completions" -s "$here/chat.lua" -- "$@"
    after=$(cpu)
    ratios+="$(calc "$rate / $hello" .4f),"
    printf '%8s %12.0f %12.0f %8.2f %14s %12s\n' "$round" "$hello" "$rate" "$(calc "$rate / $hello" .4f)" "$p99" \
      "$(calc "(${after% *} - ${before% *}) * 1e6 / ($rate * $SECONDS_EACH)" .1f)"
  done
  printf 'median ratio %s\n' "$(python3 -c "import statistics; print(f'{statistics.median([${ratios%,}]):.2f}')")"
}

# generate SERVE_FLAGS…: $GENERATORS times `bench serve`, the sum of a member of their results or the largest of another.
generate() {
  local results=() runs=() file
  for _ in $(seq "$GENERATORS"); do
    file=$(mktemp)
    results+=("$file")
    "$SLUICE" bench serve --url "$URL" --json "$@" >"$file" & runs+=($!)
  done
  for run in "${runs[@]}"; do wait "$run" || true; done  # how many requests failed stands in the result
  python3 - "${results[@]}" <<'PY'
import json, sys
runs = [json.load(open(path)) for path in sys.argv[1:]]
worst = lambda part, member: max(run[part][member] for run in runs)
late = [run["sent_late_ms"]["p99"] for run in runs if run.get("sent_late_ms") and run["sent_late_ms"]["p99"] is not None]
print(sum(r["qps"] for r in runs), sum(r["output_tok_s"] for r in runs), sum(r["events"] / r["wall_s"] for r in runs), worst("ttft_ms", "p50"), worst("ttft_ms", "p99"),
      worst("e2e_ms", "p50"), worst("e2e_ms", "p99"), max(late, default=0), sum(r["failed"] for r in runs))
PY
  rm -f "${results[@]}"
}

# Writes, allocations (of network threads, which tell ten times a second) and generated tokens of the server so far.
counters() {
  sleep 0.3
  python3 - "$URL" <<'PY'
import sys, urllib.request
page = urllib.request.urlopen(sys.argv[1] + "/metrics").read().decode()
value = lambda name: sum(float(line.split()[-1]) for line in page.splitlines() if line.split(" ")[0].split("{")[0] == name)
print(int(value("sluice_http_writes_total")), int(value("sluice_http_allocations_total")), int(value("sluice_generated_tokens_total")))
PY
}

# compare_io: pooled I/O and the plain way, each on a server of its own, one after the other in each round.
compare_io() {
  local pooled=$server pooled_url=$URL plain plain_url rows side started before after cpu_started cpu_before cpu_after tokens_s e2e50 e2e99 failed
  rows=$(mktemp)
  serve $((PORT + 2)) --set io.pooled=false
  plain=$server plain_url=$URL
  for _ in $(seq "$ROUNDS"); do
    for side in plain pooled; do
      if [ $side = plain ]; then server=$plain URL=$plain_url; else server=$pooled URL=$pooled_url; fi
      started=$(counters) cpu_started=$(cpu)
      load "$URL/v1/chat/completions" -s "$here/chat.lua" -- same
      before=$(counters) cpu_before=$(cpu)
      read -r _ tokens_s _ _ _ e2e50 e2e99 _ failed < <(generate --concurrency $((STREAMS / GENERATORS)) \
        --requests $((STREAMS * 12 / GENERATORS)) --input-tokens 16 --output-tokens 256)
      after=$(counters) cpu_after=$(cpu)
      printf '%s\n' "$side $rate $p50 $p99 $tokens_s $e2e50 $e2e99 $failed ${cpu_started% *} $cpu_before ${cpu_after#* } $started $before $after" >>"$rows"
    done
  done
  python3 - "$rows" <<'PY'
import statistics, sys
def ms(text):
    number = text.rstrip("mus")
    return float(number) * {"us": 1e-3, "ms": 1, "s": 1e3, "m": 6e4}[text[len(number):]]
names = ["requests/s", "p50 ms", "p99 ms", "tokens/s of streams", "streams' p50 ms", "streams' p99 ms", "network CPU us a token",
         "writes a token", "allocations a token", "CPU us a request", "writes a request", "allocations a request"]
sides = {"plain": [], "pooled": []}
for line in open(sys.argv[1]):
    side, rate, p50, p99, tokens_s, e2e50, e2e99, failed, cpu_started, cpu_asked, cpu0, cpu1, *counts = line.split()
    started, before, after = (list(map(int, counts[i : i + 3])) for i in (0, 3, 6))
    asked, made = before[2] - started[2], after[2] - before[2]
    sides[side].append([float(rate), ms(p50), ms(p99), float(tokens_s), float(e2e50), float(e2e99), (float(cpu1) - float(cpu0)) * 1e6 / made,
                        (after[0] - before[0]) / made, (after[1] - before[1]) / made,
                        (float(cpu_asked) - float(cpu_started)) * 1e6 / asked, (before[0] - started[0]) / asked,
                        (before[1] - started[1]) / asked])
    if int(failed): print(f"{failed} streams failed ({side})")
print(f"{'':26} {'plain':>12} {'pooled':>12} {'ratio':>8}   medians of {len(sides['plain'])}; the ratio is that of each round")
for i, name in enumerate(names):
    plain, pooled = ([row[i] for row in sides[side]] for side in ("plain", "pooled"))
    ratios = [b / a for a, b in zip(plain, pooled) if a]
    digits = 0 if statistics.median(pooled) >= 1000 else 3
    print(f"{name:26} {statistics.median(plain):12.{digits}f} {statistics.median(pooled):12.{digits}f} "
          f"{statistics.median(ratios) if ratios else 0:8.2f}")
PY
  rm -f "$rows"
  server=$pooled URL=$pooled_url
}

rate=0
for part in $PARTS; do
  case $part in
    rate) side_by_side "One-token chat completions, keep-alive" same; half=$(calc "$rate / 2 / $GENERATORS" .0f) ;;
    distinct) side_by_side "The same, every prompt another" distinct ;;
    stream)
      printf '\nStreaming, %s streams of 256 tokens\n' "$STREAMS"
      before=$(cpu)
      read -r qps tokens events _ _ _ e2e_p99 _ failed < <(generate --concurrency $((STREAMS / GENERATORS)) --requests $((STREAMS * 6 / GENERATORS)) \
        --input-tokens 16 --output-tokens 256)
      after=$(cpu)
      network=$(calc "${after#* } - ${before#* }" .3f)
      # Where the engine outruns the network, several tokens go in one event: events are what the network was worth.
      printf '%.0f tokens/s in %.0f events/s; of network threads a second is worth %.0f tokens and %.0f events; answers end within %.0f ms (p99); %s failed\n' \
        "$tokens" "$events" "$(calc "$STREAMS * 6 * 256 / $network" .0f)" "$(calc "$events / $tokens * $STREAMS * 6 * 256 / $network" .0f)" "$e2e_p99" "$failed" ;;
    io)
      printf '\nPooled I/O beside the plain way: one-token chat completions (%s connections), then %s streams of 256 tokens; %s network threads\n' \
        "$CONNECTIONS" "$STREAMS" "$NETWORK_THREADS"
      compare_io ;;
    latency)
      half=${half:-5000}
      printf '\nOne token at half that rate: %s requests/s from %s open-loop generators\n' $((half * GENERATORS)) "$GENERATORS"
      read -r qps _ _ p50 p99 _ _ late failed < <(generate --rate "$half" --requests $((half * SECONDS_EACH)) --input-tokens 8 --output-tokens 1)
      printf 'the whole of it p50 %.2f ms, p99 %.2f ms at %.0f requests/s; sent late p99 %.2f ms; %s failed\n' "$p50" "$p99" "$qps" "$late" "$failed" ;;
    idle)
      printf '\nIdle connections: %s, each after one request\n' "$IDLE"
      python3 - "$PORT" "$server" "$IDLE" <<'PY'
import socket, sys
port, server, count = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
body = b'{"prompt":[300],"max_tokens":1}'
request = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
resident = lambda: int(next(l for l in open(f"/proc/{server}/status") if l.startswith("VmRSS")).split()[1])
def ask(s):
    s.sendall(request)
    while b"completion_tokens" not in s.recv(65536): pass
warm = socket.create_connection(("127.0.0.1", port))
for _ in range(2000): ask(warm)
before, held = resident(), []
for _ in range(count):
    held.append(socket.create_connection(("127.0.0.1", port)))
    ask(held[-1])
print(f"{(resident() - before) / count:.1f} KiB of the server's memory each")
PY
      ;;
    *) printf 'no part named %s\n' "$part" >&2; exit 2 ;;
  esac
done

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "cli/config.h"
#include "server/json_writer.h"

namespace sluice::cli {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
constexpr int64_t kMaxInt = std::numeric_limits<int>::max();

#define SLOT(member) [](Config& c) -> KeySlot { return &c.member; }

const Key kKeys[] = {
    {"model.path", "engine", "", SLOT(model.path), 0, 0, "",
     "A .gguf file or a Hugging Face folder; the argument MODEL overrides it."},
    {"model.chat_template_file", "text", "", SLOT(model.chat_template_file), 0, 0, "",
     "A Jinja file that replaces the model's own chat template."},
    {"device", "engine", "", SLOT(model.device), 0, 0, "",
     "Where the model runs: auto (the default: a card where there is one that can run it, else the CPU), cpu, "
     "or cuda[:N]."},

    {"cpu.threads", "tensor", "threads", SLOT(model.cpu.threads), 0, 1024, "",
     "Members of the CPU backend's thread team; 0: one per physical core this process may use."},
    {"cpu.instruction_set", "tensor", "", SLOT(model.cpu.instruction_set), 0, 0, "|scalar|avx2|avx512-vnni|amx",
     "Forces the kernels down to an older instruction set; empty: the best the processor has."},

    {"machine.numa", "engine", "", SLOT(machine.numa), 0, 0, "",
     "Where threads and memory go on a machine of several memory nodes: auto (the default): beside a card, the "
     "engine on its node and the sockets elsewhere; on a CPU, memory spread over all nodes; a node's number: "
     "everything there; off: wherever the kernel puts it. With one node, auto does nothing."},
    {"machine.cpu_set", "engine", "", SLOT(machine.cpu_set), 0, 0, "",
     "CPUs that the process may use, such as 0-7,16; empty: all that it may."},
    {"machine.io_threads", "engine", "cores", SLOT(machine.io_threads), 0, 4096, "",
     "Counts cores and not threads: that many are kept for the threads of server.network_threads and "
     "server.text_threads, away from the model's; 0: none are."},
    {"machine.engine_cpu", "engine", "", SLOT(machine.engine_cpu), -1, 4095, "",
     "The CPU of the engine's thread, whose core all others leave to it where they have another; -1: none."},

    {"engine.max_sequences", "engine", "sequences", SLOT(model.engine.max_sequences), 0, 4096, "",
     "Sequences that run at the same time; more wait in the queue. 0: 64 on a CPU, 256 on a card, "
     "where it is at most 1024."},
    {"engine.max_queue", "engine", "requests", SLOT(model.engine.max_queue), 1, 1 << 20, "",
     "Requests that may wait; beyond it the answer is 429."},
    {"engine.step_tokens", "engine", "tokens", SLOT(model.engine.step_tokens), 0, 65535, "",
     "Token budget of one step: one for each decoding sequence first, then chunks of waiting prompts. 0: 512 "
     "on a CPU, 2048 on a card."},
    {"engine.mixed_prompt_tokens", "engine", "tokens", SLOT(model.engine.mixed_prompt_tokens), 0, 65535, "",
     "Most prompt tokens of one step while other sequences are generating, whatever scheduler.target_itl_ms "
     "would allow. 0: no such bound."},
    {"engine.block_tokens", "kv", "tokens", SLOT(model.engine.block_tokens), 0, 64, "",
     "Tokens in one block of the KV cache: 16, 32 or 64 (48 on a CPU only). 0: 16, or 64 with kv.precision "
     "other "
     "than bf16."},
    {"engine.kv_bytes", "kv", "bytes", SLOT(model.engine.kv_bytes), 0, kNoLimit, "",
     "Memory of the KV cache; 0: chosen from free memory and the model's context."},
    {"engine.max_context", "engine", "tokens", SLOT(model.engine.max_context), 0, kMaxInt, "",
     "Longest prompt plus answer, from 16 to what the model was trained for; 0: that."},
    {"engine.logit_rows", "engine", "rows", SLOT(model.engine.logit_rows), 1, 4096, "",
     "Rows of logits computed at a time; bounds the memory that prompt log-probabilities take."},
    {"engine.fusion", "engine", "", SLOT(model.engine.fusion), 0, 0, "",
     "q, k and v are one matrix product, gate and up are one, and what is added to the residual is added by "
     "the "
     "norm behind it (the default); without, each is an op of its own, to measure what that is worth. Experts, "
     "matrices that a file has as one (Phi-3) and an addition behind a "
     "norm of its own (Gemma) stay as they are."},
    {"engine.graphs", "engine", "", SLOT(model.engine.graphs), 0, 0, "",
     "On a card, record the steps of decoding at start and replay them (the default); without, each step is "
     "launched op by op. No effect on a CPU."},
    {"engine.watchdog_s", "cli", "s", SLOT(watchdog_s), 0, 86400, "",
     "A step, or a turn of the engine's loop, of the model that serves that takes longer ends the process with "
     "the last steps' records and a status other than 0, so that a supervisor starts it again; 0: none does. A "
     "canary's is taken out of traffic instead (0: after 60 s)."},

    {"scheduler.policy", "sched", "", SLOT(model.engine.batching.policy), 0, 0, "|continuous|windowed|serial",
     "Who may start when: continuous: everyone, as soon as there is room; windowed: arrivals gather and run "
     "together, then the next; serial: one request at a time. Empty: windowed with "
     "inference.dynamic_batching.enabled, else continuous."},
    {"scheduler.target_itl_ms", "sched", "ms", SLOT(model.engine.scheduling.target_itl_ms), 0, 60000, "",
     "How long a step may become by prompts while other sequences are generating, so the time between two of "
     "their tokens; prompts are cut by measured step times. 0: automatic: 1.7 times the step without prompts, "
     "more as prompts pile up, up to 36 ms. A target is also what lanes below may fill a step up to, whatever "
     "their "
     "weight."},
    {"scheduler.lanes.interactive.weight", "sched", "", SLOT(model.engine.scheduling.interactive_weight), 1,
     1000, "",
     "Share of slots, KV blocks and step time of requests with X-Priority interactive, beside the other lanes' "
     "weights."},
    {"scheduler.lanes.standard.weight", "sched", "", SLOT(model.engine.scheduling.standard_weight), 1, 1000, "",
     "The same of requests that name no lane, or standard."},
    {"scheduler.lanes.batch.weight", "sched", "", SLOT(model.engine.scheduling.batch_weight), 1, 1000, "",
     "The same of requests with X-Priority batch. Beside interactive ones alone a step becomes longer by this "
     "weight over theirs."},
    {"scheduler.window.window_ms", "sched", "ms", SLOT(model.engine.batching.window.window_ms), 1, 60000, "",
     "Under windowed: requests of one batch arrived within so long after its first; at least "
     "batch_timeout_ms."},
    {"scheduler.window.max_batch_size", "sched", "requests", SLOT(model.engine.batching.window.max_batch_size),
     1, 4096, "",
     "Under windowed: requests that make a batch full, which starts it; at most engine.max_sequences."},
    {"scheduler.window.min_trigger_interval_ms", "sched", "ms",
     SLOT(model.engine.batching.window.min_trigger_interval_ms), 1, 60000, "",
     "Under windowed: a batch starts when nothing has arrived for so long; at most batch_timeout_ms."},
    {"scheduler.window.batch_timeout_ms", "sched", "ms", SLOT(model.engine.batching.window.batch_timeout_ms), 1,
     60000, "", "Under windowed: a batch starts when its first request has waited for so long."},

    {"inference.dynamic_batching.enabled", "sched", "", SLOT(model.engine.batching.dynamic.enabled), 0, 0, "",
     "Selects scheduler.policy windowed with the two numbers below in place of scheduler.window."},
    {"inference.dynamic_batching.max_batch_size", "sched", "requests",
     SLOT(model.engine.batching.dynamic.max_batch_size), 1, 4096, "",
     "Requests that make a batch full, which starts it; at most engine.max_sequences."},
    {"inference.dynamic_batching.batch_wait_timeout_ms", "sched", "ms",
     SLOT(model.engine.batching.dynamic.batch_wait_timeout_ms), 0, 60000, "",
     "A batch starts when its first request has waited for so long; 0: at once."},

    {"gpu.memory_fraction", "engine", "", SLOT(model.engine.gpu_memory_fraction), 0, 1, "",
     "Of a card's memory, what weights, activations and the KV cache may take together (0.9 by default); other "
     "programs' use counts as well, and 768 MiB are always kept back. No effect on a CPU."},

    {"gpu.fused_quantization", "engine", "", SLOT(model.engine.gpu_fused_quantization), 0, 0, "",
     "With weights of eight bits on a card, norms and activations write their output in eight bits by the way "
     "(the default); without, to measure what that is worth, a kernel of its own does. The answers are the "
     "same "
     "bit for bit. No effect on a CPU."},
    {"gpu.bf16_copies", "engine", "", SLOT(model.engine.gpu_bf16_copies), 0, 0, "",
     "4-bit weights on a card are kept as bf16 too, for steps of more than 128 tokens, where all of them take "
     "a "
     "fifth or less of what gpu.memory_fraction leaves beside weights (the default); without, memory is left "
     "to "
     "the KV cache and such steps take longer. No effect on a CPU."},

    {"gpu.copy_times", "engine", "", SLOT(model.engine.gpu_copy_times), 0, 0, "",
     "On a card, time each step's copies to it and to the host, for step records and /v1/live: two events a "
     "step "
     "more, so off by default. No effect on a CPU."},

    {"kv.prefix_cache", "kv", "", SLOT(model.engine.prefix_cache), 0, 0, "",
     "Keep what was computed until its memory is needed, and take it over where a request begins as an earlier "
     "one of the same cache salt did (the default)."},

    {"kv.precision", "kv", "", SLOT(model.engine.kv.precision), 0, 0, "bf16|fp8|int8|int4|tiered",
     "What keys and values are kept in: bf16: as they were computed (half precision on a CPU); fp8, int8, "
     "int4: "
     "so from when a block of tokens is whole; tiered: in full at first, then int8, then int4, as a block ages "
     "or "
     "memory runs short. Each device has some of them (docs/kv.md)."},
    {"kv.tier_full_tokens", "kv", "tokens", SLOT(model.engine.kv.tier_full_tokens), 0, kMaxInt, "",
     "Under tiered: a sequence's newest tokens that stay in full precision, while memory lasts."},
    {"kv.tier_int8_tokens", "kv", "tokens", SLOT(model.engine.kv.tier_int8_tokens), 0, kMaxInt, "",
     "Under tiered: the newest tokens that are not yet in int4; at least kv.tier_full_tokens."},
    {"kv.sliding_window", "kv", "tokens", SLOT(model.engine.kv.sliding_window), 0, kMaxInt, "",
     "Tokens that every layer sees at most, whatever the model was made for; blocks behind it are freed. 0: as "
     "the "
     "model says."},
    {"kv.allocation", "kv", "", SLOT(model.engine.kv.allocation), 0, 0, "paged|contiguous_max_context",
     "paged: memory follows the tokens that exist; contiguous_max_context: each request reserves the whole "
     "context "
     "when it begins, as servers without paging do, to measure what that wastes."},

    {"kv.host_bytes", "kv", "bytes", SLOT(model.engine.kv.host_bytes), 0, kNoLimit, "",
     "Host memory (pinned, on a card) for blocks of the prefix cache that the pool gives up: they come back "
     "from there "
     "where a request begins alike. 0: none."},
    {"kv.disk_path", "kv", "", SLOT(model.engine.kv.disk_path), 0, 0, "",
     "Folder in which such blocks are kept in files as well, across restarts; needs kv.host_bytes. Empty: "
     "none."},
    {"kv.disk_bytes", "kv", "bytes", SLOT(model.engine.kv.disk_bytes), 0, kNoLimit, "",
     "What the files of a model in kv.disk_path take at most; the oldest give way."},
    {"kv.sparse_above", "kv", "tokens", SLOT(model.engine.kv.sparse_above), 0, kMaxInt, "",
     "Contexts longer than this are decoded over a part of their blocks: the first, the newest, and those "
     "whose keys "
     "promise most (docs/kv.md). 0: off. Not on every device."},
    {"kv.sparse_keep", "kv", "", SLOT(model.engine.kv.sparse_keep), 0, 1, "",
     "That part, of a context's blocks."},

    {"server.host", "server", "", SLOT(server.host), 0, 0, "", "Address to listen on."},
    {"server.port", "server", "", SLOT(server.port), 0, 65535, "",
     "Port to listen on; 0: any free one, printed at start."},
    {"server.network_threads", "server", "threads", SLOT(server.network_threads), 1, 256, "",
     "Threads that own connections."},
    {"server.text_threads", "server", "threads", SLOT(server.text_threads), 1, 256, "",
     "Threads that tokenize long prompts and render templates."},
    {"server.model_name", "server", "", SLOT(server.model_name), 0, 0, "",
     "Name of the model in the API; empty: the file's or folder's name."},
    {"server.reasoning_parser", "server", "", SLOT(server.reasoning_parser), 0, 0, "auto|think|none",
     "Thoughts before an answer, <think>…</think>, are told apart from it; auto: if the chat template knows "
     "them."},
    {"server.tool_parser", "server", "", SLOT(server.tool_parser), 0, 0, "auto|hermes|llama3|mistral|none",
     "How the model writes calls of tools; auto: as its chat template does."},
    {"server.api_keys", "server", "", SLOT(server.api_keys), 0, 0, "",
     "Keys that are let in, each as \"sha256:HEX\" (its SHA-256), \"NAME=sha256:HEX\", or as it is; none: "
     "everyone. "
     "The environment variable SLUICE_API_KEY adds one."},
    {"server.cors_origins", "server", "", SLOT(server.cors_origins), 0, 0, "",
     "Origins whose pages may call this server from a browser (\"https://chat.example.com\"); \"*\": all; "
     "none: only "
     "its own page."},
    {"server.tls.cert_file", "server", "", SLOT(server.tls_cert_file), 0, 0, "",
     "The certificate with its chain, PEM; with server.tls.key_file the port speaks HTTPS."},
    {"server.tls.key_file", "server", "", SLOT(server.tls_key_file), 0, 0, "", "The certificate's key, PEM."},
    {"server.max_body_bytes", "server", "bytes", SLOT(server.max_body_bytes), 1024, int64_t(1) << 32, "",
     "Longest request body; longer ones are answered with 413."},
    {"server.max_header_bytes", "server", "bytes", SLOT(server.max_header_bytes), 1024, 1 << 24, "",
     "Longest request head; longer ones are answered with 431."},
    {"server.max_connections", "server", "connections", SLOT(server.max_connections), 1, 1 << 20, "",
     "Open connections."},
    {"server.max_connections_per_address", "server", "connections", SLOT(server.max_connections_per_address), 1,
     1 << 20, "", "Of them, those of one IPv4 address or one IPv6 /64; loopback is not limited."},
    {"server.header_timeout_ms", "server", "ms", SLOT(server.header_timeout_ms), 1, kMaxInt, "",
     "From the first byte of a request head to its end."},
    {"server.body_timeout_ms", "server", "ms", SLOT(server.body_timeout_ms), 1, kMaxInt, "",
     "From the head to the end of the body."},
    {"server.idle_timeout_ms", "server", "ms", SLOT(server.idle_timeout_ms), 1, kMaxInt, "",
     "Between two requests on one connection."},
    {"server.write_timeout_ms", "server", "ms", SLOT(server.write_timeout_ms), 1, kMaxInt, "",
     "A client that takes nothing for so long is dropped."},
    {"server.request_timeout_ms", "server", "ms", SLOT(server.request_timeout_ms), 0, kMaxInt, "",
     "Deadline of every generation; a shorter x-request-timeout-ms of the client wins; 0: none."},
    {"server.page", "server", "", SLOT(server.page), 0, 0, "",
     "Serve the page at /, with a chat and the live numbers; false: / lists the routes."},
    {"server.response_store_bytes", "server", "bytes", SLOT(server.response_store_bytes), 0, int64_t(1) << 40,
     "",
     "Memory for responses that clients of /v1/responses ask to store; the oldest go first. 0: none is kept."},
    {"server.embedding_pooling", "server", "", SLOT(server.embedding_pooling), 0, 0, "mean|last",
     "What /v1/embeddings makes of a text's tokens: the mean of their last hidden states, or that of the "
     "last."},
    {"server.max_n", "server", "answers", SLOT(server.max_n), 1, 4096, "", "Largest n of a request."},
    {"server.max_prompts", "server", "prompts", SLOT(server.max_prompts), 1, 65536, "",
     "Prompts in one completions request."},
    {"server.max_completions", "server", "answers", SLOT(server.max_completions), 1, 65536, "",
     "Prompts times n of one request."},
    {"server.drain_timeout_ms", "cli", "ms", SLOT(drain_timeout_ms), 0, kMaxInt, "",
     "After SIGTERM, how long running answers may take to finish."},

    {"io.pooled", "server", "", SLOT(server.pooled_io), 0, 0, "",
     "Frames are made in buffers that are used again, and all that there is for a client goes in one write "
     "(the "
     "default); false: the plain way, to measure what that is worth: a buffer for each frame, a write for each "
     "token, a message for each request and each answer. The answers are the same."},

    {"traffic.limit.mode", "server", "", SLOT(server.traffic.limit.mode), 0, 0, "off|rule|gradient",
     "Bounds how many requests wait for their first token, by what is measured: rule, gradient "
     "(docs/operations.md); off: engine.max_queue alone does."},
    {"traffic.limit.window_s", "server", "s", SLOT(server.traffic.limit.window_s), 1, 600, "",
     "How far back first tokens are looked at."},
    {"traffic.limit.min", "server", "requests", SLOT(server.traffic.limit.min), 1, 1 << 20, "",
     "The limit is never below it."},
    {"traffic.limit.max", "server", "requests", SLOT(server.traffic.limit.max), 1, 1 << 20, "",
     "Nor above this one, if that is more."},
    {"traffic.limit.qps_share", "server", "", SLOT(server.traffic.limit.qps_share), 0, 1000, "",
     "rule: places for each first token that is made in a second."},
    {"traffic.limit.target_ms", "server", "ms", SLOT(server.traffic.limit.target_ms), 1, 3600000, "",
     "rule: p95 of the time to the first token above which places are taken away; also what counts as slow for "
     "traffic.recalibrate."},
    {"traffic.limit.ms_per_place", "server", "ms", SLOT(server.traffic.limit.ms_per_place), 1, 3600000, "",
     "rule: one place is taken away for so much of it."},
    {"traffic.limit.tolerance", "server", "", SLOT(server.traffic.limit.tolerance), 1, 100, "",
     "gradient: times the usual time to the first token that are no sign of a queue.", true},
    {"traffic.limit.standard_share", "server", "", SLOT(server.traffic.limit.standard_share), 0, 1, "",
     "Of the places, those that the lanes standard and batch may fill."},
    {"traffic.limit.batch_share", "server", "", SLOT(server.traffic.limit.batch_share), 0, 1, "",
     "The same of the lane batch, which so is refused first."},
    {"traffic.degrade.max_tokens", "server", "tokens", SLOT(server.traffic.degrade.max_tokens), 0, kMaxInt, "",
     "Under load answers are cut to so many tokens before requests are refused; 0: they are not."},
    {"traffic.degrade.above", "server", "", SLOT(server.traffic.degrade.above), 0, 1, "",
     "Which is from this share of the lane's places on.", true},
    {"traffic.keys.requests_per_minute", "server", "requests", SLOT(server.traffic.keys.requests_per_minute), 0,
     kMaxInt, "", "Of each key (without server.api_keys: of all clients); 0: no bound."},
    {"traffic.keys.tokens_per_minute", "server", "tokens", SLOT(server.traffic.keys.tokens_per_minute), 0,
     kMaxInt, "", "The same of tokens, prompt and answer."},
    {"traffic.lanes.interactive.requests_per_minute", "server", "requests",
     SLOT(server.traffic.lanes[0].requests_per_minute), 0, kMaxInt, "",
     "Of the lane interactive, all clients together; 0: no bound."},
    {"traffic.lanes.interactive.tokens_per_minute", "server", "tokens",
     SLOT(server.traffic.lanes[0].tokens_per_minute), 0, kMaxInt, "", "The same of tokens, prompt and answer."},
    {"traffic.lanes.standard.requests_per_minute", "server", "requests",
     SLOT(server.traffic.lanes[1].requests_per_minute), 0, kMaxInt, "",
     "Of the lane standard, all clients together; 0: no bound."},
    {"traffic.lanes.standard.tokens_per_minute", "server", "tokens",
     SLOT(server.traffic.lanes[1].tokens_per_minute), 0, kMaxInt, "", "The same of tokens, prompt and answer."},
    {"traffic.lanes.batch.requests_per_minute", "server", "requests",
     SLOT(server.traffic.lanes[2].requests_per_minute), 0, kMaxInt, "",
     "Of the lane batch, all clients together; 0: no bound."},
    {"traffic.lanes.batch.tokens_per_minute", "server", "tokens",
     SLOT(server.traffic.lanes[2].tokens_per_minute), 0, kMaxInt, "", "The same of tokens, prompt and answer."},
    {"traffic.breaker.model", "server", "", SLOT(server.traffic.breaker.model), 0, 0, "off|patient|quick",
     "Circuit breaker of the model: answers 503 while it keeps failing. patient: 5 failures in 60 s open it "
     "for "
     "30 s, then one probe each 10 s; quick: 3 in 30 s, 15 s, 5 s."},
    {"traffic.breaker.upstream", "server", "", SLOT(server.traffic.breaker.upstream), 0, 0, "off|patient|quick",
     "The same of the canary, whose requests are answered by the stable pool meanwhile."},
    {"traffic.canary.upstream", "server", "", SLOT(server.traffic.canary.upstream), 0, 0, "",
     "http://HOST:PORT of another server that gets a part of the requests; empty: none."},
    {"traffic.canary.model", "server", "", SLOT(server.traffic.canary.model), 0, 0, "",
     "A second model, in this process, that gets a part of the requests: a .gguf file or a folder. Empty: "
     "none, or "
     "the one that is served with traffic.canary.settings."},
    {"traffic.canary.settings", "server", "", SLOT(server.traffic.canary.settings), 0, 0, "",
     "Each as \"KEY=VALUE\": settings of that second model and its engine (device, cpu, engine, gpu, kv, "
     "scheduler) "
     "over those of the one that is served; cpu.threads: a quarter of the cores where it is not among them."},
    {"traffic.canary.steps", "server", "%", SLOT(server.traffic.canary.steps), 0, 0, "",
     "Percents of the requests that it gets, one step after the other."},
    {"traffic.canary.step_requests", "server", "requests", SLOT(server.traffic.canary.step_requests), 1,
     kMaxInt, "", "What it answers, and is no worse, before the next step."},
    {"traffic.canary.max_in_flight", "server", "requests", SLOT(server.traffic.canary.max_in_flight), 1,
     1 << 20, "", "At once; the others are answered here."},
    {"traffic.canary.timeout_ms", "server", "ms", SLOT(server.traffic.canary.timeout_ms), 1, kMaxInt, "",
     "Without a byte from it, after which it has failed."},
    {"traffic.canary.env", "server", "", SLOT(server.traffic.canary.env), 0, 0, "",
     "Requests with this X-Env go there, those with another do not."},
    {"traffic.canary.alpha", "server", "", SLOT(server.traffic.canary.alpha), 0, 1, "",
     "How often a canary that is no worse may be rolled back."},
    {"traffic.canary.more_errors", "server", "", SLOT(server.traffic.canary.more_errors), 0, 1, "",
     "Share of errors, or of empty answers, above that of the model here that is no worse.", true},
    {"traffic.canary.slower", "server", "", SLOT(server.traffic.canary.slower), 1, 100, "",
     "Factor of the time to the first token, or of the time a token takes, that is no worse.", true},
    {"traffic.recalibrate", "server", "", SLOT(server.traffic.recalibrate), 0, 0, "",
     "While first tokens are slow (traffic.limit.target_ms), grant of these rates what is really delivered."},

    {"observe.record_steps", "observe", "", SLOT(record_steps), 0, 0, "",
     "A file that the records of all steps are written to as JSON lines, for sluice bench simulate --fit; "
     "empty: "
     "none."},

    {"tracing.endpoint", "observe", "", SLOT(server.tracing.endpoint), 0, 0, "",
     "OTLP port of an OpenTelemetry collector, http://HOST[:PORT][/PATH], that gets the traces of requests; "
     "the port is 4318 and the path /v1/traces where none is given, by gRPC 4317 without a path. Empty: no "
     "traces."},
    {"tracing.protocol", "observe", "", SLOT(server.tracing.protocol), 0, 0, "http/protobuf|grpc",
     "How the collector is spoken to; both send the same."},
    {"tracing.sample_ratio", "observe", "", SLOT(server.tracing.sample_ratio), 0, 1, "",
     "Share of requests that leave a trace, where the caller's traceparent has not decided it. Errors and slow "
     "requests always leave one.",
     true},
    {"tracing.slow_ms", "observe", "ms", SLOT(server.tracing.slow_ms), 0, kMaxInt, "",
     "A request that takes longer always leaves a trace; 0: none does for that."},
    {"tracing.service_name", "observe", "", SLOT(server.tracing.service_name), 0, 0, "",
     "The resource attribute service.name."},
    {"tracing.resource_attributes", "observe", "", SLOT(server.tracing.resource_attributes), 0, 0, "",
     "More resource attributes, each as \"KEY=VALUE\"."},
    {"tracing.headers", "observe", "", SLOT(server.tracing.headers), 0, 0, "",
     "Headers of each export (gRPC: metadata), each as \"NAME=VALUE\"."},
    {"tracing.queue_requests", "observe", "requests", SLOT(server.tracing.queue_requests), 1, 1 << 20, "",
     "Finished requests that may wait for their export; what comes on top is dropped and counted."},
    {"tracing.export_interval_ms", "observe", "ms", SLOT(server.tracing.export_interval_ms), 1, 3600000, "",
     "How long a finished request waits for others to be exported with."},
    {"tracing.export_timeout_ms", "observe", "ms", SLOT(server.tracing.export_timeout_ms), 1, 3600000, "",
     "After which an export that has not been answered counts as failed."},

    {"log.level", "cli", "", SLOT(log_level), 0, 0, "debug|info|warn|error|off",
     "Least important line that is written to stderr."},
    {"log.json", "cli", "", SLOT(log_json), 0, 0, "", "Log lines as JSON objects."},
};

#undef SLOT

// `choices` is "a|b|c".
std::vector<std::string> split_choices(std::string_view choices) {
  std::vector<std::string> out;
  for (size_t at = 0; at <= choices.size();) {
    const size_t end = std::min(choices.find('|', at), choices.size());
    out.emplace_back(choices.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

Error expected(const std::string& what, const std::string& got) {
  return {ErrorCode::kInvalidArgument, fmt::format("expected {}, got '{}'", what, got)};
}

// Where only the type bounds a number, that is said to who meets the bound.
std::string number_expectation(const Key& key, bool too_large) {
  if (key.max == kNoLimit || key.max == kMaxInt)
    return too_large ? fmt::format("an integer of at most {}", key.max)
                     : fmt::format("an integer of at least {}", key.min);
  return fmt::format("an integer from {} to {}", key.min, key.max);
}

Result<int64_t> parse_number(const Key& key, const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = end == text.data() + text.size() && error != std::errc::invalid_argument;
  const bool too_large = whole && (error == std::errc::result_out_of_range ? text[0] != '-' : value > key.max);
  if (!whole || too_large || error != std::errc() || value < key.min)
    return expected(number_expectation(key, too_large), text);
  return value;
}

Status set_slot(const Key& key, bool* slot, const std::string& text) {
  if (text != "true" && text != "false") return expected("true or false", text);
  *slot = text == "true";
  return {};
}

template <typename Number>
Status set_number(const Key& key, Number* slot, const std::string& text) {
  Result<int64_t> value = parse_number(key, text);
  if (!value) return std::move(value).error();
  *slot = Number(*value);
  return {};
}
Status set_slot(const Key& key, int* slot, const std::string& text) { return set_number(key, slot, text); }
Status set_slot(const Key& key, size_t* slot, const std::string& text) { return set_number(key, slot, text); }

Status set_slot(const Key& key, std::string* slot, const std::string& text) {
  if (*key.choices) {
    const std::vector<std::string> choices = split_choices(key.choices);
    if (std::find(choices.begin(), choices.end(), text) == choices.end()) {
      std::string list;
      for (const std::string& c : choices)
        if (!c.empty()) list += (list.empty() ? "" : ", ") + c;
      return expected("one of " + list, text);
    }
  }
  *slot = text;
  return {};
}
Status set_slot(const Key&, std::vector<std::string>* slot, const std::string& text) {
  slot->push_back(text);
  return {};
}

Status set_slot(const Key& key, double* slot, const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= double(key.min)) ||
      value > double(key.max) || (value == double(key.min) && !key.from_min))
    return expected(key.from_min ? fmt::format("a number from {} to {}", key.min, key.max)
                                 : fmt::format("a number above {} and at most {}", key.min, key.max),
                    text);
  *slot = value;
  return {};
}

std::string quoted(const std::string& text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

bool is_secret(const Key& key) {
  const std::string_view name = key.name;
  return name == "server.api_keys" || name == "tracing.headers";
}

std::string shown(const bool* v) { return *v ? "true" : "false"; }
std::string shown(const int* v) { return fmt::format("{}", *v); }
std::string shown(const size_t* v) { return fmt::format("{}", *v); }
std::string shown(const double* v) { return fmt::format("{}", *v); }
std::string shown(const std::string* v) { return quoted(*v); }
std::string shown(const std::vector<std::string>* v) {
  std::string out = "[";
  for (const std::string& s : *v) out += (out.size() > 1 ? ", " : "") + quoted(s);
  return out + "]";
}

const char* json_type(const KeySlot& slot) {
  static constexpr const char* kTypes[] = {"boolean", "integer", "integer", "string", "array", "number"};
  return kTypes[slot.index()];
}

// One leaf of the schema, with where the setting belongs and its unit beside the standard words.
std::string schema_leaf(const Key& key, const KeySlot& slot) {
  std::string json;
  JsonWriter out(json);
  out.begin_object();
  out.key("type").string(json_type(slot));
  out.key("description").string(key.help);
  out.key("default").raw(std::visit([](auto* v) { return shown(v); }, slot));
  if (slot.index() == 1 || slot.index() == 2) {
    out.key("minimum").integer(key.min);
    if (key.max != kNoLimit && key.max != kMaxInt) out.key("maximum").integer(key.max);
  }
  if (std::holds_alternative<double*>(slot))
    out.key(key.from_min ? "minimum" : "exclusiveMinimum").integer(key.min).key("maximum").integer(key.max);
  if (slot.index() == 4) out.key("items").raw(R"({"type":"string"})");
  if (*key.choices) {
    out.key("enum").begin_array();
    for (const std::string& c : split_choices(key.choices)) out.string(c);
    out.end_array();
  }
  if (*key.unit) out.key("x-unit").string(key.unit);
  out.key("x-room").string(key.room);
  out.end_object();
  return json;
}

// "a.b.c" as its sections and its leaf. Keys of one section stand together in the table.
std::vector<std::string_view> sections_of(std::string_view name) {
  std::vector<std::string_view> sections;
  for (size_t dot; (dot = name.find('.')) != std::string_view::npos; name.remove_prefix(dot + 1))
    sections.push_back(name.substr(0, dot));
  return sections;
}
std::string_view leaf_of(std::string_view name) { return name.substr(name.rfind('.') + 1); }

// How many sections two keys share.
size_t shared(std::span<const std::string_view> a, std::span<const std::string_view> b) {
  return size_t(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

}  // namespace

std::span<const Key> config_keys() { return kKeys; }

const Key* find_key(std::string_view name) {
  for (const Key& key : kKeys)
    if (name == key.name) return &key;
  return nullptr;
}

Status set_key(Config& config, const Key& key, std::span<const std::string> values) {
  const KeySlot slot = key.slot(config);
  if (auto* list = std::get_if<std::vector<std::string>*>(&slot)) (*list)->clear();
  for (const std::string& value : values) {
    Status status = std::visit([&](auto* v) { return set_slot(key, v, value); }, slot);
    if (!status) return status;
  }
  return {};
}

Status set_key(Config& config, std::string_view name, const std::string& value) {
  if (const Key* key = find_key(name)) {
    if (std::holds_alternative<std::vector<std::string>*>(key->slot(config)) && value.starts_with('[')) {
      auto values = read_list(value);
      return values ? set_key(config, *key, *values) : Status(values.error());
    }
    return set_key(config, *key, std::span(&value, 1));
  }
  std::vector<std::string> names;
  for (const Key& key : kKeys) names.emplace_back(key.name);
  const std::string near = nearest_name(name, names);
  return Error{
      ErrorCode::kInvalidArgument,
      fmt::format("unknown key '{}'{}", name, near.empty() ? "" : fmt::format("; did you mean '{}'?", near))};
}

std::string key_value(const Config& config, const Key& key) {
  Config copy = config;  // a slot is a place to write to
  const KeySlot slot = key.slot(copy);
  if (const auto* text = std::get_if<std::string*>(&slot)) return **text;
  return std::visit([](auto* v) { return shown(v); }, slot);
}

std::vector<const Key*> changed_keys(const Config& a, const Config& b) {
  Config left = a, right = b;  // a slot is a place to write to
  const auto value = [](const Key& key, Config& c) {
    return std::visit([](auto* v) { return shown(v); }, key.slot(c));
  };
  std::vector<const Key*> changed;
  for (const Key& key : kKeys)
    if (value(key, left) != value(key, right)) changed.push_back(&key);
  return changed;
}

std::string print_config(const Config& config) {
  Config shown_config = config;
  std::string out = "# Every key of sluice.yaml with its present value.\n";
  std::vector<std::string_view> open;
  for (const Key& key : kKeys) {
    const std::vector<std::string_view> sections = sections_of(key.name);
    for (size_t i = shared(open, sections); i < sections.size(); ++i)
      out += fmt::format("{}{:{}}{}:\n", i == 0 ? "\n" : "", "", 2 * i, sections[i]);
    open = sections;
    const std::string indent(2 * open.size(), ' ');
    const std::string value =
        is_secret(key) ? "[]" : std::visit([](auto* v) { return shown(v); }, key.slot(shown_config));
    out += fmt::format("{}{}: {}  # {}{}\n", indent, leaf_of(key.name), value,
                       *key.unit ? fmt::format("[{}] ", key.unit) : "", key.help);
  }
  return out;
}

std::string print_schema() {
  Config defaults;
  std::string json;
  JsonWriter out(json);
  out.begin_object();
  out.key("$schema").string("https://json-schema.org/draft/2020-12/schema");
  out.key("title").string("sluice.yaml");
  out.key("type").string("object");
  out.key("additionalProperties").boolean(false);
  out.key("properties").begin_object();
  std::vector<std::string_view> open;
  const auto close_down_to = [&](size_t depth) {
    for (; open.size() > depth; open.pop_back()) out.end_object().end_object();
  };
  for (const Key& key : kKeys) {
    const std::vector<std::string_view> sections = sections_of(key.name);
    close_down_to(shared(open, sections));
    for (size_t i = open.size(); i < sections.size(); ++i) {
      open.push_back(sections[i]);
      out.key(sections[i]).begin_object();
      out.key("type").string("object");
      out.key("additionalProperties").boolean(false);
      out.key("properties").begin_object();
    }
    out.key(leaf_of(key.name)).raw(schema_leaf(key, key.slot(defaults)));
  }
  close_down_to(0);
  out.end_object().end_object();
  return json + "\n";
}

}  // namespace sluice::cli

// The kernel's side of sluice-trace: the USDT probes of the server (src/base/probes.h), and raw tracepoints,
// which need no tracefs. CO-RE: the two kernel structures are declared with the members that are read; libbpf
// finds where they lie.
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <stdbool.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/usdt.bpf.h>

#include "event.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

struct task_struct {
  int pid;
  int tgid;
  char comm[16];
} __attribute__((preserve_access_index));

const volatile int server = 0;             // process id; set before the program is loaded
#define SYS_SENDTO 44                      // x86-64
#define ENGINE_NAME 0x652d656369756c73ull  // "sluice-e", of sluice-engine and sluice-executor

struct {
  __uint(type, BPF_MAP_TYPE_RINGBUF);
  __uint(max_entries, 1 << 20);
} events SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, unsigned int);
  __type(value, struct totals);
} sums SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, unsigned int);
  __type(value, unsigned long long);
} lost SEC(".maps");  // events that the buffer had no room for

struct since {
  unsigned long long off, ready;
};
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, 64);
  __type(key, int);
  __type(value, struct since);
} waiting SEC(".maps");  // threads of the engine that do not run

struct sending {
  char id[ID_BYTES];
  unsigned long long began;
  long long fd;
};
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, 1024);
  __type(key, int);
  __type(value, struct sending);
} senders SEC(".maps");  // network threads, by whom they are answering

static struct event* new_event(unsigned int kind) {
  struct event* e = bpf_ringbuf_reserve(&events, sizeof *e, 0);
  unsigned int zero = 0;
  if (!e) {
    unsigned long long* n = bpf_map_lookup_elem(&lost, &zero);
    if (n) __sync_fetch_and_add(n, 1);
    return 0;
  }
  __builtin_memset(e, 0, sizeof *e);
  e->kind = kind;
  e->time = bpf_ktime_get_ns();
  struct totals* t = bpf_map_lookup_elem(&sums, &zero);
  if (t) e->engine = *t;
  return e;
}

static void fill(struct event* e, const char* id, unsigned long long sequence, long long a, long long b,
                 long long c) {
  bpf_probe_read_user_str(e->id, sizeof e->id, id);
  e->sequence = sequence;
  e->a = a;
  e->b = b;
  e->c = c;
}

SEC("usdt")
int BPF_USDT(request_start, const char* id, unsigned long long sequence, long long prompt, long long most) {
  struct event* e = new_event(EVENT_START);
  if (!e) return 0;
  fill(e, id, sequence, prompt, most, 0);
  bpf_ringbuf_submit(e, 0);
  return 0;
}

SEC("usdt")
int BPF_USDT(request_admit, const char* id, unsigned long long sequence, long long cached, long long waited) {
  struct event* e = new_event(EVENT_ADMIT);
  if (!e) return 0;
  fill(e, id, sequence, cached, waited, 0);
  bpf_ringbuf_submit(e, 0);
  return 0;
}

SEC("usdt")
int BPF_USDT(token, const char* id, unsigned long long sequence, long long step, long long which,
             long long since) {
  struct event* e = new_event(EVENT_TOKEN);
  if (!e) return 0;
  fill(e, id, sequence, step, which, since);
  bpf_ringbuf_submit(e, 0);
  return 0;
}

SEC("usdt")
int BPF_USDT(preempt, const char* id, unsigned long long sequence, long long tokens) {
  struct event* e = new_event(EVENT_PREEMPT);
  if (!e) return 0;
  fill(e, id, sequence, tokens, 0, 0);
  bpf_ringbuf_submit(e, 0);
  return 0;
}

SEC("usdt")
int BPF_USDT(request_end, const char* id, unsigned long long sequence, const char* reason, long long generated,
             long long total) {
  struct event* e = new_event(EVENT_END);
  if (!e) return 0;
  fill(e, id, sequence, generated, total, 0);
  bpf_probe_read_user_str(e->word, sizeof e->word, reason);
  bpf_ringbuf_submit(e, 0);
  return 0;
}

SEC("usdt")
int BPF_USDT(shed, const char* id, const char* reason) {
  struct event* e = new_event(EVENT_SHED);
  if (!e) return 0;
  fill(e, id, 0, 0, 0, 0);
  bpf_probe_read_user_str(e->word, sizeof e->word, reason);
  bpf_ringbuf_submit(e, 0);
  return 0;
}

// A network thread is about to send for this request: the next sendto of the thread is its.
SEC("usdt")
int BPF_USDT(answer_write, const char* id) {
  struct sending s = {};
  int thread = (int)bpf_get_current_pid_tgid();
  bpf_probe_read_user_str(s.id, sizeof s.id, id);
  bpf_map_update_elem(&senders, &thread, &s, BPF_ANY);
  return 0;
}

SEC("raw_tp/sys_enter")
int sys_enter(struct bpf_raw_tracepoint_args* ctx) {
  if (ctx->args[1] != SYS_SENDTO || (int)(bpf_get_current_pid_tgid() >> 32) != server) return 0;
  int thread = (int)bpf_get_current_pid_tgid();
  struct sending* s = bpf_map_lookup_elem(&senders, &thread);
  if (!s) return 0;
  struct pt_regs* regs = (struct pt_regs*)ctx->args[0];
  unsigned long fd = 0;
  bpf_probe_read_kernel(&fd, sizeof fd, &regs->rdi);
  s->fd = (int)fd;
  s->began = bpf_ktime_get_ns();
  return 0;
}

SEC("raw_tp/sys_exit")
int sys_exit(struct bpf_raw_tracepoint_args* ctx) {
  if ((int)(bpf_get_current_pid_tgid() >> 32) != server) return 0;
  int thread = (int)bpf_get_current_pid_tgid();
  struct sending* s = bpf_map_lookup_elem(&senders, &thread);
  if (!s || !s->began) return 0;
  struct event* e = new_event(EVENT_SEND);
  if (e) {
    __builtin_memcpy(e->id, s->id, sizeof e->id);
    e->a = (long long)ctx->args[1];
    e->b = e->time - s->began;
    e->c = s->fd;
    bpf_ringbuf_submit(e, 0);
  }
  bpf_map_delete_elem(&senders, &thread);
  return 0;
}

static bool is_engine(struct task_struct* task) {
  unsigned long long name = 0;
  if (BPF_CORE_READ(task, tgid) != server) return false;
  bpf_core_read(&name, sizeof name, &task->comm);
  return name == ENGINE_NAME;
}

SEC("raw_tp/sched_switch")
int sched_switch(struct bpf_raw_tracepoint_args* ctx) {
  struct task_struct *before = (struct task_struct*)ctx->args[1], *next = (struct task_struct*)ctx->args[2];
  unsigned long long now = bpf_ktime_get_ns();
  if (is_engine(before)) {
    // With argument 0 it was made to stop, and would have gone on.
    struct since s = {now, ctx->args[0] ? now : 0};
    int thread = BPF_CORE_READ(before, pid);
    bpf_map_update_elem(&waiting, &thread, &s, BPF_ANY);
  }
  int thread = BPF_CORE_READ(next, pid);
  struct since* s = bpf_map_lookup_elem(&waiting, &thread);
  if (!s) return 0;
  unsigned int zero = 0;
  struct totals* t = bpf_map_lookup_elem(&sums, &zero);
  if (t) {
    unsigned long long ready = s->ready ? now - s->ready : 0;
    __sync_fetch_and_add(&t->off_ns, now - s->off);
    __sync_fetch_and_add(&t->ready_ns, ready);
    if (ready > t->longest_ns) t->longest_ns = ready;
  }
  bpf_map_delete_elem(&waiting, &thread);
  return 0;
}

SEC("raw_tp/sched_wakeup")
int sched_wakeup(struct bpf_raw_tracepoint_args* ctx) {
  struct task_struct* task = (struct task_struct*)ctx->args[0];
  int thread = BPF_CORE_READ(task, pid);
  struct since* s = bpf_map_lookup_elem(&waiting, &thread);
  if (s) s->ready = bpf_ktime_get_ns();
  return 0;
}

SEC("raw_tp/page_fault_user")
int page_fault_user(struct bpf_raw_tracepoint_args* ctx) {
  if ((int)(bpf_get_current_pid_tgid() >> 32) != server) return 0;
  unsigned int zero = 0;
  struct totals* t = bpf_map_lookup_elem(&sums, &zero);
  if (t) __sync_fetch_and_add(&t->faults, 1);
  return 0;
}

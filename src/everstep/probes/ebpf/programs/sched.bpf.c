// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* Why a thread of the run did not run: it was ready and another had the CPU (`waits`), or it slept for long (`blocks`,
 * with the place in the kernel, the file of its system call, and who woke it). Only threads of the processes in
 * `watched` are noted; of all others each switch costs two look-ups. All maps are bounded; sums only grow. */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

char LICENSE[] SEC("license") = "GPL";

#define NAME 16
#define FRAMES 12
#define PARTS 4
#define PART 48
#define LONG_NS 5000000ULL /* a shorter sleep is not worth a record: a stack costs a microsecond */
#define SLEEPS 3	   /* TASK_INTERRUPTIBLE | TASK_UNINTERRUPTIBLE */
#define IDLE_TASK 0x402	   /* TASK_IDLE: a kernel thread that waits for work */
#define UNKNOWN 0xffffffffU
#define QUOTA 0xfffffffeU

struct wait_key {
	u32 tgid, tid;
	u32 taker; /* process that had the CPU meanwhile; 0: the CPU was idle; QUOTA, UNKNOWN */
};
struct wait {
	u64 ns, count;
	char taker[NAME];
};
struct block_key {
	u32 tgid, tid;
	u64 place; /* of stack, file, waker */
};
struct block {
	u64 ns, count, most_ns;
	u64 stack[FRAMES]; /* addresses in the kernel, innermost first */
	u64 inode;
	s32 syscall;
	u32 device;
	u32 waker_tgid;
	s32 waker_syscall;
	u16 uninterruptible;
	u16 mode; /* of the file: its type */
	u32 parts; /* of the path */
	char waker[NAME];
	char path[PARTS][PART]; /* the file's name first, then its folders */
};
struct since { /* of one thread */
	u64 blocked_at, ready_at;
	u32 taker;
	u32 state;
	u32 waker_tgid;
	s32 waker_syscall;
	char taker_name[NAME];
	char waker[NAME];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, u32);
} watched SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct since);
} threads SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct wait_key);
	__type(value, struct wait);
} waits SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 2048);
	__type(key, struct block_key);
	__type(value, struct block);
} blocks SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} switched SEC(".maps"); /* when this CPU last changed its thread */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct block);
} scratch SEC(".maps");

static __always_inline bool is_watched(u32 tgid)
{
	return bpf_map_lookup_elem(&watched, &tgid) != 0;
}

static __always_inline u32 state_of(struct task_struct *task)
{
	struct task_struct___before_5_14 *old = (void *)task;
	if (bpf_core_field_exists(task->__state))
		return task->__state;
	return BPF_CORE_READ(old, state);
}

/* Whether the CPU quota of its cgroup, or of one above, is used up. */
static __always_inline bool is_throttled(struct task_struct *task)
{
	struct cfs_rq *queue = 0;
	if (bpf_core_field_exists(task->throttled))
		return BPF_CORE_READ(task, throttled);
	if (!bpf_core_field_exists(queue->throttle_count))
		return 0;
	return BPF_CORE_READ(task, se.cfs_rq, throttle_count) > 0;
}

static __always_inline s32 syscall_of(struct task_struct *task, u64 *first)
{
	void *regs = (void *)bpf_task_pt_regs(task);
	struct pt_regs___x86 *x86 = regs;
	struct pt_regs___arm64 *arm64 = regs;
	if (bpf_core_field_exists(x86->orig_ax)) {
		*first = BPF_CORE_READ(x86, di);
		return BPF_CORE_READ(x86, orig_ax);
	}
	if (bpf_core_field_exists(arm64->syscallno)) {
		*first = BPF_CORE_READ(arm64, orig_x0);
		return BPF_CORE_READ(arm64, syscallno);
	}
	return -1;
}

static __always_inline void note_wait(struct task_struct *task, u32 taker, const char *name, u64 ns)
{
	struct wait_key key = {.tgid = task->tgid, .tid = task->pid, .taker = taker};
	struct wait *wait = bpf_map_lookup_elem(&waits, &key);
	if (!wait) {
		struct wait first = {};
		bpf_probe_read_kernel_str(first.taker, NAME, name);
		bpf_map_update_elem(&waits, &key, &first, BPF_NOEXIST);
		wait = bpf_map_lookup_elem(&waits, &key);
		if (!wait)
			return;
	}
	__sync_fetch_and_add(&wait->ns, ns);
	__sync_fetch_and_add(&wait->count, 1);
}

static __always_inline void find_file(struct task_struct *task, u64 fd, struct block *block)
{
	struct fdtable *table = BPF_CORE_READ(task, files, fdt);
	struct file *file = 0, **files = BPF_CORE_READ(table, fd);
	if (!files || fd >= BPF_CORE_READ(table, max_fds))
		return;
	bpf_probe_read_kernel(&file, sizeof(file), files + fd);
	struct dentry *entry = BPF_CORE_READ(file, f_path.dentry);
	block->inode = BPF_CORE_READ(entry, d_inode, i_ino);
	block->mode = BPF_CORE_READ(entry, d_inode, i_mode);
	block->device = BPF_CORE_READ(entry, d_inode, i_sb, s_dev);
#pragma unroll
	for (int i = 0; i < PARTS; i++) {
		struct dentry *above = BPF_CORE_READ(entry, d_parent);
		if (!entry || above == entry)
			break;
		bpf_probe_read_kernel_str(block->path[i], PART, BPF_CORE_READ(entry, d_name.name));
		block->parts = i + 1;
		entry = above;
	}
}

static __always_inline void note_block(struct task_struct *task, struct since *since, u64 ns)
{
	u32 zero = 0;
	struct block *new = bpf_map_lookup_elem(&scratch, &zero);
	if (!new)
		return;
	__builtin_memset(new, 0, sizeof(*new));
	u64 first = ~0ULL;
	/* The task has not run yet, so its stack still says where it slept. */
	bpf_get_task_stack(task, new->stack, sizeof(new->stack), 0);
	new->syscall = syscall_of(task, &first);
	if (first < 1 << 20)
		find_file(task, first, new);
	new->waker_tgid = since->waker_tgid;
	new->waker_syscall = since->waker_syscall;
	__builtin_memcpy(new->waker, since->waker, NAME);
	new->uninterruptible = (since->state & 2) != 0;

	u64 place = new->inode ^ ((u64)new->waker_tgid << 32) ^ (u32)new->syscall;
#pragma unroll
	for (int i = 0; i < FRAMES; i++)
		place = (place ^ new->stack[i]) * 0x100000001b3ULL;
	struct block_key key = {.tgid = task->tgid, .tid = task->pid, .place = place};
	struct block *known = bpf_map_lookup_elem(&blocks, &key);
	if (!known) {
		new->ns = new->most_ns = ns;
		new->count = 1;
		bpf_map_update_elem(&blocks, &key, new, BPF_NOEXIST);
		return;
	}
	/* One thread is switched in on one CPU at a time: nobody else writes this entry. */
	known->ns += ns;
	known->count += 1;
	if (ns > known->most_ns)
		known->most_ns = ns;
}

static __always_inline void leaves(struct task_struct *task, struct task_struct *next, bool preempt, u64 now)
{
	struct since *since = bpf_task_storage_get(&threads, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!since)
		return;
	u32 state = state_of(task);
	since->ready_at = since->blocked_at = 0;
	if (!preempt && (state & SLEEPS)) {
		if ((state & IDLE_TASK) != IDLE_TASK)
			since->blocked_at = now;
		since->state = state;
		since->waker_tgid = 0;
		since->waker[0] = 0;
		return;
	}
	since->ready_at = now;
	since->taker_name[0] = 0;
	since->taker = QUOTA;
	if (is_throttled(task))
		return;
	since->taker = next->tgid;
	bpf_probe_read_kernel_str(since->taker_name, NAME, next->comm);
}

static __always_inline void comes(struct task_struct *task, struct task_struct *prev, u64 switched_at, u64 now)
{
	struct since *since = bpf_task_storage_get(&threads, task, 0, 0);
	if (!since)
		return;
	u64 blocked_at = since->blocked_at, ready_at = since->ready_at;
	since->blocked_at = since->ready_at = 0;
	if (blocked_at) {
		u64 until = ready_at ? ready_at : now;
		if (until > blocked_at && until - blocked_at >= LONG_NS)
			note_block(task, since, until - blocked_at);
	}
	if (!ready_at || now <= ready_at)
		return;
	if (since->taker == QUOTA) {
		note_wait(task, QUOTA, since->taker_name, now - ready_at);
		return;
	}
	/* Who leaves the CPU now had it since the last switch here; before that, who took it from this thread. */
	u64 from = switched_at > ready_at ? switched_at : ready_at;
	note_wait(task, prev->tgid, prev->comm, now - from);
	if (from > ready_at)
		note_wait(task, since->taker, since->taker_name, from - ready_at);
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	u64 now = bpf_ktime_get_ns(), before = 0;
	u32 zero = 0;
	u64 *switched_at = bpf_map_lookup_elem(&switched, &zero);
	if (switched_at) {
		before = *switched_at;
		*switched_at = now;
	}
	if (is_watched(prev->tgid))
		leaves(prev, next, preempt, now);
	if (is_watched(next->tgid))
		comes(next, prev, before, now);
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(on_wakeup, struct task_struct *task)
{
	if (!is_watched(task->tgid))
		return 0;
	struct since *since = bpf_task_storage_get(&threads, task, 0, 0);
	if (!since || !since->blocked_at || since->ready_at)
		return 0;
	u64 first;
	struct task_struct *waker = bpf_get_current_task_btf();
	since->ready_at = bpf_ktime_get_ns();
	since->taker = is_throttled(task) ? QUOTA : UNKNOWN;
	since->taker_name[0] = 0;
	since->waker_tgid = waker->tgid;
	since->waker_syscall = waker->tgid ? syscall_of(waker, &first) : -1;
	bpf_probe_read_kernel_str(since->waker, NAME, waker->comm);
	return 0;
}

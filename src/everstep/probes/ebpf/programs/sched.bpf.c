// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* Why a thread of the run did not run: it was ready and another had the CPU (`waits`), or it slept for long (`blocks`,
 * with the file of its system call or its place in the kernel, and who woke it). Only threads of the processes in
 * `watched` are noted; of all others a switch costs two bits and a clock. All maps are bounded; a look empties them. */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include "watched.h"
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

char LICENSE[] SEC("license") = "GPL";

#define NAME 16
#define FRAMES 12
#define PARTS 4
#define PART 48
#define LONG_NS 5000000ULL /* a shorter sleep is not worth a record */
#define SHORT_NS 200000ULL /* shorter waits are added up in the thread, and told with the one that fills this */
#define CALLS 1024
#define TURNS 16 /* a power of two */
#define SLEEPS 3	   /* TASK_INTERRUPTIBLE | TASK_UNINTERRUPTIBLE */
#define IDLE_TASK 0x402	   /* TASK_IDLE: a kernel thread that waits for work */
#define QUOTA 0xfffffffeU

struct wait_key {
	u32 tgid, tid;
	u32 taker; /* process that had the CPU meanwhile; 0: the CPU was idle; QUOTA */
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
	u32 mode; /* of the file: its type */
	u32 parts; /* of the path */
	char waker[NAME];
	char path[PARTS][PART]; /* the file's name first, then its folders */
};
struct since { /* of one thread */
	u64 blocked_at, ready_at;
	u64 short_ns; /* waits that are not told yet */
	u32 is_throttled;
	u32 waker_tgid;
	s32 waker_syscall;
	char waker[NAME];
};
struct turn {
	u64 from;
	u32 tgid;
	char name[NAME];
};
struct turns { /* who had a CPU last */
	u32 newest;
	struct turn last[TURNS];
};

enum { UNTOLD = 0, BY_NUMBER = 1, ON_A_FILE = 2 };
struct calls { /* of each system call: what of a long sleep in it is told */
	u8 told[CALLS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct calls);
} calls SEC(".maps");
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
	__type(value, struct turns);
} turns SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct block);
} scratch SEC(".maps");

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
		return task->throttled;
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

/* One thread is switched in on one CPU at a time: nobody else writes its entries. */
static __always_inline void note_wait(struct task_struct *task, u32 taker, const char *name, u64 ns)
{
	struct wait_key key = {.tgid = task->tgid, .tid = task->pid, .taker = taker};
	struct wait *wait = bpf_map_lookup_elem(&waits, &key);
	if (wait) {
		wait->ns += ns;
		wait->count += 1;
		return;
	}
	struct wait first = {.ns = ns, .count = 1};
	if (name)
		bpf_probe_read_kernel(first.taker, NAME, name);
	bpf_map_update_elem(&waits, &key, &first, BPF_NOEXIST);
}

/* Who had this CPU meanwhile. Each turn of an eighth of the wait or more is told as it was. The shorter ones, and what is
 * older than the turns known, are told of one of them, drawn by its length: over many waits that is each one's share. */
static __always_inline void tell_wait(struct task_struct *task, struct turns *all, u64 ready_at, u64 now, u64 rest)
{
	u64 end = now, large = (now - ready_at) >> 3, drawn_from = 0;
	u32 newest = all->newest, pick = newest;
	for (u32 i = 0; i < TURNS && end > ready_at; i++) {
		struct turn *turn = &all->last[(newest - i) & (TURNS - 1)];
		u64 from = turn->from > ready_at ? turn->from : ready_at;
		if (from > end)
			break;
		u64 ns = end - from;
		end = from;
		if (ns >= large) {
			note_wait(task, turn->tgid, turn->name, ns);
			continue;
		}
		rest += ns;
		drawn_from += ns;
		if (bpf_get_prandom_u32() % ((drawn_from >> 10) + 1) <= ns >> 10)
			pick = newest - i;
	}
	struct turn *turn = &all->last[pick & (TURNS - 1)];
	rest += end - ready_at;
	if (rest)
		note_wait(task, turn->tgid, turn->name, rest);
}

static __always_inline struct dentry *file_of(struct task_struct *task, u64 fd)
{
	struct fdtable *table = BPF_CORE_READ(task, files, fdt);
	struct file *file = 0, **files = BPF_CORE_READ(table, fd);
	if (!files || fd >= BPF_CORE_READ(table, max_fds))
		return 0;
	bpf_probe_read_kernel(&file, sizeof(file), files + fd);
	return BPF_CORE_READ(file, f_path.dentry);
}

static __always_inline void find_path(struct dentry *entry, struct block *block)
{
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

static __always_inline u32 told_of(s32 syscall)
{
	u32 zero = 0;
	struct calls *all = bpf_map_lookup_elem(&calls, &zero);
	return all && (u32)syscall < CALLS ? all->told[(u32)syscall & (CALLS - 1)] : UNTOLD;
}

/* Most long sleeps are waits for a peer or a timer, and end at `told_of`. What is dear is done once for each place. */
static __always_inline void note_block(struct task_struct *task, struct since *since, u64 ns)
{
	u64 first = ~0ULL;
	s32 syscall = syscall_of(task, &first);
	u32 told = syscall < 0 ? BY_NUMBER : told_of(syscall), zero = 0;
	struct block *new = bpf_map_lookup_elem(&scratch, &zero);
	if (!new || told == UNTOLD)
		return;
	struct dentry *file = told == ON_A_FILE && first < 1 << 20 ? file_of(task, first) : 0;
	u64 inode = file ? BPF_CORE_READ(file, d_inode, i_ino) : 0;
	u64 place = inode ^ ((u64)since->waker_tgid << 32) ^ (u32)syscall;
	__builtin_memset(new->stack, 0, sizeof(new->stack));
	if (syscall < 0) { /* a fault: the task has not run yet, so its stack still says where it slept */
		bpf_get_task_stack(task, new->stack, sizeof(new->stack), 0);
#pragma unroll
		for (int i = 0; i < FRAMES; i++)
			place = (place ^ new->stack[i]) * 0x100000001b3ULL;
	}
	struct block_key key = {.tgid = task->tgid, .tid = task->pid, .place = place};
	struct block *known = bpf_map_lookup_elem(&blocks, &key);
	if (known) {
		known->ns += ns;
		known->count += 1;
		if (ns > known->most_ns)
			known->most_ns = ns;
		return;
	}
	new->ns = new->most_ns = ns;
	new->count = 1;
	new->inode = inode;
	new->syscall = syscall;
	new->waker_tgid = since->waker_tgid;
	new->waker_syscall = since->waker_syscall;
	__builtin_memcpy(new->waker, since->waker, NAME);
	new->mode = new->device = new->parts = 0;
	__builtin_memset(new->path, 0, sizeof(new->path));
	if (file)
		find_path(file, new);
	bpf_map_update_elem(&blocks, &key, new, BPF_NOEXIST);
}

static __always_inline void leaves(struct task_struct *task, bool preempt, u64 now)
{
	struct since *since = bpf_task_storage_get(&threads, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!since)
		return;
	u32 state = state_of(task);
	since->ready_at = since->blocked_at = 0;
	if (!preempt && (state & SLEEPS)) {
		if ((state & IDLE_TASK) != IDLE_TASK)
			since->blocked_at = now;
		since->waker_tgid = 0;
		since->waker[0] = 0;
		return;
	}
	since->ready_at = now;
	since->is_throttled = is_throttled(task);
}

static __always_inline void comes(struct task_struct *task, struct turns *all, u64 now)
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
	u64 short_ns = since->short_ns, waited = now - ready_at;
	since->short_ns = short_ns + waited < SHORT_NS ? short_ns + waited : 0;
	if (since->short_ns)
		return;
	if (since->is_throttled)
		note_wait(task, QUOTA, 0, waited + short_ns);
	else
		tell_wait(task, all, ready_at, now, short_ns);
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	u64 now = bpf_ktime_get_ns();
	u32 zero = 0;
	struct pids *pids = watched_pids();
	struct turns *all = bpf_map_lookup_elem(&turns, &zero);
	if (!pids || !all)
		return 0;
	if (is_in(pids, prev->tgid))
		leaves(prev, preempt, now);
	if (is_in(pids, next->tgid))
		comes(next, all, now);
	all->newest += 1;
	struct turn *turn = &all->last[all->newest & (TURNS - 1)];
	turn->from = now;
	turn->tgid = next->tgid;
	bpf_probe_read_kernel(turn->name, NAME, next->comm);
	return 0;
}

/* Runs where the waker runs. `sched_wakeup` may not: where the CPU of the woken thread is idle, it runs there. */
SEC("tp_btf/sched_waking")
int BPF_PROG(on_waking, struct task_struct *task)
{
	struct pids *pids = watched_pids();
	if (!pids || !is_in(pids, task->tgid))
		return 0;
	struct since *since = bpf_task_storage_get(&threads, task, 0, 0);
	if (!since || !since->blocked_at || since->ready_at)
		return 0;
	if (bpf_ktime_get_ns() - since->blocked_at < LONG_NS)
		return 0;
	u64 first;
	struct task_struct *waker = bpf_get_current_task_btf();
	since->waker_tgid = waker->tgid;
	since->waker_syscall = waker->tgid ? syscall_of(waker, &first) : -1;
	bpf_probe_read_kernel(since->waker, NAME, waker->comm);
	return 0;
}

/* The thread is in a queue now: whether the quota stops it there is not known before. */
SEC("tp_btf/sched_wakeup")
int BPF_PROG(on_wakeup, struct task_struct *task)
{
	struct pids *pids = watched_pids();
	if (!pids || !is_in(pids, task->tgid))
		return 0;
	struct since *since = bpf_task_storage_get(&threads, task, 0, 0);
	if (!since || !since->blocked_at || since->ready_at)
		return 0;
	since->ready_at = bpf_ktime_get_ns();
	since->is_throttled = is_throttled(task);
	return 0;
}

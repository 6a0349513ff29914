// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* How long threads of the run had to free memory themselves before they got some: because the machine has too little
 * (direct reclaim), or because their cgroup is at its limit. That is running, not sleeping, so sched.bpf.c cannot tell.
 * Bounded; a look empties it. */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "watched.h"

char LICENSE[] SEC("license") = "GPL";

enum { MACHINE = 0, GROUP = 1 };

struct reclaim_key {
	u32 tgid, tid;
	u32 whose; /* MACHINE, GROUP */
};
struct reclaim {
	u64 ns, count, most_ns;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, u64);
} begun SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct reclaim_key);
	__type(value, struct reclaim);
} reclaims SEC(".maps");

static __always_inline int begin(void)
{
	struct pids *pids = watched_pids();
	if (!pids || !is_in(pids, bpf_get_current_pid_tgid() >> 32))
		return 0;
	u64 *at = bpf_task_storage_get(&begun, bpf_get_current_task_btf(), 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (at)
		*at = bpf_ktime_get_ns();
	return 0;
}

static __always_inline int end(u32 whose)
{
	u64 ids = bpf_get_current_pid_tgid();
	u32 tgid = ids >> 32;
	struct pids *pids = watched_pids();
	if (!pids || !is_in(pids, tgid))
		return 0;
	u64 *at = bpf_task_storage_get(&begun, bpf_get_current_task_btf(), 0, 0);
	if (!at || !*at)
		return 0;
	u64 ns = bpf_ktime_get_ns() - *at;
	*at = 0;
	struct reclaim_key key = {.tgid = tgid, .tid = (u32)ids, .whose = whose};
	struct reclaim *known = bpf_map_lookup_elem(&reclaims, &key);
	if (!known) {
		struct reclaim first = {.ns = ns, .count = 1, .most_ns = ns};
		bpf_map_update_elem(&reclaims, &key, &first, BPF_NOEXIST);
		return 0;
	}
	known->ns += ns; /* a thread does one thing at a time */
	known->count += 1;
	if (ns > known->most_ns)
		known->most_ns = ns;
	return 0;
}

SEC("tp_btf/mm_vmscan_direct_reclaim_begin")
int on_direct_begin(void *ctx) { return begin(); }
SEC("tp_btf/mm_vmscan_direct_reclaim_end")
int on_direct_end(void *ctx) { return end(MACHINE); }
SEC("tp_btf/mm_vmscan_memcg_reclaim_begin")
int on_group_begin(void *ctx) { return begin(); }
SEC("tp_btf/mm_vmscan_memcg_reclaim_end")
int on_group_end(void *ctx) { return end(GROUP); }

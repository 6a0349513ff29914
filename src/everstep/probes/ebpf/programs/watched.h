/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
 * The processes whose threads are noted, a bit for each pid. Asked first of all, since most events are of others: no call
 * and no hash. Where pids go beyond 65,535 another process may share a bit: it is noted too, and dropped by the reader. */
#ifndef EVERSTEP_WATCHED_H
#define EVERSTEP_WATCHED_H

struct pids {
	u64 words[1024];
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct pids);
} watched SEC(".maps");

static __always_inline struct pids *watched_pids(void)
{
	u32 zero = 0;
	return bpf_map_lookup_elem(&watched, &zero);
}

static __always_inline bool is_in(const struct pids *pids, u32 tgid)
{
	return pids->words[tgid >> 6 & 1023] >> (tgid & 63) & 1;
}
#endif

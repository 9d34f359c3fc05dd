/*
 * --budget: what each thread pays, and functions that are counted instead of recorded.
 * In: a hit of a traced thread. Out: counters that the recorder reads a few times a second;
 * it alone decides what is given up (src/overhead). Without --budget none of this is in the
 * programs: the verifier removes what rests on a configuration of zero.
 * A counted hit is not followed to its return, takes no place in a ring and no number in
 * its thread's `seq`: nothing is missing where nothing was to be.
 */
#ifndef GPUREC_BUDGET_H
#define GPUREC_BUDGET_H

/* enum gpurec_level of each probe, written by the recorder. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GPUREC_MAX_PROBES);
	__type(key, u32);
	__type(value, u32);
} levels SEC(".maps");

/* Hits of each probe that were counted: exact, as long as the program runs. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, GPUREC_MAX_PROBES);
	__type(key, u32);
	__type(value, u64);
} counted SEC(".maps");

/* Hits of each thread at each probe: only to decide by. If it is full, a thread more is not
 * seen to pay; the recorder removes those that are idle. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, GPUREC_MAX_SPENDERS);
	__type(key, struct gpurec_spender);
	__type(value, struct gpurec_spent);
} spent SEC(".maps");

/* Only the thread itself writes to its values. */
static __always_inline struct gpurec_spent *spent_at(u32 probe, bool make)
{
	u64 id = bpf_get_current_pid_tgid();
	struct gpurec_spender key = {.tid = (u32)id, .probe = probe};
	struct gpurec_spent *value = bpf_map_lookup_elem(&spent, &key), first = {};

	if (value || !make)
		return value;
	first.pid = id >> 32;
	bpf_map_update_elem(&spent, &key, &first, BPF_NOEXIST);
	return bpf_map_lookup_elem(&spent, &key);
}

/* Notes what the hit costs. True if it was counted, and is not to be recorded. */
static __always_inline bool budget_counts(u32 probe)
{
	struct gpurec_spent *value;
	u32 *level;
	bool counts;
	u64 *sum;

	if (!config.budget)
		return false;
	level = bpf_map_lookup_elem(&levels, &probe);
	counts = level && *level == GPUREC_COUNTED;
	value = spent_at(probe, true);
	if (value) {
		if (counts)
			value->counted++;
		else
			value->entered++;
	}
	if (!counts)
		return false;
	sum = bpf_map_lookup_elem(&counted, &probe);
	if (sum)
		__sync_fetch_and_add(sum, 1);
	return true;
}

/* A recorded call is over: the function may be unhooked when none is left open. */
static __always_inline void budget_returned(u32 probe)
{
	struct gpurec_spent *value;

	if (!config.budget)
		return;
	value = spent_at(probe, false);
	if (value)
		value->returned++;
}

#endif

/*
 * --budget: the cost of each thread, and functions that are counted instead of recorded.
 * In: a hit of a traced thread. Out: counters that the recorder reads a few times a second; the recorder alone decides
 * which functions are no longer recorded (src/overhead). Without --budget the programs contain none of this: the
 * verifier removes code that depends on a configuration of zero.
 * A counted hit gets no return probe, no space in a ring and no number in its thread's `seq`: a reader of the trace
 * sees no gap.
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

/* Counted hits of each probe: exact as long as the program runs. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, GPUREC_MAX_PROBES);
	__type(key, u32);
	__type(value, u64);
} counted SEC(".maps");

/* Hits of each thread at each probe, used only for decisions. If it is full, the cost of further threads is not
 * seen; the recorder removes idle entries. */
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

/* Adds the hit to the thread's cost. True if the hit was counted and must not be recorded. */
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

/* A recorded call is over: the function may be unhooked when none is open any more. */
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

/*
 * --budget: the cost of each thread, and functions that are given up.
 * In: a hit of a traced thread. Out: counters that the recorder reads a few times a second; the recorder alone decides
 * which functions are no longer recorded (src/overhead). Without --budget the programs contain none of this: the
 * verifier removes code that depends on a configuration of zero.
 */
#ifndef GPUREC_BUDGET_H
#define GPUREC_BUDGET_H

/* Not 0: the probe's calls are not recorded any more. The recorder unhooks the function when its open calls have
 * returned. Of probe 0, which no function has: calls have no stacks any more. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GPUREC_MAX_PROBES);
	__type(key, u32);
	__type(value, u32);
} given_up SEC(".maps");

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

/* Adds the hit to the thread's cost, unless the function is given up: then the hit must not be recorded. */
static __always_inline bool is_given_up(u32 probe)
{
	struct gpurec_spent *value;
	u32 *given;

	if (!config.budget)
		return false;
	given = bpf_map_lookup_elem(&given_up, &probe);
	if (given && *given)
		return true;
	value = spent_at(probe, true);
	if (value)
		value->entered++;
	return false;
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

/* The state of the current thread if a hit of this probe is to be recorded; else NULL. */
static __always_inline struct thread *recorded_thread(struct task_struct *task, u32 probe)
{
	struct thread *t;

	if (phase_now() != GPUREC_RECORDING)
		return NULL;
	t = thread_state(task);
	if (!t) {
		if (is_target(task->tgid))
			count_lost_call(probe);
		return NULL;
	}
	return t->traced && !is_given_up(probe) ? t : NULL;
}

#ifdef STACKS
/* What stacks have cost each thread, measured: it depends on their depth. As above. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, GPUREC_STACK_SPENDERS);
	__type(key, u32);
	__type(value, struct gpurec_stack_spent);
} stack_spent SEC(".maps");

/* A stack that takes longer was interrupted. */
#define LONGEST_STACK 100000 /* ns */

static __always_inline bool stacks_are_given_up(void)
{
	u32 none = 0, *given;

	if (!config.budget)
		return false;
	given = bpf_map_lookup_elem(&given_up, &none);
	return given && *given;
}

/* Adds the time since `from` to the thread's cost. Not static: its stack is apart from that of its caller. */
__attribute__((noinline)) int stack_costs(u64 from)
{
	u64 id = bpf_get_current_pid_tgid(), ns = bpf_ktime_get_ns() - from;
	struct gpurec_stack_spent *value, first = {.pid = id >> 32};
	u32 tid = id;

	value = bpf_map_lookup_elem(&stack_spent, &tid);
	if (!value) {
		bpf_map_update_elem(&stack_spent, &tid, &first, BPF_NOEXIST);
		value = bpf_map_lookup_elem(&stack_spent, &tid);
		if (!value)
			return 0;
	}
	value->ns += ns > LONGEST_STACK ? LONGEST_STACK : ns;
	value->count++;
	return 0;
}
#endif

#endif

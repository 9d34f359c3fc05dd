/*
 * The native frames of a stack. In: a thread's registers and stack. Out: return addresses in a walk (stacks.h); for a
 * stack that BPF cannot unwind yet, a copy of a part of it, from which the recorder learns the rules.
 */
#ifndef GPUREC_NATIVE_H
#define GPUREC_NATIVE_H

/* When this CPU last copied a stack: copies are large, and stop once the recorder has sent the rules. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} copied SEC(".maps");

#define BETWEEN_COPIES 100000 /* ns */

static __always_inline bool may_copy(void)
{
	u64 now = bpf_ktime_get_ns(), *last;
	u32 zero = 0;

	last = bpf_map_lookup_elem(&copied, &zero);
	if (!last || now - *last < BETWEEN_COPIES)
		return false;
	*last = now;
	return true;
}

/* The key of the rule for a return address. The recorder computes it too. */
static __always_inline u64 rule_key(u64 seed, u64 ip)
{
	return mix(seed, ip);
}

/* The return address that Linux replaced with the trampoline, if it was this one. Linux lists them from the innermost
 * on; tail calls share one. */
static __always_inline u64 original(struct task_struct *task, struct walk *w, u64 address)
{
	struct return_instance *at;
	u32 i;

	if (address != w->trampoline)
		return address;
	if (w->hidden == 1)
		w->hidden = (u64)BPF_CORE_READ(task, utask, return_instances);
	at = (void *)w->hidden;
	address = 0;
	for (i = 0; i < 4 && at; i++) {
		bool chained = BPF_CORE_READ(at, chained);

		address = BPF_CORE_READ(at, orig_ret_vaddr);
		at = BPF_CORE_READ(at, next);
		if (!chained)
			break;
	}
	w->hidden = (u64)at;
	return address;
}

/* Takes the native frame at `ip`, and finds its caller. */
static __always_inline u32 step_native(struct task_struct *task, struct walk *w, struct memory *memory)
{
	u32 number = w->count;
	struct known_rule *known;
	struct gpurec_rule *rule;
	u64 id, end, ip;

	if (number >= GPUREC_NATIVE_FRAMES)
		return STEP_CUT;
	ip = w->ip;
	w->frames[number & (GPUREC_FRAMES - 1)].code = ip;
	w->count = number + 1;
	w->stack.natives++;
	w->stack.key = mix(w->stack.key, ip);
	if (!config.native)
		return STEP_END;
	id = rule_key(w->rules, ip);
	known = &memory->rules[ip & (KNOWN - 1)];
	if (known->key != id) {
		rule = bpf_map_lookup_elem(&rules, &id);
		if (!rule)
			return STEP_UNKNOWN;
		known->key = id;
		known->rule = *rule;
	}
	rule = &known->rule;
	if (rule->kind <= GPUREC_RULE_STOP)
		return STEP_CUT;
	if (rule->kind == GPUREC_RULE_END)
		return STEP_END;
	end = (rule->kind == GPUREC_RULE_SP ? w->sp : w->bp) + (s64)rule->frame;
	if (rule->kind == GPUREC_RULE_AT_BP)
		end = peek(w, end);
	/* The stack grows down. */
	if (end <= w->sp)
		return STEP_CUT;
	if (end - w->from > w->size)
		look_up_from(w, w->sp);
	if (rule->bp)
		w->bp = peek(w, end + (s64)rule->bp);
	w->sp = end;
	/* 0 in a thread's first function. */
	w->ip = original(task, w, peek(w, end - 8));
	return w->ip ? STEP_ON : STEP_END;
}

/* Takes the next few native frames. */
__attribute__((noinline)) u32 steps_native(u32 key)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct memory *memory = bpf_task_storage_get(&memories, task, 0, 0);
	struct walk *w = walk_of(key);
	u32 i, result = STEP_CUT;

	if (!w || !memory)
		return STEP_CUT;
	for (i = 0; i < STEPS; i++) {
		result = step_native(task, w, memory);
		if (result != STEP_ON)
			break;
	}
	return result;
}

/* Sends a part of the thread's stack, from which the recorder unwinds it and learns the rules. */
__attribute__((noinline)) u32 send_unwind(u32 key)
{
	struct walk *w = walk_of(key);
	u32 size = GPUREC_COPY;

	if (!w)
		return 0;
	w->size = 0;
	if (bpf_probe_read_user(w->bytes, GPUREC_COPY, (void *)w->sp)) {
		/* The stack ends before that. */
		size = 4096 - (w->sp & 4095);
		if (size > GPUREC_COPY || bpf_probe_read_user(w->bytes, size, (void *)w->sp))
			size = 0;
	}
	fill_head(&w->unwind.head, GPUREC_UNWIND, 0, 0);
	w->unwind.pid = w->stack.pid;
	w->unwind.size = size;
	w->unwind.seed = w->rules;
	w->unwind.ip = w->ip;
	w->unwind.sp = w->sp;
	w->unwind.bp = w->bp;
	w->unwind.pad = 0;
	if (!size || !send_record(&w->unwind, sizeof(w->unwind) + size))
		return 0;
	w->flags |= GPUREC_COPIED;
	/* Only this call has this key. */
	w->stack.key = mix(w->stack.key, bpf_ktime_get_ns());
	return 1;
}

/* The caller, and with the rules that BPF has, its callers. */
static __always_inline void walk_native(u32 key, struct walk *w)
{
	u32 i, result = STEP_END;

	w->unwind.size = 0;
	for (i = 0; i <= GPUREC_NATIVE_FRAMES / STEPS && w->ip; i++) {
		result = steps_native(key);
		if (result != STEP_ON)
			break;
	}
	if (result == STEP_ON || result == STEP_CUT || (result == STEP_UNKNOWN && !(may_copy() && send_unwind(key))))
		w->flags |= GPUREC_CUT;
}

#endif

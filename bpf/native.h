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

/* A return address that is not known: its memory cannot be read, or Linux's list does not have it. */
#define NOWHERE 1

/* The return address that Linux replaced with the trampoline at this place of the stack. The list begins with the
 * innermost call. Calls that were left by a jump may still be in it, and tail calls share a place. */
__attribute__((noinline)) u64 original(u32 key, u64 place)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct walk *w = walk_of(key);
	struct return_instance *at;
	u32 i;

	if (!w)
		return NOWHERE;
	if (w->hidden == 1)
		w->hidden = (u64)BPF_CORE_READ(task, utask, return_instances);
	at = (void *)w->hidden;
	for (i = 0; i < GPUREC_MAX_FRAMES && at; i++) {
		bool found = BPF_CORE_READ(at, stack) == place;
		u64 address = BPF_CORE_READ(at, orig_ret_vaddr);

		at = BPF_CORE_READ(at, next);
		if (found) {
			w->hidden = (u64)at;
			return address;
		}
	}
	return NOWHERE;
}

static __always_inline u64 return_address_at(u32 key, struct walk *w, u64 place)
{
	u64 address;

	if (!peek(w, place, &address))
		return NOWHERE;
	return address && address == w->trampoline ? original(key, place) : address;
}

/* Takes the native frame at `ip`, and finds its caller. */
static __always_inline u32 step_native(struct walk *w, struct memory *memory)
{
	u32 number = w->count;
	struct known_rule *known;
	struct gpurec_rule *rule;
	u64 id, end, ip, bp;

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
	known = &memory->rules[ip & (KNOWN_RULES - 1)];
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
	bp = end;
	if (rule->kind == GPUREC_RULE_AT_BP) {
		bp = w->bp;
		if (!peek(w, end, &end))
			return STEP_CUT;
	}
	/* The stack grows down. */
	if (end <= w->sp || end & 7)
		return STEP_CUT;
	if (end - w->from > w->size)
		look_up_from(w, w->sp);
	if (rule->saves_bp && !peek(w, bp + (s64)rule->bp, &w->bp))
		return STEP_CUT;
	w->sp = end;
	w->ip = return_address_at(w->key, w, end - 8);
	if (w->ip == NOWHERE)
		return STEP_CUT;
	/* 0 in a thread's first function. */
	return w->ip ? STEP_ON : STEP_END;
}

/* Takes the next few native frames. */
__attribute__((noinline)) u32 steps_native(struct walk *w, struct memory *memory)
{
	u32 i, result = STEP_CUT;

	if (!w || !memory)
		return STEP_CUT;
	for (i = 0; i < STEPS; i++) {
		result = step_native(w, memory);
		if (result != STEP_ON)
			break;
	}
	return result;
}

/* Registers by which some functions find their frame. BPF knows them at the call only: outer functions may have changed
 * them, and saved them anywhere. */
static __always_inline void copy_registers(struct walk *w)
{
	u64 *to = (u64 *)w->bytes;
#if defined(__TARGET_ARCH_x86)
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());

	to[0] = regs->bx;
	to[1] = regs->r12;
	to[2] = regs->r13;
	to[3] = regs->r14;
	to[4] = regs->r15;
	w->unwind.has_registers = w->count == 1;
#else
	w->unwind.has_registers = 0;
#endif
}

/* Puts the return addresses that Linux replaced back into a copy of the stack. */
__attribute__((noinline)) u32 put_back(u32 key, u32 size)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct walk *w = walk_of(key);
	struct return_instance *at;
	u32 i;

	if (!w || !w->trampoline)
		return 0;
	at = BPF_CORE_READ(task, utask, return_instances);
	for (i = 0; i < GPUREC_MAX_FRAMES && at; i++) {
		u64 place = BPF_CORE_READ(at, stack) - w->sp, address = BPF_CORE_READ(at, orig_ret_vaddr);

		at = BPF_CORE_READ(at, next);
		if (place > GPUREC_COPY - 8 || place + 8 > size)
			continue;
		/* Not of a call that was left. */
		if (*(u64 *)(w->bytes + GPUREC_REGISTERS * 8 + place) == w->trampoline)
			*(u64 *)(w->bytes + GPUREC_REGISTERS * 8 + place) = address;
	}
	return 0;
}

/* Sends a part of the thread's stack, from which the recorder unwinds it and learns the rules. */
__attribute__((noinline)) u32 send_unwind(u32 key)
{
	struct walk *w = walk_of(key);
	u32 size = GPUREC_COPY;
	u8 *to;

	if (!w)
		return 0;
	to = w->bytes + GPUREC_REGISTERS * 8;
	w->size = 0;
	if (bpf_probe_read_user(to, size, (void *)w->sp)) {
		/* The stack ends before that: with the next page, or with this one. */
		size = 8192 - (w->sp & 4095);
		if (size > GPUREC_COPY || bpf_probe_read_user(to, size, (void *)w->sp)) {
			size = 4096 - (w->sp & 4095);
			if (size > GPUREC_COPY || bpf_probe_read_user(to, size, (void *)w->sp))
				return 0;
		}
	}
	put_back(key, size);
	fill_head(&w->unwind.head, GPUREC_UNWIND, 0, 0);
	copy_registers(w);
	w->unwind.pid = w->stack.pid;
	w->unwind.size = size;
	w->unwind.seed = w->rules;
	w->unwind.ip = w->ip;
	w->unwind.sp = w->sp;
	w->unwind.bp = w->bp;
	if (!send_record(&w->unwind, sizeof(w->unwind) + GPUREC_REGISTERS * 8 + size))
		return 0;
	w->flags |= GPUREC_COPIED;
	/* Only this call has this key. */
	w->stack.key = mix(w->stack.key, bpf_ktime_get_ns());
	return 1;
}

/* The caller, and with the rules that BPF has, its callers. */
static __always_inline void walk_native(u32 key, struct walk *w, struct memory *memory)
{
	u32 i, result = w->ip == NOWHERE ? STEP_CUT : STEP_END;

	w->unwind.size = 0;
	for (i = 0; i <= GPUREC_NATIVE_FRAMES / STEPS && w->ip > NOWHERE; i++) {
		result = steps_native(w, memory);
		if (result != STEP_ON)
			break;
	}
	if (result == STEP_ON || result == STEP_CUT || (result == STEP_UNKNOWN && !(may_copy() && send_unwind(key))))
		w->flags |= GPUREC_CUT;
}

#endif

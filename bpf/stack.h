/*
 * Calls on another stack than the one on which the thread has a call open: in a signal handler on its alternate stack,
 * or in a coroutine.
 * In: the stack pointer of a call. Out: whether its return can be probed.
 *
 * Linux keeps the return addresses that it replaced in a list for each thread, and drops those below a new call's stack
 * pointer: on a single stack these calls were left without a return. A call on another, higher stack makes Linux drop
 * calls that are still open; when they return, the program jumps to unmapped memory and is killed. Switching to a lower
 * stack and back ends in the same way. So a call on another stack is recorded without its return.
 *
 * What counts as a stack: the mapping that contains it, for the stack that the thread began with; elsewhere (alternate
 * signal stacks, coroutines, many of which may share one mapping) the memory closely below the open call. A call above
 * an open call on the thread's own stack means that the open call was left. Elsewhere the two cases look the same: the
 * new call is taken to be on another stack and loses only its return. A coroutine whose stack is inside a frame of the
 * thread's own stack is not recognised.
 *
 * Not here: kernels without session programs, whose return probes cannot be declined.
 */
#ifndef GPUREC_STACK_H
#define GPUREC_STACK_H

/* The largest distance of nested calls below an open call. */
#define NEAR (16 << 10)

struct range {
	u64 low;
	u64 size;
};

static long range_of(struct task_struct *task, struct vm_area_struct *vma, void *to)
{
	struct range *range = to;

	range->low = vma->vm_start;
	range->size = vma->vm_end - vma->vm_start;
	return 0;
}

static __always_inline bool is_in(const struct range *range, u64 address)
{
	return address - range->low < range->size;
}

/* The address to which Linux redirects probed returns; 0: unknown. */
static __always_inline u64 trampoline(struct task_struct *task)
{
	struct xol_area *area = NULL;

	if (!bpf_core_field_exists(area->vaddr))
		return 0;
	area = BPF_CORE_READ(task, mm, uprobes_state.xol_area);
	return area ? BPF_CORE_READ(area, vaddr) : 0;
}

/* Does the frame of the call at `sp` still have the return address that Linux wrote there? */
static __always_inline bool is_open(struct task_struct *task, u64 sp)
{
#if defined(__TARGET_ARCH_x86)
	u64 address = 0;

	return !bpf_probe_read_user(&address, sizeof(address), (void *)sp) && address && address == trampoline(task);
#else
	return true;
#endif
}

/* Is an address in the stack that the thread began with? Linux created the first thread's stack; other threads have
 * their thread-local memory at its upper end. */
static __always_inline bool is_on_own_stack(struct task_struct *task, const struct range *mapping, u64 address)
{
	u64 local;

	if (!is_in(mapping, address))
		return false;
	if (is_in(mapping, BPF_CORE_READ(task, mm, start_stack)))
		return true;
#if defined(__TARGET_ARCH_x86)
	local = BPF_CORE_READ(task, thread.fsbase);
#else
	local = BPF_CORE_READ(task, thread.uw.tp_value);
#endif
	return task->pid != task->tgid && is_in(mapping, local) && address < local;
}

/* Not static: the verifier checks it once. */
__attribute__((noinline)) u32 look_at_stack(u64 sp)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread *t = bpf_task_storage_get(&threads, task, 0, 0);
	struct range alternate = {}, mapping = {};
	u64 open;
	bool own;

	if (!t)
		return 0;
	open = t->outermost;
	if (open && !is_open(task, open))
		open = t->outermost = 0;
	alternate.low = task->sas_ss_sp;
	alternate.size = task->sas_ss_size;
	/* Fails while another thread changes the mappings. */
	if (!is_in(&alternate, sp))
		bpf_find_vma(task, sp, range_of, &mapping, 0);
	own = is_on_own_stack(task, &mapping, sp);
	if (own) {
		if (open && (!is_on_own_stack(task, &mapping, open) || is_in(&alternate, open)))
			return 1;
		if (sp > open)
			t->outermost = 0;
		t->stack_low = mapping.low;
		t->stack_size = mapping.size;
		return 0;
	}
	if (open && (sp > open || open - sp >= NEAR || is_in(&alternate, open) != is_in(&alternate, sp)))
		return 1;
	if (open && mapping.size && !is_in(&mapping, open))
		return 1;
	t->stack_low = sp - NEAR;
	t->stack_size = NEAR + 1;
	return 0;
}

/* Almost always the stack is that of the previous call. */
static __always_inline bool is_on_another_stack(struct thread *t, u64 sp)
{
	if (sp - t->stack_low < t->stack_size && (!t->outermost || sp <= t->outermost))
		return false;
	return look_at_stack(sp);
}

static __always_inline u64 return_address(struct pt_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	u64 address = 0;

	bpf_probe_read_user(&address, sizeof(address), (void *)PT_REGS_SP(regs));
	return address;
#else
	return PT_REGS_RET(regs);
#endif
}

/* Is the return address the uretprobe trampoline? Then a tail call reached this function, and its frame shares the
 * stack slot of the previous one. Reading the target's stack is the most expensive part of a hit, so it happens only
 * where such a frame is possible. */
static __always_inline bool is_chained(struct task_struct *task, struct thread *t, struct pt_regs *regs)
{
	u64 to;

	if (PT_REGS_SP(regs) <= t->open_above)
		return false;
	to = trampoline(task);
	return to && to == return_address(regs);
}

#endif

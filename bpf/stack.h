/*
 * Calls on another stack than the one on which the thread has a call open: in a signal handler on its alternate stack,
 * in a coroutine.
 * In: the stack pointer of a call. Out: whether its return can be watched.
 *
 * The kernel keeps the return addresses that it took away in a list for each thread, and drops those that lie below a
 * new call's stack pointer: on one stack these calls were left without a return. A call on another stack above makes it
 * drop calls that are still open; when they return, the program runs into memory that is not there, and is killed.
 * Switching to another stack below and back has the same end. So a call on another stack is recorded without its return.
 *
 * What a stack is: the alternate signal stack, or one mapping of memory. Coroutine stacks can lie in one mapping. Then a
 * call above an open one is either on another stack, or the open call was left (longjmp, an exception) and its return
 * address has not been overwritten: except on the thread's own stack, it is taken for the former, which harms nobody.
 *
 * Not here: kernels without session programs, whose return probes cannot be declined.
 */
#ifndef GPUREC_STACK_H
#define GPUREC_STACK_H

/* A stack in use grows downwards by no more than this between two calls. Where its mapping cannot be asked for. */
#define NEAR_ON_STACK (256 << 10)

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

static __always_inline void alternate_stack(struct task_struct *task, struct range *range)
{
	range->low = task->sas_ss_sp;
	range->size = task->sas_ss_size;
}

/* Where the kernel sends returns that are watched; 0: not known. */
static __always_inline u64 trampoline(struct task_struct *task)
{
	struct xol_area *area = NULL;

	if (!bpf_core_field_exists(area->vaddr))
		return 0;
	area = BPF_CORE_READ(task, mm, uprobes_state.xol_area);
	return area ? BPF_CORE_READ(area, vaddr) : 0;
}

/* Does the frame of the call at `sp` still have the return address that the kernel put there? */
static __always_inline bool is_open(struct task_struct *task, u64 sp)
{
#if defined(__TARGET_ARCH_x86)
	u64 address = 0;

	return !bpf_probe_read_user(&address, sizeof(address), (void *)sp) && address && address == trampoline(task);
#else
	return true;
#endif
}

/* The stack that the thread began with. Its thread-local memory lies at the upper end, unless it is the first thread. */
static __always_inline bool is_threads_own(struct task_struct *task, const struct range *range)
{
#if defined(__TARGET_ARCH_x86)
	if (is_in(range, BPF_CORE_READ(task, thread.fsbase)))
		return true;
#else
	if (is_in(range, BPF_CORE_READ(task, thread.uw.tp_value)))
		return true;
#endif
	return is_in(range, BPF_CORE_READ(task, mm, start_stack));
}

/* Not static: verified once, by itself. */
__attribute__((noinline)) u32 look_at_stack(u64 sp)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread *t = bpf_task_storage_get(&threads, task, 0, 0);
	struct range alternate, stack = {};
	bool on_alternate, is_same;
	u64 open;

	if (!t)
		return 0;
	alternate_stack(task, &alternate);
	on_alternate = is_in(&alternate, sp);
	if (on_alternate)
		stack = alternate;
	else
		bpf_find_vma(task, sp, range_of, &stack, 0);
	open = t->outermost;
	if (open && !is_open(task, open))
		open = t->outermost = 0;
	if (open && stack.size)
		is_same = is_in(&stack, open) && on_alternate == is_in(&alternate, open);
	else
		is_same = !open || (sp <= open && open - sp < NEAR_ON_STACK);
	if (open && is_same && sp > open) {
		if (on_alternate || !is_threads_own(task, &stack))
			return 1;
		t->outermost = 0;
	}
	if (!is_same)
		return 1;
	t->stack_low = stack.low;
	t->stack_size = stack.size;
	return 0;
}

/* Almost always the stack is the one of the call before. */
static __always_inline bool is_on_another_stack(struct thread *t, u64 sp)
{
	if (sp - t->stack_low < t->stack_size && (!t->outermost || sp <= t->outermost))
		return false;
	return look_at_stack(sp);
}

#endif

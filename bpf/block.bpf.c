/*
 * PyTorch's own blocks. In: a hit of a static probe (USDT) of its allocator, with the numbers of probe and site as its
 * cookie. Out: a gpurec_block in this CPU's ring.
 *
 * A static probe may be anywhere in a function, and its arguments in any register or on the stack: the recorder has read
 * from the library where they are (gpurec_site). The program is loaded when the first such library is.
 * Not here: what a block means.
 */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "gpurec.h"
#include "maps.h"
#include "emit.h"
#include "budget.h"

#ifdef STACKS
#include "capture.h"
#include "frames.h"
#include "stack.h"
#include "send.h"
#include "stacks.h"

/* The probe's instruction is one byte long and behaves like a call that has returned: so the frame's rule is found as
 * that of any other frame. The stack is of this hit alone, and no return will end it. */
__attribute__((noinline)) u64 take_block_stack(u64 sp, u64 ip)
{
	struct thread *t = bpf_task_storage_get(&threads, bpf_get_current_task_btf(), 0, 0);
	u64 key;

	if (!t || sp < t->stack_sp)
		return 0;
	key = take_stack_from(t, sp, ip + 1);
	t->stack_sp = 0;
	return key;
}
#else
static __always_inline u64 take_block_stack(u64 sp, u64 ip)
{
	return 0;
}
#endif

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GPUREC_SITES);
	__type(key, u32);
	__type(value, struct gpurec_site);
} sites SEC(".maps");

#if defined(__TARGET_ARCH_x86)
/* In assembly, because the compiler would merge these reads into one at a variable offset, and the verifier allows
 * reads from the context only at constant offsets. */
#define SAVED(at)                                                                          \
	case at:                                                                           \
		__asm__ volatile("%0 = *(u64 *)(%1 + " #at ")" : "=r"(value) : "r"(regs)); \
		break

/* Without a helper: with one for each argument, a hit with four arguments took 70 ns longer. */
static __always_inline u64 register_at(struct pt_regs *regs, u16 at)
{
	u64 value = 0;

	switch (at) {
		SAVED(0);
		SAVED(8);
		SAVED(16);
		SAVED(24);
		SAVED(32);
		SAVED(40);
		SAVED(48);
		SAVED(56);
		SAVED(64);
		SAVED(72);
		SAVED(80);
		SAVED(88);
		SAVED(96);
		SAVED(104);
		SAVED(112);
		SAVED(152);
	}
	return value;
}
#else
static __always_inline u64 register_at(struct pt_regs *regs, u16 at)
{
	u64 value = 0;

	if (at != GPUREC_NO_REGISTER)
		bpf_probe_read_kernel(&value, sizeof(value), (void *)regs + at);
	return value;
}
#endif

/* Returns whether the argument could be read. No read waits for a page (capture.h). */
static __noinline bool read_argument(struct pt_regs *regs, const struct gpurec_argument *argument, u64 *to)
{
	u32 size = argument->size, unused;
	u64 value = argument->value;

	if (argument->kind == GPUREC_ARGUMENT_NONE || !size || size > sizeof(value))
		return false;
	if (argument->kind == GPUREC_ARGUMENT_REGISTER) {
		value = register_at(regs, argument->base);
	} else if (argument->kind == GPUREC_ARGUMENT_MEMORY) {
		u64 address = value + register_at(regs, argument->base);

		address += register_at(regs, argument->index) << (argument->shift & 63);
		value = 0;
		if (bpf_probe_read_user(&value, size, (void *)address))
			return false;
	}
	unused = (64 - 8 * size) & 63;
	value <<= unused;
	*to = argument->is_signed ? (u64)((s64)value >> unused) : value >> unused;
	return true;
}

static __always_inline bool send_block(struct pt_regs *regs, struct task_struct *task, struct thread *t, u32 probe, const struct gpurec_site *site, u64 stack)
{
	u64 values[GPUREC_ARGUMENTS] = {};
	struct gpurec_block *block;
	u32 known = 0, i;

#pragma unroll
	for (i = 0; i < GPUREC_ARGUMENTS; i++)
		known |= read_argument(regs, &site->arguments[i], &values[i]) << i;
	/* Only the pointer tells a block from others. */
	if (!(known & 1))
		return false;
	block = reserve_call(sizeof(*block));
	if (!block)
		return false;
	fill_head_of(&block->head, task, GPUREC_BLOCK, probe, t->seq);
	block->pid = task->tgid;
	block->operation = site->operation;
	block->known = known;
	block->sp = PT_REGS_SP(regs);
	block->stack = stack;
#pragma unroll
	for (i = 0; i < GPUREC_ARGUMENTS; i++)
		block->arguments[i] = values[i];
	submit(block);
	return true;
}

SEC("uprobe")
int block(struct pt_regs *regs)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u64 cookie = bpf_get_attach_cookie(regs);
	u32 probe = cookie, number = GPUREC_SITE_OF(cookie);
	const struct gpurec_site *site;
	struct thread *t;
	u64 stack = 0;

	keep_own_stack(regs);
	t = recorded_thread(task, probe);
	if (!t)
		return 0;
	budget_returned(probe);
	if (wants_stack(cookie))
		stack = take_block_stack(PT_REGS_SP(regs), PT_REGS_IP(regs));
	t->seq++;
	site = bpf_map_lookup_elem(&sites, &number);
	if (!site || !send_block(regs, task, t, probe, site, stack))
		count_lost_call(probe);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/*
 * What cuda.bpf.c asks of stacks.h, for programs without stacks.
 */
#ifndef GPUREC_STACKS_H
#define GPUREC_STACKS_H

static __always_inline bool has_stack(u64 cookie)
{
	return false;
}

static __always_inline void take_stack(u64 sp)
{
}

static __always_inline void stack_ends(struct thread *t, u64 sp)
{
}

static __always_inline void stack_is_elsewhere(struct thread *t)
{
}

#endif

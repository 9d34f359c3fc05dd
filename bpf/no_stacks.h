/*
 * What cuda.bpf.c asks of stacks.h, for programs without stacks.
 */
#ifndef GPUREC_STACKS_H
#define GPUREC_STACKS_H

#define STACK_KEY
#define PUT_STACK_KEY(call, to, t)

static __always_inline u32 put_stack_key(struct scratch *s, struct thread *t)
{
	return 0;
}

static __always_inline void begin_stack(struct thread *t, u64 cookie, u64 sp)
{
}

static __always_inline void stack_ends(struct thread *t, u64 sp)
{
}

static __always_inline void stack_is_elsewhere(struct thread *t)
{
}

#endif

/*
 * The only code that touches a ring, decides which thread is traced, or counts a lost record.
 */
#ifndef GPUREC_EMIT_H
#define GPUREC_EMIT_H

const volatile struct gpurec_config config = {};

const volatile u32 never = 0; /* the verifier does not know that it is always 0 */

/* From 6.13 on, Linux gives some programs a private stack, one for each CPU and not for each run. Programs at
 * uprobes can be preempted, and sleep, so a second thread on the CPU would run on the same stack. A program with a
 * tail call stays on the thread's stack, even if the call can never happen. */
static __always_inline void keep_own_stack(void *ctx)
{
	if (never)
		bpf_tail_call(ctx, (void *)0, 0);
}

/* enum gpurec_phase, written by the recorder. */
static __always_inline u32 phase_now(void)
{
	u32 zero = 0;
	struct gpurec_state *s = bpf_map_lookup_elem(&state, &zero);

	return s ? s->phase : GPUREC_SILENT;
}

/* Do the hook's calls have stacks? */
static __always_inline bool wants_stack(u64 cookie)
{
	return cookie >> 48 & GPUREC_WANTS_STACK;
}

/* Are Linux-side calls recorded now? */
static __always_inline bool kernel_begins(void)
{
	u32 zero = 0;
	struct gpurec_state *s = bpf_map_lookup_elem(&state, &zero);

	return s && s->kernel && s->phase == GPUREC_RECORDING;
}

static __always_inline bool is_target(u32 pid)
{
	return config.everyone || bpf_map_lookup_elem(&targets, &pid);
}

/* The thread's state, which says whether it is traced. A thread keeps its first answer: processes become targets
 * before their first hook can fire. NULL only if memory was short, or if a preempted thread was just getting its own
 * state. */
static __always_inline struct thread *thread_state(struct task_struct *task)
{
	struct thread *t = bpf_task_storage_get(&threads, task, 0, 0);

	if (!t) {
		t = bpf_task_storage_get(&threads, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
		if (!t)
			return NULL;
		t->traced = is_target(task->tgid);
		if (config.everyone) {
			/* With --all the map holds no targets, but the processes whose end is reported. */
			u32 pid = task->tgid, one = 1;

			bpf_map_update_elem(&targets, &pid, &one, BPF_ANY);
		}
		t->open_above = ~0ULL;
	}
	return t;
}

#include "pause.h"

/* Reserves space in one of the two rings. Returns its offset in the CPU's part, or 0 if there is none. Any other
 * program on this CPU that preempts or interrupts this one reserves its space in the same way. */
static __always_inline u64 room_in(void *part, u64 which, u64 data, u64 size, u64 limit, u32 length)
{
	struct gpurec_positions *at = part + which * sizeof(*at);
	u64 room = ((u64)length + GPUREC_RING_HEADER + 7) & ~7ULL;
	u64 head = *(volatile u64 *)&at->head, seen;
	u32 i;

#pragma unroll
	for (i = 0; i < 3; i++) {
		if (head + room - *(volatile u64 *)&at->tail > limit)
			return 0;
		seen = __sync_val_compare_and_swap(&at->head, head, head + room);
		if (seen == head) {
			u64 place = data + (head & (size - 1));

			/* The final header with every bit inverted. */
			*(u64 *)(part + place) = ~((head ^ config.secret) << 16 | length);
			return place + GPUREC_RING_HEADER;
		}
		head = seen;
	}
	return 0;
}

/* Not static: the verifier checks it once, and the code after a call sees one offset instead of one for each ring. */
__attribute__((noinline)) u64 find_room(u32 cpu, u32 length, u64 limit)
{
	void *part = bpf_map_lookup_elem(&rings, &cpu);
	struct gpurec_positions *far;
	u64 at;

	if (!part)
		return 0;
	at = room_in(part, 0, GPUREC_RING_DATA, config.near_size, config.near_size, length);
	if (at)
		return at;
	at = room_in(part, 1, config.far_at, config.far_size, limit, length);
	far = part + sizeof(*far);
	if (config.pause_at && *(volatile u64 *)&far->head - *(volatile u64 *)&far->tail > config.pause_at)
		pause_current();
	return at;
}

/* The common case: the near ring has space, and no other program interferes. Returns 0 otherwise. Inline, because a
 * call and its return cost as much as the rest. `nothing` hides from the verifier which ring it is, so that it
 * checks the code after this only once. */
static __always_inline u64 room_nearby(void *part, u32 length)
{
	struct gpurec_positions *at = part;
	u64 room = ((u64)length + GPUREC_RING_HEADER + 7) & ~7ULL;
	u64 head = *(volatile u64 *)&at->head;
	u64 place = GPUREC_RING_DATA + (head & (config.near_size - 1));

	if (head + room - *(volatile u64 *)&at->tail > config.near_size)
		return 0;
	if (__sync_val_compare_and_swap(&at->head, head, head + room) != head)
		return 0;
	*(u64 *)(part + place) = ~((head ^ config.secret) << 16 | length);
	return (place + GPUREC_RING_HEADER) ^ *(volatile u64 *)&at->nothing;
}

/* Reserves space for a record. The timestamp is taken after this succeeds: then no record with an earlier time can
 * appear in a ring that was read empty at a later one. */
static __always_inline void *reserve_up_to(u64 limit, u32 length, bool often)
{
	u32 cpu = bpf_get_smp_processor_id();
	void *part = bpf_map_lookup_elem(&rings, &cpu);
	u64 at;

	if (!part)
		return NULL;
	at = often ? room_nearby(part, length) : 0;
	if (!at)
		at = find_room(cpu, length, limit);
	if (at < GPUREC_RING_DATA || at > config.far_at + config.far_size)
		return NULL;
	return part + at;
}

static __always_inline void *reserve(u32 length)
{
	return reserve_up_to(config.far_size, length, true);
}

/* The same in less code, for paths that most calls do not take. */
static __always_inline void *reserve_seldom(u32 length)
{
	return reserve_up_to(config.far_size, length, false);
}

/* The same for a call, which may fill the rings only up to the reserve for records that can no longer be declined:
 * the returns of recorded calls, forks, execs and exits. */
static __always_inline void *reserve_call(u32 length)
{
	return reserve_up_to(config.call_limit, length, true);
}

static __always_inline void *reserve_call_seldom(u32 length)
{
	return reserve_up_to(config.call_limit, length, false);
}

/* Does not wake the reader, which polls every few milliseconds: waking it costs more than a record. */
static __always_inline void submit(void *written)
{
	u64 *header = written - GPUREC_RING_HEADER;

#if defined(__TARGET_ARCH_x86)
	/* x86 keeps stores in order. */
	barrier();
	*(volatile u64 *)header = ~*header;
#else
	__sync_lock_test_and_set(header, ~*header);
#endif
}

/* `task` is the current one: fetching it again would cost a call. */
static __always_inline void fill_head_of(struct gpurec_head *head, struct task_struct *task, u16 kind, u32 probe, u32 seq)
{
	head->ts = bpf_ktime_get_ns();
	head->tid = task->pid;
	head->seq = seq;
	head->kind = kind;
	head->flags = 0;
	head->probe = probe;
}

static __always_inline void fill_head(struct gpurec_head *head, u16 kind, u32 probe, u32 seq)
{
	fill_head_of(head, bpf_get_current_task_btf(), kind, probe, seq);
}

/* Counts a record that found no space: in the total and, for a call or return, for its probe. */
#define COUNT_LOST(field)                                                                \
	do {                                                                             \
		u32 zero_ = 0;                                                           \
		struct gpurec_lost_total *t_ = bpf_map_lookup_elem(&lost_total, &zero_); \
		if (t_)                                                                  \
			__sync_fetch_and_add(&t_->field, 1);                             \
	} while (0)

static __always_inline void count_lost_call(u32 probe)
{
	struct gpurec_lost *l = bpf_map_lookup_elem(&lost, &probe);

	if (l)
		__sync_fetch_and_add(&l->calls, 1);
	COUNT_LOST(calls);
}

static __always_inline void count_lost_return(u32 probe)
{
	struct gpurec_lost *l = bpf_map_lookup_elem(&lost, &probe);

	if (l)
		__sync_fetch_and_add(&l->returns, 1);
	COUNT_LOST(returns);
}

#endif

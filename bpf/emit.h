/*
 * The only code that touches a ring, decides who is traced, or counts a drop.
 */
#ifndef GPUREC_EMIT_H
#define GPUREC_EMIT_H

const volatile struct gpurec_config config = {};

const volatile u32 never = 0; /* a value that only the verifier knows */

/* Kernels from 6.13 on give some programs a stack of their own, one for each CPU and not for
 * each run. Programs at uprobes can be preempted, and sleep, so a second thread on the CPU
 * would run on the same stack. A program with a tail call keeps to the thread's stack, also
 * if it can never be made. */
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

/* Does what lies beneath the calls begin to be recorded? */
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

/* The thread's state, which says whether it is traced. A thread keeps its first answer:
 * processes are made targets before their first hook can fire. NULL only if there was no
 * memory for it, or a preempted thread was just getting its own. */
static __always_inline struct thread *thread_state(struct task_struct *task)
{
	struct thread *t = bpf_task_storage_get(&threads, task, 0, 0);

	if (!t) {
		t = bpf_task_storage_get(&threads, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
		if (!t)
			return NULL;
		t->traced = is_target(bpf_get_current_pid_tgid() >> 32);
	}
	return t;
}

/* Room in this CPU's ring. The timestamp is taken after this succeeds: then no record
 * with an earlier time can appear in a ring that was read empty at a later one. */
static __always_inline void *reserve(u64 size)
{
	u32 cpu = bpf_get_smp_processor_id();
	void *ring = bpf_map_lookup_elem(&rings, &cpu);

	return ring ? bpf_ringbuf_reserve(ring, size, 0) : NULL;
}

/* The same for a call, which may only fill the ring to the reserve kept for what cannot
 * be declined any more: the returns of recorded calls, forks, execs and exits. */
static __always_inline void *reserve_call(u64 size)
{
	u32 cpu = bpf_get_smp_processor_id();
	void *ring = bpf_map_lookup_elem(&rings, &cpu);

	if (!ring || bpf_ringbuf_query(ring, BPF_RB_AVAIL_DATA) > config.call_limit)
		return NULL;
	return bpf_ringbuf_reserve(ring, size, 0);
}

/* The reader looks every few milliseconds by itself: waking it costs more than a record. */
static __always_inline void submit(void *record)
{
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
}

static __always_inline void fill_head(struct gpurec_head *head, u16 kind, u32 probe, u32 seq)
{
	head->ts = bpf_ktime_get_ns();
	head->tid = (u32)bpf_get_current_pid_tgid();
	head->seq = seq;
	head->kind = kind;
	head->flags = 0;
	head->probe = probe;
}

/* Counts what found no room, in the total and, for a call or return, for its probe. */
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

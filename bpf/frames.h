/*
 * Calls under way: which of a thread's have not returned, and where what they leave behind is to
 * be read. In: a call's stack pointer and time. Out: its frame or its note again at the return.
 * Both follow the kernel's own rule for uretprobes: what lies at or below a new call's stack
 * pointer was left without a return (longjmp, an exception), and is dead.
 * Not here: what is read, and what is told.
 */
#ifndef GPUREC_FRAMES_H
#define GPUREC_FRAMES_H

/* 1 if `a` is less than `b`, else 0: without a branch, each of which would double what the
 * verifier has to go through. For numbers below 2^63, as stack pointers and times are. */
static __always_inline u64 is_less(u64 a, u64 b)
{
	u64 difference = a - b;

	barrier_var(difference);
	return difference >> 63;
}

/* How many frames lie above a stack pointer, or began before a time: they are in order, so
 * a few steps of halving find it. Not static: verified once, by themselves. */
#define FRAMES_WHILE(less)                                                          \
	struct frames *open_ = bpf_task_storage_get(&frames, bpf_get_current_task_btf(), 0, 0); \
	u64 count_ = 0, step_;                                                      \
	if (!open_)                                                                 \
		return 0;                                                           \
	_Pragma("unroll")                                                           \
	for (step_ = GPUREC_MAX_FRAMES; step_; step_ >>= 1) {                       \
		u64 next_ = count_ + step_, index_ = next_ - 1;                     \
		struct frame *frame;                                                \
		barrier_var(index_); /* older verifiers want to see it bounded */   \
		frame = &open_->at[index_ & (GPUREC_MAX_FRAMES - 1)];               \
		count_ += (is_less(next_, open_->depth + 1ULL) & (less)) * step_;   \
	}                                                                           \
	return count_

__attribute__((noinline)) u32 frames_above(u64 sp)
{
	FRAMES_WHILE(is_less(sp, frame->sp));
}

__attribute__((noinline)) u32 frames_before(u64 ts)
{
	FRAMES_WHILE(is_less(frame->ts, ts));
}

/* Dead frames go; the new one is kept, if it was recorded. False: there was no memory for it.
 * Of calls nested more deeply than this the kernel does not see the return either. */
static __always_inline bool keep_frame(struct task_struct *task, u64 sp, bool chained, u64 ts, const struct place *exits, u32 late)
{
	struct frames *open = bpf_task_storage_get(&frames, task, 0, ts ? BPF_LOCAL_STORAGE_GET_F_CREATE : 0);
	struct frame *top;
	u64 sp_limit;
	u32 i;

	if (!open)
		return !ts;
	/* A function reached by a tail call shares its frame with the one before. Mostly all are
	 * alive: then the last is, and the others need not be fetched from where they lie. */
	sp_limit = chained ? sp - 1 : sp;
	top = &open->at[(open->depth - 1) & (GPUREC_MAX_FRAMES - 1)];
	if (open->depth && top->sp <= sp_limit)
		open->depth = frames_above(sp_limit);
	if (!ts || open->depth >= GPUREC_MAX_FRAMES)
		return true;
	top = &open->at[open->depth & (GPUREC_MAX_FRAMES - 1)];
	top->sp = sp;
	top->ts = ts;
	top->late = late;
#pragma unroll
	for (i = 0; i < GPUREC_READS; i++)
		top->exit[i] = exits[i];
	open->depth++;
	return true;
}

/* The frame of the call that began at `ts`, if it was kept. What was opened after it is dead. */
static __always_inline struct frame *frame_of(struct task_struct *task, u64 ts)
{
	struct frames *open = bpf_task_storage_get(&frames, task, 0, 0);
	struct frame *frame;
	u32 before;

	if (!open)
		return NULL;
	before = open->depth - 1;
	if (!open->depth || open->at[before & (GPUREC_MAX_FRAMES - 1)].ts != ts)
		before = frames_before(ts);
	if (before >= open->depth)
		return NULL;
	open->depth = before;
	frame = &open->at[before & (GPUREC_MAX_FRAMES - 1)];
	return frame->ts == ts ? frame : NULL;
}

/* Notes where the call that began at `ts` leaves what is wanted of it. A note at or below the
 * new one is dead, as with frames. False: all are in use. */
static __always_inline bool await(struct thread *t, u64 sp, bool chained, u64 ts, u64 pointer)
{
	u64 limit = chained ? sp - 1 : sp;
	u32 i;

#pragma unroll
	for (i = 0; i < GPUREC_AWAITED; i++) {
		struct awaited *note = &t->awaited[i];

		if (note->begin && note->sp > limit)
			continue;
		note->begin = ts;
		note->sp = sp;
		note->pointer = pointer;
		return true;
	}
	return false;
}

/* Where that is; whether it was noted. */
static __always_inline bool awaited_from(struct thread *t, u64 begin, u64 *pointer)
{
	u32 i;

#pragma unroll
	for (i = 0; i < GPUREC_AWAITED; i++) {
		if (t->awaited[i].begin != begin)
			continue;
		t->awaited[i].begin = 0;
		*pointer = t->awaited[i].pointer;
		return true;
	}
	return false;
}

#endif

/*
 * Calls in progress: which of a thread's calls have not returned, and where to read their outputs.
 * In: a call's stack pointer and time. Out: its frame or its note, found again at the return.
 * Both follow Linux's own rule for uretprobes: a call at or below a new call's stack pointer was left without a return
 * (longjmp, an exception), and is dead.
 * Not here: what is read, and what is recorded.
 */
#ifndef GPUREC_FRAMES_H
#define GPUREC_FRAMES_H

/* 1 if `a` is less than `b`, else 0. Without a branch, because each would double the paths that the verifier has to
 * check. For numbers below 2^63, such as stack pointers and times. */
static __always_inline u64 is_less(u64 a, u64 b)
{
	u64 difference = a - b;

	barrier_var(difference);
	return difference >> 63;
}

/* The number of frames above a stack pointer, or with a begin before a time: frames are in order, so a binary search
 * finds it. Not static: the verifier checks each function once. */
#define FRAMES_WHILE(less)                                                          \
	struct frames *open_ = bpf_task_storage_get(&frames, bpf_get_current_task_btf(), 0, 0); \
	u64 count_ = 0, step_;                                                      \
	if (!open_)                                                                 \
		return 0;                                                           \
	_Pragma("unroll")                                                           \
	for (step_ = GPUREC_MAX_FRAMES; step_; step_ >>= 1) {                       \
		u64 next_ = count_ + step_, index_ = next_ - 1;                     \
		struct frame *frame;                                                \
		barrier_var(index_); /* older verifiers need a visible bound */   \
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

/* Drops dead frames and keeps the new one if its call was recorded. False if memory was short. Linux itself does not
 * see the return of calls nested more deeply than this. */
static __always_inline bool keep_frame(struct task_struct *task, u64 sp, bool chained, u64 ts, const struct place *exits, u32 late)
{
	struct frames *open = bpf_task_storage_get(&frames, task, 0, ts ? BPF_LOCAL_STORAGE_GET_F_CREATE : 0);
	struct frame *top;
	u64 sp_limit;
	u32 i;

	if (!open)
		return !ts;
	/* A function reached by a tail call shares its frame with the previous one. Usually all frames are alive:
	 * then the last one is, and the others need not be fetched from memory. */
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

/* The frame of the call that began at `ts`, if it was kept. Frames opened after it are dead. */
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

/* Notes where the call that began at `ts` leaves its output. A note at or below the new one is dead, as with frames.
 * False if all notes are in use. */
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

/* Finds the pointer to that output. Returns whether it was noted. */
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

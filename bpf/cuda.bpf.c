/*
 * CUDA entry and return. In: a uprobe hit, with the probe's id as its cookie. Out: a
 * gpurec_call and a gpurec_return in this CPU's ring.
 *
 * Three ways to be attached, one source: a session program (6.13+), a multi pair
 * (6.6+), or single uprobes. The recorder loads only the programs of the rung in use.
 * Beyond registers and return value it takes what the recorder's table asks for
 * (capture.h). Not here: what a call means.
 */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "gpurec.h"
#include "maps.h"
#include "emit.h"
#include "capture.h"
#include "budget.h"

/* The kernel's own memory between a call's entry and its return. The newer form takes
 * the context; both are weak, and the programs of the other rungs use neither. */
extern u64 *bpf_session_cookie(void) __weak __ksym;
extern u64 *bpf_session_cookie___ctx(void *ctx) __weak __ksym;

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

/* Is the return address the uretprobe trampoline? Then this function was reached by a
 * tail call, and its frame shares the stack slot of the one before. Reading what the target
 * has on its stack is the dearest part of a hit, so that is done only where there may be
 * such a frame. */
static __always_inline bool is_chained(struct task_struct *task, struct thread *t, struct pt_regs *regs)
{
	struct xol_area *area = NULL;
	u64 vaddr = 0;

	if (PT_REGS_SP(regs) <= t->open_above || !bpf_core_field_exists(area->vaddr))
		return false;
	area = BPF_CORE_READ(task, mm, uprobes_state.xol_area);
	if (area)
		vaddr = BPF_CORE_READ(area, vaddr);
	return vaddr && vaddr == return_address(regs);
}

/* Sizes of records with something behind them. Room in a ring is asked for in sizes that
 * are known when the program is loaded; what is not used stays unread. Kernel names, of
 * which a large library registers tens of thousands at once, are of every length. */
#define SIZES(each) each(192) each(384) each(768) each(1536) each(3072) each(GPUREC_PAYLOAD + 128)

/* A record from the scratch memory into the ring. The time is taken with the room in hand;
 * returns it, or 0 if there was no room. */
#define SEND(size, room)                                                      \
	({                                                                    \
		struct gpurec_head *to_ = room(size);                         \
		u64 ts_ = 0;                                                  \
		if (to_) {                                                    \
			bpf_probe_read_kernel(to_, size, s);                  \
			to_->ts = ts_ = bpf_ktime_get_ns();                   \
			submit(to_);                                          \
		}                                                             \
		ts_;                                                          \
	})

#define SEND_CALL(limit)                            \
	if (size <= (limit))                        \
		return SEND(limit, reserve_call);
#define SEND_RETURN(limit)                          \
	if (size <= (limit))                        \
		return SEND(limit, reserve);

static __always_inline u64 send_call(const struct scratch *s, u32 size)
{
	SIZES(SEND_CALL)
	return 0;
}

static __always_inline u64 send_return(const struct scratch *s, u32 size)
{
	SIZES(SEND_RETURN)
	return 0;
}

static __always_inline void fill_call(struct gpurec_call *call, struct task_struct *task, struct pt_regs *regs, u32 probe, u32 seq, bool chained)
{
	fill_head_of(&call->head, task, GPUREC_CALL, probe, seq);
	if (chained)
		call->head.flags = GPUREC_CHAINED;
	call->pid = task->tgid;
	call->payload = 0;
	call->words = 0;
	call->sp = PT_REGS_SP(regs);
	call->args[0] = PT_REGS_PARM1(regs);
	call->args[1] = PT_REGS_PARM2(regs);
	call->args[2] = PT_REGS_PARM3(regs);
	call->args[3] = PT_REGS_PARM4(regs);
	call->args[4] = PT_REGS_PARM5(regs);
	call->args[5] = PT_REGS_PARM6(regs);
}

/* Reads what the plan wants at entry behind the call in the scratch memory, and notes
 * where it wants to read at the return. */
static __noinline int read_entry(struct pt_regs *regs, const struct gpurec_capture *plan, struct scratch *s, struct place *exits, u32 key)
{
	struct reader r = {.key = key};
	u32 bytes = plan->words * 8;
	u64 stack = PT_REGS_SP(regs);
	u32 i;

#if defined(__TARGET_ARCH_x86)
	stack += 8; /* over the return address */
#endif
	if (bytes > GPUREC_WORDS * 8)
		bytes = GPUREC_WORDS * 8;
	if (bytes && !bpf_probe_read_user(s->payload, bytes, (void *)stack)) {
		r.words = bytes / 8;
		r.used = bytes;
	}
	for (i = 0; i < GPUREC_READS && i < plan->entry_reads; i++) {
		struct place place = {};

		find_place(&r, &plan->entry[i], &place);
		read_piece(&r, &plan->entry[i], &place, i);
	}
	for (i = 0; i < GPUREC_READS && i < plan->exit_reads; i++)
		find_place(&r, &plan->exit[i], &exits[i]);
	s->call.payload = r.used;
	s->call.words = r.words;
	return 0;
}

static __noinline int read_exit(const struct gpurec_capture *plan, struct scratch *s, struct place *exits, u32 key)
{
	struct reader r = {.key = key};
	u32 i;

	for (i = 0; i < GPUREC_READS && i < plan->exit_reads; i++)
		read_piece(&r, &plan->exit[i], &exits[i], GPUREC_READS);
	s->ret.payload = r.used;
	return 0;
}

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
		u64 next_ = count_ + step_;                                         \
		struct frame *frame = &open_->at[(next_ - 1) & (GPUREC_MAX_FRAMES - 1)]; \
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
static __always_inline bool keep_frame(struct task_struct *task, u64 sp, bool chained, u64 ts, const struct place *exits)
{
	struct frames *open = bpf_task_storage_get(&frames, task, 0, ts ? BPF_LOCAL_STORAGE_GET_F_CREATE : 0);
	struct frame *top;
	u32 i;

	if (!open)
		return !ts;
	/* A function reached by a tail call shares its frame with the one before. */
	open->depth = frames_above(chained ? sp - 1 : sp);
	if (!ts || open->depth >= GPUREC_MAX_FRAMES)
		return true;
	top = &open->at[open->depth & (GPUREC_MAX_FRAMES - 1)];
	top->sp = sp;
	top->ts = ts;
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
	before = frames_before(ts);
	if (before >= open->depth)
		return NULL;
	open->depth = before;
	frame = &open->at[before & (GPUREC_MAX_FRAMES - 1)];
	return frame->ts == ts ? frame : NULL;
}

/* The stack pointer that a function had at its entry, at its return. */
static __always_inline u64 entry_sp(struct pt_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	return PT_REGS_SP(regs) - sizeof(u64); /* the return address has been popped */
#else
	return PT_REGS_SP(regs);
#endif
}

/* Has the program of the other reach told this hit? Whichever comes first does. */
static __always_inline bool is_told_already(struct thread *t, u32 probe, u64 sp)
{
	if (config.reach == GPUREC_ALWAYS_EVERYBODY)
		return false;
	if (t->told_by && t->told_by != config.reach && t->told_probe == probe && t->told_sp == sp) {
		t->told_by = 0;
		return true;
	}
	t->told_by = config.reach;
	t->told_probe = probe;
	t->told_sp = sp;
	return false;
}

/* Records the entry. Returns its timestamp, 0 if it isn't recorded. */
static __always_inline u64 enter(struct pt_regs *regs, struct task_struct *task, u32 probe, bool keep_always)
{
	const struct gpurec_capture *plan;
	struct place exits[GPUREC_READS] = {};
	struct gpurec_call *call;
	struct thread *t;
	u64 ts = 0;
	bool chained, more;

	if (phase_now() != GPUREC_RECORDING)
		return 0;
	t = thread_state(task);
	if (!t) {
		if (is_target(task->tgid))
			count_lost_call(probe);
		return 0;
	}
	if (!t->traced || budget_counts(probe) || is_told_already(t, probe, PT_REGS_SP(regs)))
		return 0;
	chained = is_chained(task, t, regs);
	/* A frame at this very place may be shared by what is reached from it by a tail call. */
	t->open_above = PT_REGS_SP(regs) - 1;
	t->seq++;
	plan = bpf_map_lookup_elem(&captures, &probe);
	more = plan && !plan->simple && (plan->words || plan->entry_reads || plan->exit_reads);
	if (more) {
		u32 key = free_scratch(task->pid);
		struct scratch *s = bpf_map_lookup_elem(&scratches, &key);

		if (s) {
			fill_call(&s->call, task, regs, probe, t->seq, chained);
			read_entry(regs, plan, s, exits, key);
			ts = send_call(s, sizeof(s->call) + s->call.payload);
			s->taken = 0;
		}
	} else {
		call = reserve_call(sizeof(*call));
		if (call) {
			fill_call(call, task, regs, probe, t->seq, chained);
			ts = call->head.ts;
			if (plan && plan->simple && plan->exit[0].source < 6)
				exits[0].pointer = call->args[plan->exit[0].source];
			submit(call);
		}
	}
	if (!ts)
		count_lost_call(probe);
	else if (PT_REGS_SP(regs) >= t->outermost)
		t->outermost = PT_REGS_SP(regs);
	/* Without its frame a pair's return is not known as this call's. */
	if ((keep_always || (plan && plan->exit_reads)) &&
	    !keep_frame(task, PT_REGS_SP(regs), chained, ts, exits) && keep_always)
		count_lost_return(probe);
	return ts;
}

/* A return with the one small thing that its call left behind a pointer, which is almost
 * always there: the function has just written it. */
struct small_return {
	struct gpurec_return ret;
	u8 pad[sizeof(struct gpurec_call) - sizeof(struct gpurec_return)];
	struct gpurec_piece piece;
	u8 bytes[GPUREC_SMALL];
};

/* Returns whether it could be read without waiting for a page. */
static __always_inline bool leave_simply(struct small_return *r, u32 size, u64 pointer)
{
	r->ret.payload = sizeof(r->piece);
	r->piece.pad = 0;
	r->piece.length = 0;
	r->piece.state = GPUREC_PIECE_NULL;
	if (!pointer)
		return true;
	if (size > sizeof(r->bytes) || bpf_probe_read_user(r->bytes, size, (void *)pointer))
		return false;
	r->ret.payload += (size + 7) & ~7U;
	r->piece.state = GPUREC_PIECE_READ;
	r->piece.length = size;
	return true;
}

static __always_inline void leave(struct pt_regs *regs, struct task_struct *task, u32 probe, u64 begin, struct frame *frame, bool kept)
{
	const struct gpurec_capture *plan;
	struct gpurec_return *ret;
	struct scratch *s = NULL;
	struct thread *t;
	bool cut = false;
	u32 key = 0;

	if (phase_now() == GPUREC_SILENT)
		return;
	t = thread_state(task);
	if (!t) {
		/* Only a recorded call has a return. */
		count_lost_return(probe);
		return;
	}
	if (!t->traced)
		return;
	budget_returned(probe);
	t->seq++;
	if (entry_sp(regs) >= t->outermost)
		t->outermost = 0;
	t->open_above = entry_sp(regs);
	plan = bpf_map_lookup_elem(&captures, &probe);
	/* What a call that failed left behind its pointers is nobody's business. */
	if (plan && plan->exit_reads && (int)PT_REGS_RC(regs) == 0) {
		if (!kept)
			frame = frame_of(task, begin);
		if (frame && plan->simple) {
			struct small_return *small = reserve(sizeof(*small));

			if (!small) {
				count_lost_return(probe);
				return;
			}
			fill_head_of(&small->ret.head, task, GPUREC_RETURN, probe, t->seq);
			small->ret.begin = begin;
			small->ret.value = PT_REGS_RC(regs);
			small->ret.pad = 0;
			if (leave_simply(small, plan->exit[0].size, frame->exit[0].pointer)) {
				submit(small);
				return;
			}
			small->ret.head.kind = GPUREC_NOTHING;
			submit(small);
		}
		if (frame) {
			key = free_scratch(task->pid);
			s = bpf_map_lookup_elem(&scratches, &key);
		}
		cut = !s;
	}
	if (s && frame) {
		fill_head_of(&s->ret.head, task, GPUREC_RETURN, probe, t->seq);
		s->ret.begin = begin;
		s->ret.value = PT_REGS_RC(regs);
		s->ret.pad = 0;
		read_exit(plan, s, frame->exit, key);
		if (!send_return(s, sizeof(s->call) + s->ret.payload))
			count_lost_return(probe);
		s->taken = 0;
		return;
	}
	ret = reserve(sizeof(*ret));
	if (!ret) {
		count_lost_return(probe);
		return;
	}
	fill_head_of(&ret->head, task, GPUREC_RETURN, probe, t->seq);
	if (cut)
		ret->head.flags = GPUREC_CUT;
	ret->begin = begin;
	ret->value = PT_REGS_RC(regs);
	ret->payload = 0;
	ret->pad = 0;
	submit(ret);
}

/* A call that found no room is not followed to its return: returning 1 tells the kernel
 * not to hijack the return address. So a return always has its call in the trace. */
static __always_inline int session(struct pt_regs *regs, u64 *begin)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u32 probe = bpf_get_attach_cookie(regs);

	/* The kernel hands a session zeroed memory at the entry, and no return comes without a
	 * time in it: asking the kernel which of the two this is would cost a call more. */
	if (*begin) {
		leave(regs, task, probe, *begin, NULL, false);
		return 0;
	}
	*begin = enter(regs, task, probe, false);
	return *begin == 0;
}

SEC("uprobe.session.s")
int cuda_session(struct pt_regs *regs)
{
	u64 *begin;

	keep_own_stack(regs);
	begin = bpf_session_cookie();
	return begin ? session(regs, begin) : 1;
}

SEC("uprobe.session.s")
int cuda_session_ctx(struct pt_regs *regs)
{
	u64 *begin;

	keep_own_stack(regs);
	begin = bpf_session_cookie___ctx(regs);
	return begin ? session(regs, begin) : 1;
}

/* The pair without session memory: also for single uprobes, where the recorder gives
 * the programs another attach type. */
SEC("uprobe.s")
int cuda_entry(struct pt_regs *regs)
{
	keep_own_stack(regs);
	enter(regs, bpf_get_current_task_btf(), bpf_get_attach_cookie(regs), true);
	return 0;
}

SEC("uretprobe.s")
int cuda_return(struct pt_regs *regs)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u32 probe = bpf_get_attach_cookie(regs);
	struct frames *open = bpf_task_storage_get(&frames, task, 0, 0);
	u64 sp = entry_sp(regs);
	struct frame *frame;
	u32 count;

	keep_own_stack(regs);
	if (!open)
		return 0;
	/* Of frames that tail calls share, the last comes back first. */
	count = frames_above(sp - 1);
	open->depth = count;
	if (!count)
		return 0;
	frame = &open->at[(count - 1) & (GPUREC_MAX_FRAMES - 1)];
	if (frame->sp != sp)
		return 0; /* its call was lost: nothing to end */
	open->depth = count - 1;
	leave(regs, task, probe, frame->ts, frame, true);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

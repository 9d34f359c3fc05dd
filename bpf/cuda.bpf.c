/*
 * CUDA entry and return. In: a uprobe hit, with the probe's id as its cookie. Out: a gpurec_call and a gpurec_return in
 * this CPU's ring.
 *
 * One source for three ways to attach: a session program (6.13+), a multi pair (6.6+), or single uprobes. The recorder
 * loads only the programs of the backend in use. In addition to registers and return value, the programs capture what
 * the recorder's table asks for (capture.h).
 * Not here: what a call means.
 */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "gpurec.h"
#include "maps.h"
#include "emit.h"
#include "capture.h"
#include "frames.h"
#include "stack.h"
#include "budget.h"
#include "send.h"

#ifdef STACKS
#include "stacks.h"
#else
#include "no_stacks.h"
#endif

/* Memory that Linux keeps between a call's entry and its return. The newer form takes the context; both are weak,
 * and the programs of the other backends use neither. */
extern u64 *bpf_session_cookie(void) __weak __ksym;
extern u64 *bpf_session_cookie___ctx(void *ctx) __weak __ksym;

#define SEND_CALL(limit)                            \
	if (size <= (limit))                        \
		return SEND(limit, reserve_call_seldom);
#define SEND_RETURN(limit)                          \
	if (size <= (limit))                        \
		return SEND(limit, reserve_seldom);

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

static __always_inline void fill_call(struct gpurec_call *call, struct task_struct *task, struct pt_regs *regs, u32 probe, u32 seq, u16 flags)
{
	fill_head_of(&call->head, task, GPUREC_CALL, probe, seq);
	call->head.flags = flags;
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

/* Places to read at the return, and as many again to which the branch-free code writes the places that it discards. */
#define ALL_EXITS (2 * GPUREC_READS)

/* Reads what the plan asks for at entry into the scratch memory after the call, and stores the places to read at the
 * return. Returns a bit for each read that failed and is worth another try at the return; reads that depend on other
 * reads are not. */
static __noinline int read_entry(struct pt_regs *regs, const struct gpurec_capture *plan, struct scratch *s, struct place *exits, u32 key)
{
	struct reader r = {.key = key};
	u32 bytes = plan->words * 8;
	u64 stack = PT_REGS_SP(regs);
	u64 at = plan->exit_reads, late = 0, failed, to;
	u32 i;

#if defined(__TARGET_ARCH_x86)
	stack += 8; /* skip the return address */
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
		failed = is_less(read_piece(&r, &plan->entry[i], &place, i) ^ GPUREC_PIECE_UNREADABLE, 1);
		/* Without a branch: each would double the paths that the verifier has to check. */
		failed &= is_less(plan->entry[i].source, GPUREC_INSIDE) & is_less(at, GPUREC_READS);
		to = at * failed + GPUREC_READS * (1 - failed);
		barrier_var(to);
		exits[to & (ALL_EXITS - 1)] = place;
		at += failed;
		late |= failed << i;
	}
	for (i = 0; i < GPUREC_READS && i < plan->exit_reads; i++)
		find_place(&r, &plan->exit[i], &exits[i]);
	s->call.payload = r.used;
	s->call.words = r.words;
	return late;
}

/* `succeeded`: after a failed call, the data at its output pointers means nothing. */
static __noinline int read_exit(const struct gpurec_capture *plan, struct scratch *s, struct frame *frame, u32 key, bool succeeded)
{
	struct reader r = {.key = key};
	u32 i, at = plan->exit_reads, late = frame->late;

	for (i = 0; i < GPUREC_READS && i < plan->exit_reads && succeeded; i++)
		read_piece(&r, &plan->exit[i], &frame->exit[i], GPUREC_READS);
	for (i = 0; i < GPUREC_READS && late; i++) {
		if (!(late & 1 << i))
			continue;
		read_piece(&r, &plan->entry[i], &frame->exit[at & (GPUREC_READS - 1)], GPUREC_READS + 1 + i);
		at++;
	}
	s->ret.payload = r.used;
	return 0;
}

/* At the return, computes the stack pointer that the function had at its entry. */
static __always_inline u64 entry_sp(struct pt_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	return PT_REGS_SP(regs) - sizeof(u64); /* the return address has been popped */
#else
	return PT_REGS_SP(regs);
#endif
}

/* The capture kind in a hook's cookie (enum gpurec_wants). */
static __always_inline u32 wants_of(u64 cookie)
{
	return (u8)(cookie >> 32);
}

static __always_inline u32 size_of_out(u64 cookie)
{
	return cookie >> 48 & (GPUREC_WANTS_STACK - 1);
}

static __always_inline u32 word_of(u64 cookie)
{
	return (u8)(cookie >> 40);
}

/* A call with a few words of its stack, which is always resident: straight into the ring. */
struct call_with_words {
	struct gpurec_call call;
	u64 words[GPUREC_FEW_WORDS];
	STACK_KEY
};

static __always_inline u64 send_with_words(struct pt_regs *regs, struct task_struct *task, struct thread *t, u64 cookie, u32 seq, u16 flags)
{
	struct call_with_words *with = reserve_call(sizeof(*with));
	u32 bytes = word_of(cookie) * 8;
	u64 stack = PT_REGS_SP(regs), ts;

	if (!with)
		return 0;
#if defined(__TARGET_ARCH_x86)
	stack += 8; /* over the return address */
#endif
	if (bytes > sizeof(with->words))
		bytes = sizeof(with->words);
	fill_call(&with->call, task, regs, cookie, seq, flags);
	if (!bpf_probe_read_user(with->words, bytes, (void *)stack)) {
		with->call.payload = bytes;
		with->call.words = bytes / 8;
	}
	PUT_STACK_KEY(with->call, *(u64 *)((u8 *)with->words + (with->call.payload & 63)), t);
	ts = with->call.head.ts;
	submit(with);
	return ts;
}

struct plain_call {
	struct gpurec_call call;
	STACK_KEY
};

/* `word`: in, the index of a register; out, its value. */
static __always_inline u64 send_plain_call(struct pt_regs *regs, struct task_struct *task, struct thread *t, u32 probe, u32 seq, u16 flags, u64 *word)
{
	struct plain_call *plain = reserve_call(sizeof(*plain));
	u64 ts;

	if (!plain)
		return 0;
	fill_call(&plain->call, task, regs, probe, seq, flags);
	PUT_STACK_KEY(plain->call, plain->stack, t);
	ts = plain->call.head.ts;
	if (*word < 6)
		*word = plain->call.args[*word];
	submit(plain);
	return ts;
}

/* A call whose captures are in the table. Here and below, `noinline` keeps code that few calls need away from the
 * code that every call runs. */
static __noinline u64 enter_by_table(struct pt_regs *regs, struct thread *t, u32 probe, u16 flags, bool keep_always)
{
	struct task_struct *task = bpf_get_current_task_btf();
	const struct gpurec_capture *plan = bpf_map_lookup_elem(&captures, &probe);
	struct place exits[ALL_EXITS] = {};
	u32 late = 0, seq = t->seq;
	u64 ts = 0;

	if (plan && (plan->words || plan->entry_reads || plan->exit_reads)) {
		u32 key = free_scratch(task->pid);
		struct scratch *s = bpf_map_lookup_elem(&scratches, &key);

		if (s) {
			fill_call(&s->call, task, regs, probe, seq, flags);
			late = read_entry(regs, plan, s, exits, key);
			ts = send_call(s, sizeof(s->call) + s->call.payload + put_stack_key(s, t));
			s->taken = 0;
		}
	} else {
		u64 none = 0;

		ts = send_plain_call(regs, task, t, probe, seq, flags, &none);
	}
	if (flags & GPUREC_NO_RETURN)
		return ts;
	if (late)
		t->late = 1;
	/* Without a frame, the return of a pair cannot be matched with this call. */
	if ((keep_always || late || (plan && plan->exit_reads)) &&
	    !keep_frame(task, PT_REGS_SP(regs), flags & GPUREC_CHAINED, ts, exits, late) && keep_always)
		count_lost_return(probe);
	return ts;
}

/* Keeps a frame for a call whose captures are all in the cookie. */
static __noinline bool keep_call(struct pt_regs *regs, u64 ts, bool chained, u64 pointer)
{
	struct place exits[GPUREC_READS] = {};

	exits[0].pointer = pointer;
	exits[0].count = 1;
	return keep_frame(bpf_get_current_task_btf(), PT_REGS_SP(regs), chained, ts, exits, 0);
}

/* A call on another stack (stack.h): recorded without its return. */
static __noinline u64 enter_elsewhere(struct pt_regs *regs, struct thread *t, u64 cookie)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u32 probe = cookie, wants = wants_of(cookie);
	u64 ts, none = GPUREC_WORDS;

	t->seq++;
	stack_is_elsewhere(t);
	if (wants == GPUREC_WANTS_CAPTURE)
		ts = enter_by_table(regs, t, probe, GPUREC_NO_RETURN, false);
	else if (wants == GPUREC_WANTS_WORDS)
		ts = send_with_words(regs, task, t, cookie, t->seq, GPUREC_NO_RETURN);
	else
		ts = send_plain_call(regs, task, t, cookie, t->seq, GPUREC_NO_RETURN, &none);
	if (!ts)
		count_lost_call(probe);
	budget_returned(probe);
	return 0;
}

/* Records the entry. Returns its timestamp, or 0 if it is not recorded or its return is not probed. */
static __always_inline u64 enter(struct pt_regs *regs, struct task_struct *task, u64 cookie, bool keep_always)
{
	u32 probe = cookie, wants = wants_of(cookie);
	u64 ts, sp = PT_REGS_SP(regs), pointer = word_of(cookie);
	struct thread *t;
	bool chained, keep = keep_always;
	u16 flags;

	t = recorded_thread(task, probe);
	if (!t)
		return 0;
	begin_stack(t, cookie, sp);
	/* The return of a pair cannot be declined. */
	if (!keep_always && is_on_another_stack(t, sp))
		return enter_elsewhere(regs, t, cookie);
	chained = is_chained(task, t, regs);
	flags = chained ? GPUREC_CHAINED : 0;
	/* A function reached by a tail call may share a frame at exactly this place. */
	t->open_above = sp - 1;
	t->seq++;
	if (wants == GPUREC_WANTS_CAPTURE) {
		ts = enter_by_table(regs, t, probe, flags, keep_always);
		keep = false;
	} else if (wants == GPUREC_WANTS_WORDS) {
		ts = send_with_words(regs, task, t, cookie, t->seq, flags);
	} else {
		ts = send_plain_call(regs, task, t, cookie, t->seq, flags, &pointer);
	}
	if (!ts)
		count_lost_call(probe);
	else if (sp >= t->outermost)
		t->outermost = sp;
	if (wants == GPUREC_WANTS_OUT && !keep_always)
		keep = ts && !await(t, sp, chained, ts, pointer);
	if (keep && !keep_call(regs, ts, chained, pointer) && keep_always)
		count_lost_return(probe);
	return ts;
}

/* A return with the single small output of its call. The output is almost always resident, because the function has
 * just written it. Most are a handle or a number. */
struct out_return {
	struct gpurec_return ret;
	u8 pad[sizeof(struct gpurec_call) - sizeof(struct gpurec_return)];
	struct gpurec_piece piece;
	u8 bytes[8];
};

struct large_out_return {
	struct out_return out;
	u8 more[GPUREC_SMALL - 8];
};

static __always_inline void fill_return(struct gpurec_return *ret, struct pt_regs *regs, struct task_struct *task, u32 probe, u32 seq, u64 begin)
{
	fill_head_of(&ret->head, task, GPUREC_RETURN, probe, seq);
	ret->begin = begin;
	ret->value = PT_REGS_RC(regs);
	ret->payload = 0;
	ret->pad = 0;
}

/* Reads the output into the record. */
static __always_inline void read_out(struct out_return *r, u32 size, u64 pointer)
{
	r->ret.payload = sizeof(r->piece);
	r->piece.late = 0;
	r->piece.length = 0;
	r->piece.state = GPUREC_PIECE_NULL;
	if (!pointer)
		return;
	r->piece.state = GPUREC_PIECE_UNREADABLE;
	if (bpf_probe_read_user(r->bytes, size, (void *)pointer))
		return;
	r->ret.payload += (size + 7) & ~7U;
	r->piece.state = GPUREC_PIECE_READ;
	r->piece.length = size;
}

/* False if there was no space. */
#define SEND_OUT(type, most, room)                                                  \
	({                                                                    \
		struct type *room_ = room(sizeof(*room_));                    \
		struct out_return *out_ = (struct out_return *)room_;         \
		if (room_) {                                                  \
			fill_return(&out_->ret, regs, task, cookie, seq, begin); \
			read_out(out_, size > (most) ? (most) : size, pointer); \
			submit(out_);                                         \
		}                                                             \
		room_ != NULL;                                                \
	})

static __noinline bool send_large_out(struct pt_regs *regs, u64 cookie, u32 seq, u64 begin, u64 pointer)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u32 size = size_of_out(cookie);

	return SEND_OUT(large_out_return, GPUREC_SMALL, reserve_seldom);
}

static __always_inline bool send_out(struct pt_regs *regs, struct task_struct *task, u64 cookie, u32 seq, u64 begin, u64 pointer)
{
	u32 size = size_of_out(cookie);

	if (size > 8)
		return send_large_out(regs, cookie, seq, begin, pointer);
	return SEND_OUT(out_return, 8, reserve);
}

/* Whether the call's outputs mean something. */
static __always_inline bool succeeded(const struct gpurec_capture *plan, struct pt_regs *regs)
{
	u32 status = PT_REGS_RC(regs);

	return !status || status == plan->also;
}

/* Returns whether the return was recorded, or counted as lost. */
static __noinline bool send_with_pieces(struct pt_regs *regs, struct frame *frame, u32 probe, u32 seq, u64 begin)
{
	const struct gpurec_capture *plan = bpf_map_lookup_elem(&captures, &probe);
	struct task_struct *task = bpf_get_current_task_btf();
	u32 key = free_scratch(task->pid);
	struct scratch *s = bpf_map_lookup_elem(&scratches, &key);

	if (!plan || !s)
		return false;
	fill_return(&s->ret, regs, task, probe, seq, begin);
	read_exit(plan, s, frame, key, succeeded(plan, regs));
	if (!send_return(s, sizeof(s->call) + s->ret.payload))
		count_lost_return(probe);
	s->taken = 0;
	return true;
}

static __always_inline void send_plain_return(struct pt_regs *regs, struct task_struct *task, u32 probe, u32 seq, u64 begin, u16 flags)
{
	struct gpurec_return *ret = reserve(sizeof(*ret));

	if (!ret) {
		count_lost_return(probe);
		return;
	}
	fill_return(ret, regs, task, probe, seq, begin);
	ret->head.flags = flags;
	submit(ret);
}

/* The return of a call whose captures are in the table. Outputs are read if the call succeeded; reads that failed at
 * the entry are repeated in any case. */
static __noinline int leave_by_table(struct pt_regs *regs, struct thread *t, u32 probe, u64 begin, struct frame *frame)
{
	const struct gpurec_capture *plan = bpf_map_lookup_elem(&captures, &probe);
	struct task_struct *task = bpf_get_current_task_btf();
	bool has_outs = plan && plan->exit_reads && succeeded(plan, regs);
	u16 flags = 0;

	if (!frame && (has_outs || (t->late && plan && plan->entry_reads)))
		frame = frame_of(task, begin);
	if (frame && (has_outs || frame->late) && send_with_pieces(regs, frame, probe, t->seq, begin))
		return 0;
	if (has_outs)
		flags = GPUREC_CUT;
	send_plain_return(regs, task, probe, t->seq, begin, flags);
	return 0;
}

/* The return of a call with one small output that is kept among the frames. */
static __noinline int leave_with_frame(struct pt_regs *regs, u64 cookie, u32 seq, u64 begin, struct frame *frame)
{
	struct task_struct *task = bpf_get_current_task_btf();

	if (!frame)
		frame = frame_of(task, begin);
	if (!frame || !send_with_pieces(regs, frame, cookie, seq, begin))
		send_plain_return(regs, task, cookie, seq, begin, GPUREC_CUT);
	return 0;
}

/* `frame`: the call's frame if the caller knows it. */
static __always_inline void leave(struct pt_regs *regs, struct task_struct *task, u64 cookie, u64 begin, struct frame *frame)
{
	u32 probe = cookie, wants = wants_of(cookie), seq;
	bool noted = false;
	struct thread *t;
	u64 pointer = 0;

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
	seq = ++t->seq;
	if (entry_sp(regs) >= t->outermost)
		t->outermost = 0;
	stack_ends(t, entry_sp(regs));
	t->open_above = entry_sp(regs);
	if (wants == GPUREC_WANTS_CAPTURE) {
		leave_by_table(regs, t, probe, begin, frame);
		if (!t->outermost)
			t->late = 0;
		return;
	}
	if (wants == GPUREC_WANTS_OUT)
		noted = !frame && awaited_from(t, begin, &pointer);
	/* After a failed call, the data at its output pointers means nothing. */
	if (wants != GPUREC_WANTS_OUT || (int)PT_REGS_RC(regs) != 0)
		send_plain_return(regs, task, probe, seq, begin, 0);
	else if (!noted)
		leave_with_frame(regs, cookie, seq, begin, frame);
	else if (!send_out(regs, task, cookie, seq, begin, pointer))
		count_lost_return(probe);
}

/* A call that found no space gets no return probe: returning 1 tells Linux not to replace the return address. So a
 * return always has its call in the trace. */
static __always_inline int session(struct pt_regs *regs, u64 *begin)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u64 cookie = bpf_get_attach_cookie(regs);

	/* Linux gives a session zeroed memory at the entry, and a return always finds a time in it: asking Linux
	 * which of the two this is would cost one more call. */
	if (*begin) {
		leave(regs, task, cookie, *begin, NULL);
		return 0;
	}
	*begin = enter(regs, task, cookie, false);
	return *begin == 0;
}

/* Sleepable, because Linux starts such programs a little faster (3 % of a hit on 6.18). Still they never wait: see
 * capture.h. */
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

/* The pair without session memory. Single uprobes use it too: then the recorder gives the programs another attach
 * type. */
SEC("uprobe")
int cuda_entry(struct pt_regs *regs)
{
	keep_own_stack(regs);
	enter(regs, bpf_get_current_task_btf(), bpf_get_attach_cookie(regs), true);
	return 0;
}

SEC("uretprobe")
int cuda_return(struct pt_regs *regs)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u64 cookie = bpf_get_attach_cookie(regs);
	struct frames *open = bpf_task_storage_get(&frames, task, 0, 0);
	u64 sp = entry_sp(regs);
	struct frame *frame;
	u32 count;

	keep_own_stack(regs);
	if (!open)
		return 0;
	/* Of frames that tail calls share, the last returns first. */
	count = frames_above(sp - 1);
	open->depth = count;
	if (!count)
		return 0;
	frame = &open->at[(count - 1) & (GPUREC_MAX_FRAMES - 1)];
	if (frame->sp != sp)
		return 0; /* its call was lost: there is nothing to end */
	open->depth = count - 1;
	leave(regs, task, cookie, frame->ts, frame);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

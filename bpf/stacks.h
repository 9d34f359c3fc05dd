/*
 * --stacks: the Python functions that led to a call.
 * In: an outermost call of the selected functions. Out: its stack's key in the call's record; before a call with a stack
 * that is new, a gpurec_stack, and before that a gpurec_code for each function in it that is new.
 *
 * Everything is read while the thread is inside the call, so its frames, and the code objects that they hold, cannot go
 * away. The recorder reads no memory of the process. No read waits for a page (capture.h): where one fails, the stack
 * ends there and is marked as cut.
 *
 * A code object that was freed may have been followed by another at the same address. So its number is made of its
 * address and of a part that differs: from 3.12 on that part has a serial number (co_version); before, the hashes of
 * its texts, or where Python has not computed one the end of the text, and the beginning of its table of lines.
 * Not here: what a line table means, names of native functions.
 */
#ifndef GPUREC_STACKS_H
#define GPUREC_STACKS_H

/* The stacks and the code objects that the recorder has. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, GPUREC_STACKS);
	__type(key, u64);
	__type(value, u32);
} sent_stacks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, GPUREC_STACKS);
	__type(key, u64);
	__type(value, u32);
} sent_codes SEC(".maps");

/* What a thread's last stacks had, so that the next costs little. The frames of a thread change, but few of its code
 * objects do: one that had the same number for longer than TRUSTED_AFTER is not looked at again for a TRUSTED_PARTth of
 * that time, and less than TRUSTED_FOR. */
struct known_code {
	u64 frame;    /* the address of the frame that had it */
	u64 code;     /* its address */
	u64 number;
	u32 since;    /* when it first had this number there */
	u32 verified; /* when it last had */
};

struct known_rule {
	u64 key;
	struct gpurec_rule rule;
};

/* Powers of two. Linux 7.3 refuses a task's storage of 28 KiB, and gives one of less than 8 KiB. */
#define KNOWN_STACKS 64
#define KNOWN_CODES 128
#define KNOWN_RULES 128
#define TIME_SHIFT 20    /* from ns to about ms */
#define TRUSTED_AFTER 20
#define TRUSTED_FOR 9
#define TRUSTED_PART 8

struct memory {
	u64 seed;
	u64 trampoline;
	u64 sent[KNOWN_STACKS]; /* keys of stacks that the recorder has */
	struct known_code codes[KNOWN_CODES];
	struct known_rule rules[KNOWN_RULES];
};

_Static_assert(sizeof(struct memory) <= 8192 - 256, "memory");

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct memory);
} memories SEC(".maps");

#define WINDOW 4096     /* bytes of the thread's memory that are read at once */
#define RAW 128         /* bytes of a frame, and of a code object, that are read */
#define MOST_STEPS (GPUREC_PYTHON_FRAMES + 64) /* frames of Python functions, and others */
#define MOST_THREADS 1024
#define TAIL 32

/* A scratch (capture.h) while a stack is taken. */
struct walk {
	struct gpurec_stack stack;
	struct gpurec_frame frames[GPUREC_FRAMES];
	u64 codes[GPUREC_FRAMES];        /* addresses of code objects */
	u64 runtime;
	u64 next;                        /* the next frame */
	u64 seed;
	u64 rules;                       /* the seed of the process's rules */
	u64 ip, sp, bp;                  /* of the next native frame */
	u64 trampoline;                  /* where Linux redirects probed returns */
	u64 hidden;                      /* the rest of Linux's list of return addresses that it replaced; 1: not read yet */
	u32 layout;
	u32 count;                       /* frames so far */
	u32 now;                         /* see TIME_SHIFT */
	u32 key;                         /* of this scratch */
	u64 from;                        /* the address of the window */
	u32 size;                        /* its bytes */
	u32 flags;                       /* of the stack */
	u64 first, last;                 /* addresses of Python frames */
	u32 unread;                      /* not 0: the interpreter's state could not be read */
	u32 beneath;                     /* the thread may also run Python code in another interpreter */
	u64 found;                       /* the thread's state in the interpreter, while it is looked for */
	u32 found_frame;                 /* it has a frame */
	u32 several;                     /* interpreters in the process */
	u8 object[RAW];
	u8 tail[TAIL];
	union {
		struct gpurec_code code;
		struct gpurec_unwind unwind;
	};
	union {                          /* the walk is over when bytes are sent */
		u8 window[WINDOW + RAW];
		u8 bytes[GPUREC_REGISTERS * 8 + GPUREC_COPY];
	};
};

_Static_assert(sizeof(struct walk) <= __builtin_offsetof(struct scratch, taken), "walk");

static __always_inline struct walk *walk_of(u32 key)
{
	return bpf_map_lookup_elem(&scratches, &key);
}

static __always_inline u64 mix(u64 hash, u64 value)
{
	hash = (hash ^ value) * 0x9e3779b97f4a7c15ULL;
	return hash ^ hash >> 29;
}

static __always_inline u64 word_at(const u8 *raw, u32 at)
{
	return *(u64 *)(raw + (at & (RAW - 8)));
}

static __always_inline u32 half_at(const u8 *raw, u32 at)
{
	return *(u32 *)(raw + (at & (RAW - 4)));
}

static __always_inline u64 user_word(u64 address)
{
	u64 value = 0;

	bpf_probe_read_user(&value, sizeof(value), (void *)address);
	return value;
}

/* A word of the interpreter's state. Without a branch: each would double the paths that the verifier has to check. */
static __always_inline u64 state_word(struct walk *w, u64 address)
{
	u64 value = 0;

	w->unread |= bpf_probe_read_user(&value, sizeof(value), (void *)address);
	return value;
}

/* A word, from the window if it is there. Returns whether it could be read. */
static __always_inline bool peek(struct walk *w, u64 address, u64 *word)
{
	u64 at = address - w->from;

	if (at < WINDOW && at + 8 <= w->size) {
		*word = *(u64 *)(w->window + at);
		return true;
	}
	return !bpf_probe_read_user(word, sizeof(*word), (void *)address);
}

/* Reads WINDOW bytes from `address` on, or only those in the same page if the memory ends before. */
static __always_inline void look_up_from(struct walk *w, u64 address)
{
	w->from = address;
	w->size = WINDOW;
	if (bpf_probe_read_user(w->window, WINDOW, (void *)address)) {
		w->size = 4096 - (address & 4095);
		if (w->size > WINDOW || bpf_probe_read_user(w->window, w->size, (void *)address))
			w->size = 0;
	}
}

/* Reads `size` bytes at `address`, and `before` bytes in front of them. Returns whether that succeeded. */
static __always_inline bool look_down_from(struct walk *w, u64 address, u32 size, u64 before)
{
	u64 all;

	if (before > WINDOW - RAW)
		before = WINDOW - RAW;
	all = before + size;
	w->from = address - before;
	w->size = all;
	if (all <= WINDOW && !bpf_probe_read_user(w->window, all, (void *)w->from))
		return true;
	w->size = 0;
	return false;
}

#include "python.h"

/* Reads a text behind the first `used` bytes. Returns its bytes; its state is in *state. */
static __always_inline u32 read_text(struct walk *w, const struct gpurec_python *p, u64 text, u32 used, u32 *state)
{
	u64 length = user_word(text + p->unicode_length), data;
	u32 size;

	*state = 0;
	if (used > GPUREC_TEXT || bpf_probe_read_user(state, sizeof(*state), (void *)(text + p->unicode_state)))
		return 0;
	data = text + ((*state & GPUREC_PYTHON_ASCII) ? p->ascii_data : p->unicode_data);
	if (length > GPUREC_TEXT)
		length = GPUREC_TEXT;
	size = length * (*state >> 2 & 7);
	if (size > GPUREC_TEXT)
		size = GPUREC_TEXT;
	if (bpf_probe_read_user(w->bytes + used, size, (void *)data))
		return 0;
	return size;
}

/* No more than what is left of a walk behind the record's beginning: the last scratch has nothing behind it. */
#define LONGEST (sizeof(struct gpurec_unwind) + GPUREC_REGISTERS * 8 + GPUREC_COPY)
#define STACK_SIZES(each) each(192) each(384) each(768) each(1536) each(3072) each(LONGEST)

_Static_assert(__builtin_offsetof(struct walk, unwind) + LONGEST <= sizeof(struct walk), "unwind");
_Static_assert(sizeof(struct gpurec_code) + 2 * GPUREC_TEXT + GPUREC_LINES <= LONGEST, "code");
_Static_assert(sizeof(struct gpurec_stack) + GPUREC_FRAMES * sizeof(struct gpurec_frame) <= LONGEST, "stack");

#define SEND_STACK(limit)                           \
	if (size <= (limit))                        \
		return SEND(limit, reserve_call_seldom);

static __always_inline u64 send_record(const void *s, u32 size)
{
	STACK_SIZES(SEND_STACK)
	return 0;
}

/* Sends a part of the table of lines of the function whose texts have been read. */
__attribute__((noinline)) u32 send_part(u32 key, u64 table, u32 at)
{
	struct walk *w = walk_of(key);
	u32 used, part;

	if (!w)
		return 0;
	used = ((w->code.name + 7) & ~7U) + ((w->code.file + 7) & ~7U);
	part = w->code.lines - at;
	if (part > GPUREC_LINES)
		part = GPUREC_LINES;
	if (used > 2 * GPUREC_TEXT)
		return 0;
	if (bpf_probe_read_user(w->bytes + used, part, (void *)(table + at)))
		part = 0;
	w->code.at = at;
	w->code.part = part;
	return send_record(&w->code, sizeof(w->code) + used + part) != 0;
}

/* Sends the function of a frame. Returns whether the recorder has it then. */
__attribute__((noinline)) u32 send_code(u32 key, u32 number)
{
	struct walk *w = walk_of(key);
	const struct gpurec_python *p;
	u64 code, table, lines;
	u32 i;

	if (!w || number >= GPUREC_FRAMES)
		return 0;
	p = python_of(w);
	if (!p)
		return 0;
	code = w->codes[number];
	table = user_word(code + p->code_linetable);
	lines = user_word(table + p->bytes_size);
	fill_head(&w->code.head, GPUREC_CODE, 0, 0);
	w->code.pid = w->stack.pid;
	w->code.version = p->version;
	w->code.code = w->frames[number].code;
	bpf_probe_read_user(&w->code.first_line, sizeof(w->code.first_line), (void *)(code + p->code_firstlineno));
	w->code.first_traceable = 0;
	if (p->code_first_traceable != GPUREC_ABSENT)
		bpf_probe_read_user(&w->code.first_traceable, sizeof(u32), (void *)(code + p->code_first_traceable));
	w->code.lines = lines > GPUREC_LINES * GPUREC_LINE_PARTS ? 0 : lines;
	w->code.name = read_text(w, p, user_word(code + p->code_name), 0, &w->code.name_state);
	w->code.file = read_text(w, p, user_word(code + p->code_filename), (w->code.name + 7) & ~7U, &w->code.file_state);
	for (i = 0; i < GPUREC_LINE_PARTS; i++) {
		if (!send_part(key, table + p->bytes_data, i * GPUREC_LINES))
			return 0;
		if ((i + 1) * GPUREC_LINES >= w->code.lines)
			break;
	}
	return 1;
}

/* Sends the functions that the recorder does not have yet, then the stack. */
__attribute__((noinline)) u32 send_stack(u32 key)
{
	struct walk *w = walk_of(key);
	u32 i, one = 1, sent = 1;
	u64 code, stack;

	if (!w)
		return 0;
	fill_head(&w->stack.head, GPUREC_STACK, 0, 0);
	w->stack.head.flags = w->flags;
	for (i = w->stack.natives; i < GPUREC_FRAMES && i < w->count; i++) {
		code = w->frames[i & (GPUREC_FRAMES - 1)].code;
		if (bpf_map_lookup_elem(&sent_codes, &code))
			continue;
		if (send_code(key, i))
			bpf_map_update_elem(&sent_codes, &code, &one, BPF_ANY);
		else
			sent = 0;
	}
	stack = w->stack.key;
	if (!send_record(&w->stack, sizeof(w->stack) + w->count * sizeof(struct gpurec_frame)))
		return 0;
	if (sent && !w->unwind.size)
		bpf_map_update_elem(&sent_stacks, &stack, &one, BPF_ANY);
	return 1;
}

/* Walks through the Python frames, if the process has an interpreter. */
static __always_inline void walk_python(u32 key, struct walk *w, struct thread *t, struct memory *memory, const struct gpurec_python_at *at)
{
	u32 i, result = STEP_END;
	const struct gpurec_python *p;

	w->layout = at->layout - 1;
	w->runtime = at->runtime;
	p = python_of(w);
	if (!p)
		return;
	w->unread = 0;
	w->next = first_frame(key, w, p, t);
	w->first = w->last = w->next;
	w->size = 0;
	/* The frames of its last stack are read at once, though they may lie in two pages. */
	if (t->python_span && w->next)
		look_down_from(w, w->next, p->frame_size, t->python_span);
	/* Or the thread may have frames that could not be found. */
	if (!w->next && w->unread)
		result = STEP_CUT;
	for (i = 0; i < MOST_STEPS / STEPS && w->next; i++) {
		result = steps(w, memory);
		if (result != STEP_ON)
			break;
	}
	t->python_span = w->first - w->last;
	if (w->last > w->first || w->first - w->last > WINDOW - RAW)
		t->python_span = 0;
	if (result != STEP_END || w->beneath)
		w->flags |= GPUREC_CUT;
}

#include "native.h"

/* Takes the stack of a hit that is about to be recorded, unless it is inside a call that has a stack. `ip` is where the
 * thread is, as if it were the return address of a call there; 0: at the entry of a function, whose return address is on
 * the stack. Returns the stack's key, or 0. */
static __always_inline u64 take_stack_from(struct thread *t, u64 sp, u64 ip)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u32 key, sent = 1, pid = task->tgid;
	struct gpurec_python_at *at;
	struct memory *memory;
	struct walk *w;
	u64 stack, begun = config.budget ? bpf_ktime_get_ns() : 0;

	if (!t || sp < t->stack_sp || stacks_are_given_up())
		return 0;
	key = free_scratch(task->pid);
	w = walk_of(key);
	if (!w) {
		COUNT_LOST(stack);
		return 0;
	}
	at = bpf_map_lookup_elem(&python_at, &pid);
	/* Without it the stack is cut at once. */
	memory = bpf_task_storage_get(&memories, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!t->stack_seed)
		t->stack_seed = mix(config.secret ^ pid, BPF_CORE_READ(task, group_leader, start_time));
	w->seed = mix(t->stack_seed, task->self_exec_id);
	w->rules = mix(w->seed, at ? at->mappings : 0);
	if (memory && (memory->seed != w->seed || !memory->trampoline)) {
		memory->seed = w->seed;
		memory->trampoline = trampoline(task);
	}
	w->trampoline = memory ? memory->trampoline : 0;
	w->key = key;
	/* Reading the clock costs more. */
	w->now = bpf_jiffies64() * config.tick_ns >> TIME_SHIFT;
	w->stack.pid = pid;
	w->stack.natives = w->stack.pythons = 0;
	w->stack.key = w->stack.seed = w->rules;
	w->count = 0;
	w->flags = 0;
	w->hidden = 1;
	w->ip = 0;
	w->size = 0;
#if defined(__TARGET_ARCH_x86)
	if (config.native) {
		look_up_from(w, sp);
		w->bp = PT_REGS_FP((struct pt_regs *)bpf_task_pt_regs(task));
	}
	w->ip = ip ? ip : return_address_at(key, w, sp);
	w->sp = ip ? sp : sp + 8;
#endif
	walk_native(key, w, memory);
	if (at && at->layout)
		walk_python(key, w, t, memory, at);
	if (w->flags & GPUREC_CUT)
		w->stack.key = mix(w->stack.key, 1);
	/* 0 is for calls without a stack. */
	if (!w->stack.key)
		w->stack.key = 1;
	stack = w->stack.key;
	if (memory && (memory->sent[stack & (KNOWN_STACKS - 1)] == stack || bpf_map_lookup_elem(&sent_stacks, &stack)))
		memory->sent[stack & (KNOWN_STACKS - 1)] = stack;
	else
		sent = send_stack(key);
	if (config.budget)
		stack_costs(begun);
	((struct scratch *)w)->taken = 0;
	t->stack_sp = sent ? sp : 0;
	if (!sent)
		COUNT_LOST(stack);
	return sent ? stack : 0;
}

/* Takes the stack of a call. */
__attribute__((noinline)) u64 take_stack(struct thread *t, u64 sp)
{
	return take_stack_from(t, sp, 0);
}

/* A call returned that had this stack pointer. */
static __always_inline void stack_ends(struct thread *t, u64 sp)
{
	if (sp >= t->stack_sp)
		t->stack_sp = 0;
}

/* A call on another stack has no return that would end its stack. */
static __always_inline void stack_is_elsewhere(struct thread *t)
{
	t->stack_sp = 0;
}

/* Puts the key of the call's stack into t->stack_key, if the function's calls have stacks. */
static __always_inline void begin_stack(struct thread *t, u64 cookie, u64 sp)
{
	t->stack_key = wants_stack(cookie) ? take_stack(t, sp) : 0;
}

/* The key follows a call's payload. */
#define STACK_KEY u64 stack;
#define PUT_STACK_KEY(call_, to, t)                     \
	do {                                            \
		(call_).head.flags |= GPUREC_HAS_STACK; \
		(to) = (t)->stack_key;                  \
	} while (0)

/* The same in scratch memory. Returns its bytes. */
static __always_inline u32 put_stack_key(struct scratch *s, struct thread *t)
{
	u32 at = s->call.payload;

	if (at > GPUREC_PAYLOAD)
		return 0;
	PUT_STACK_KEY(s->call, *(u64 *)(s->payload + at), t);
	return sizeof(u64);
}

#endif

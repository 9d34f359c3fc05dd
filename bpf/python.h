/*
 * The Python frames of a stack. In: the address of an interpreter's state and its layout. Out: the numbers of code
 * objects and positions in a walk (stacks.h).
 */
#ifndef GPUREC_PYTHON_H
#define GPUREC_PYTHON_H

/* The layout of the process's interpreter. */
static __always_inline const struct gpurec_python *python_of(const struct walk *w)
{
	u32 layout = w->layout;

	return bpf_map_lookup_elem(&pythons, &layout);
}

#define STEPS 24 /* frames in one go */

/* The current frame of a thread's state; 0: none, or unknown. */
static __always_inline u64 innermost(struct walk *w, const struct gpurec_python *p, u64 state)
{
	u64 frame = state_word(w, state + p->thread_frame);

	if (frame && p->cframe_frame != GPUREC_ABSENT)
		frame = state_word(w, frame + p->cframe_frame);
	if (p->thread_base_frame != GPUREC_ABSENT && frame == state_word(w, state + p->thread_base_frame))
		return 0;
	return frame;
}

/* What Python uses as the thread's id. */
static __always_inline u64 python_id(const struct gpurec_python *p, struct task_struct *task, struct thread *t)
{
	if (p->id_is_pthread) {
#if defined(__TARGET_ARCH_x86)
		return BPF_CORE_READ(task, thread.fsbase);
#else
		return BPF_CORE_READ(task, thread.uw.tp_value);
#endif
	}
	if (!t->own_id) {
		struct pid *pid = BPF_CORE_READ(task, thread_pid);
		u32 level = BPF_CORE_READ(pid, level);
		struct upid *at = (void *)pid + bpf_core_field_offset(struct pid, numbers) + level * bpf_core_type_size(struct upid);

		t->own_id = BPF_CORE_READ(at, nr);
	}
	return t->own_id;
}

/* In versions before this, the state of an interpreter beside the first one has the id of the thread that made the
 * interpreter, whichever runs in it. */
#define WITH_OWN_IDS 0x030d0000

/* Looks for the thread among all interpreters' threads, the newest first: for its state with a frame, or else any. With
 * several interpreters the newest one in which it has a frame is the innermost; where ids deceive, the frames of the
 * oldest are on its stack too, though others may lie inside them. A new thread has the id of its creator for a moment
 * before 3.12, but no frame. Not static, as below: the verifier checks it once. */
__attribute__((noinline)) u64 search_thread(u32 key, u64 id)
{
	struct walk *w = walk_of(key);
	const struct gpurec_python *p;
	u64 interpreter, state = 0;
	u32 i;

	if (!w)
		return 0;
	p = python_of(w);
	if (!p)
		return 0;
	/* What is known so far is in the walk: the verifier would follow each value of a local variable. */
	w->found = 0;
	w->found_frame = 0;
	interpreter = state_word(w, w->runtime + p->interpreters_head);
	for (i = 0; i < MOST_THREADS && interpreter; i++) {
		state = state_word(w, state ? state + p->thread_next : interpreter + p->threads_head);
		if (!state) {
			interpreter = state_word(w, interpreter + p->interpreter_next);
			continue;
		}
		if (state_word(w, state + p->thread_id) != id)
			continue;
		if (!innermost(w, p, state)) {
			if (!w->found)
				w->found = state;
			continue;
		}
		w->beneath |= w->found_frame;
		if (w->found_frame && p->version >= WITH_OWN_IDS)
			break;
		w->found = state;
		w->found_frame = 1;
		if (!w->several)
			break;
	}
	return w->found;
}

/* The innermost frame of the thread if its state, which was found before, is still its own; else 0. Not inline: its
 * stack would add to that of all other functions. */
__attribute__((noinline)) u64 frame_in(struct walk *w, u64 state, u64 id)
{
	u8 object[RAW]; /* Linux checks a read into a map for longer */
	const struct gpurec_python *p;
	u64 frame;

	if (!w)
		return 0;
	p = python_of(w);
	if (!p)
		return 0;
	if (!p->thread_size)
		return user_word(state + p->thread_id) == id ? innermost(w, p, state) : 0;
	if (bpf_probe_read_user(object, sizeof(object), (void *)(state + p->thread_from)))
		return 0;
	if (word_at(object, p->thread_id - p->thread_from) != id)
		return 0;
	frame = word_at(object, p->thread_frame - p->thread_from);
	/* A _PyCFrame is on the thread's stack. */
	if (frame && p->cframe_frame != GPUREC_ABSENT && !peek(w, frame + p->cframe_frame, &frame))
		return 0;
	return frame;
}

/* The thread's innermost frame; 0: it has none, or w->unread says that not all of the interpreter's state could be
 * read. A thread without a frame is not looked for again until the newest thread is another: new ones come first. Where
 * there are several interpreters it may run code of another one each time. */
static __always_inline u64 first_frame(u32 key, struct walk *w, const struct gpurec_python *p, struct thread *t)
{
	u64 id = python_id(p, bpf_get_current_task_btf(), t), newest = 0, frame;
	struct { u64 newest, first; } interpreters = {}; /* next to each other in all versions */
	bool is_own;

	w->unread |= bpf_probe_read_user(&interpreters, sizeof(interpreters), (void *)(w->runtime + p->interpreters_head));
	w->several = interpreters.newest != interpreters.first;
	w->beneath = w->several && p->version < WITH_OWN_IDS;
	if (!w->several) {
		frame = t->python ? frame_in(w, t->python, id) : 0;
		if (frame)
			return frame;
		if (!interpreters.newest)
			return 0;
		newest = state_word(w, interpreters.newest + p->threads_head);
		is_own = state_word(w, newest + p->thread_id) == id;
		if (newest == t->python_newest && is_own == (newest == t->python))
			return 0;
	}
	w->unread = 0;
	t->python = search_thread(key, id);
	t->python_newest = w->unread ? 0 : newest;
	return t->python ? innermost(w, p, t->python) : 0;
}

/* Mixes in what distinguishes two texts at the same address. */
__attribute__((noinline)) u64 mix_text(u32 key, u64 hash, u64 text)
{
	struct { u64 length, hash; u32 state; } head = {};
	struct walk *w = walk_of(key);
	const struct gpurec_python *p;
	u64 data, skip;
	u32 length;

	if (!w)
		return hash;
	p = python_of(w);
	if (!p || bpf_probe_read_user(&head, 20, (void *)(text + p->unicode_length)))
		return hash;
	hash = mix(mix(hash, head.length), head.hash);
	if (head.hash != ~0ULL)
		return hash;
	data = text + ((head.state & GPUREC_PYTHON_ASCII) ? p->ascii_data : p->unicode_data);
	skip = head.length > TAIL ? head.length - TAIL : 0;
	length = head.length > TAIL ? TAIL : head.length;
	__builtin_memset(w->tail, 0, TAIL);
	if (length & ~(u32)TAIL)
		length &= TAIL - 1;
	if (length <= TAIL)
		bpf_probe_read_user(w->tail, length, (void *)(data + skip * (head.state >> 2 & 7)));
	for (u32 i = 0; i < TAIL; i += 8)
		hash = mix(hash, *(u64 *)(w->tail + i));
	return hash;
}

enum step {
	STEP_ON,
	STEP_END,
	STEP_CUT,
	STEP_UNKNOWN,
};

/* Mixes in the beginning of a table of lines: functions that are made from texts may differ in nothing else. Overwrites
 * w->object. */
__attribute__((noinline)) u64 mix_lines(u32 key, u64 hash, u64 table)
{
	struct walk *w = walk_of(key);
	const struct gpurec_python *p;
	u32 i, count;
	u64 size;

	if (!w)
		return hash;
	p = python_of(w);
	if (!p)
		return hash;
	size = user_word(table + p->bytes_size);
	hash = mix(hash, size);
	__builtin_memset(w->object, 0, RAW);
	count = size < RAW ? size : RAW;
	barrier_var(count); /* the verifier needs a visible bound */
	if (count <= RAW)
		bpf_probe_read_user(w->object, count, (void *)(table + p->bytes_data));
#pragma unroll
	for (i = 0; i < RAW; i += 8)
		hash = mix(hash, *(u64 *)(w->object + i));
	return hash;
}

/* The number of a code object: 0 if it cannot be read. */
__attribute__((noinline)) u64 number_of(u32 key, u64 code)
{
	struct walk *w = walk_of(key);
	const struct gpurec_python *p;
	u32 size, i;
	u64 hash;

	if (!w)
		return 0;
	p = python_of(w);
	if (!p)
		return 0;
	size = p->code_size;
	if (size > RAW || bpf_probe_read_user(w->object, size, (void *)(code + p->code_from)))
		return 0;
	hash = mix(w->seed, code);
#pragma unroll
	for (i = 0; i < RAW; i += 8)
		if (i < size)
			hash = mix(hash, *(u64 *)(w->object + i));
	if (p->check_texts) {
		u64 name = word_at(w->object, p->code_name - p->code_from);
		u64 file = word_at(w->object, p->code_filename - p->code_from);

		hash = mix_text(key, mix_text(key, hash, name), file);
		hash = mix_lines(key, hash, word_at(w->object, p->code_linetable - p->code_from));
	}
	return hash ? hash : 1;
}

/* The same, from memory if that can be trusted. */
static __always_inline u64 known_number(struct walk *w, struct memory *memory, u64 frame, u64 code)
{
	struct known_code *known = &memory->codes[frame * 0x9e3779b97f4a7c15ULL >> 57 & (KNOWN_CODES - 1)];
	u32 now = w->now, age;
	u64 number;
	bool same = known->frame == frame && known->code == code;

	age = known->verified - known->since;
	if (same && age > TRUSTED_AFTER && now - known->verified < TRUSTED_FOR && (now - known->verified) * TRUSTED_PART < age)
		return known->number;
	number = number_of(w->key, code);
	if (!same || known->number != number) {
		known->frame = frame;
		known->code = code;
		known->number = number;
		known->since = now;
	}
	known->verified = now;
	return number;
}

/* Takes the next Python frame. */
static __always_inline u32 step(struct walk *w, struct memory *memory, const struct gpurec_python *p)
{
	u64 address = w->next, at = address - w->from, code, number;
	u32 size = p->frame_size, owner, position, count = w->count;
	struct gpurec_frame *frame;
	const u8 *raw;

	if (at >= w->size || at + size > w->size) {
		if (size > RAW || !look_down_from(w, address, size, address & 4095))
			return STEP_CUT;
		at = address - w->from;
	}
	if (at >= WINDOW)
		return STEP_CUT;
	raw = w->window + at;
	w->last = address;
	w->next = word_at(raw, p->frame_previous);
	owner = p->frame_owner == GPUREC_ABSENT ? 0 : raw[p->frame_owner & (RAW - 1)];
	if (owner >= p->owner_limit) {
		if (w->stack.pythons)
			w->frames[(count - 1) & (GPUREC_FRAMES - 1)].owner |= GPUREC_ENTRY;
		return STEP_ON;
	}
	if (w->stack.pythons >= GPUREC_PYTHON_FRAMES)
		return STEP_CUT;
	code = word_at(raw, p->frame_code) & ~(u64)p->code_mask;
	if (p->instruction_kind < 2)
		position = half_at(raw, p->frame_instruction);
	else
		position = word_at(raw, p->frame_instruction) - code - p->code_adaptive;
	number = known_number(w, memory, address, code);
	if (!number)
		return STEP_CUT;
	frame = &w->frames[count & (GPUREC_FRAMES - 1)];
	frame->code = number;
	frame->position = position;
	frame->owner = owner;
	if (p->instruction_kind < 2 || (p->frame_entry != GPUREC_ABSENT && raw[p->frame_entry & (RAW - 1)]))
		frame->owner |= GPUREC_ENTRY;
	w->codes[count & (GPUREC_FRAMES - 1)] = code;
	w->count = count + 1;
	w->stack.pythons++;
	w->stack.key = mix(w->stack.key, number ^ (u64)position << 32);
	return STEP_ON;
}

/* Takes the next few Python frames. */
__attribute__((noinline)) u32 steps(struct walk *w, struct memory *memory)
{
	const struct gpurec_python *p;
	u32 i, result;

	if (!w || !memory)
		return STEP_CUT;
	p = python_of(w);
	if (!p)
		return STEP_CUT;
	for (i = 0; i < STEPS; i++) {
		if (!w->next)
			return STEP_END;
		result = step(w, memory, p);
		if (result != STEP_ON)
			return result;
	}
	return w->next ? STEP_ON : STEP_END;
}

#endif

/*
 * Shared by the driver programs: which threads are recorded, the open Linux-side functions of a thread, and how a
 * record with pieces of memory is assembled.
 *
 * In: a Linux-side hit. Out: gpurec_call, gpurec_return and gpurec_instant records, all with GPUREC_KERNEL. Nothing
 * here sleeps or faults: memory that is not resident is reported as unreadable.
 * Not here: what a request means.
 */
#ifndef GPUREC_KERNEL_H
#define GPUREC_KERNEL_H

#define PF_KTHREAD 0x00200000
#define STACK_BITS 14            /* x86-64 and arm64: 16 KiB */
#define SYSTEM_CALL (~0ULL)      /* the `sp` of a system call: above every function in it */
#define PAYLOAD 1016             /* all pieces of a Linux-side hook with their heads */
#define PAYLOAD_MASK 1023        /* a bound that verifiers recognise */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GPUREC_MAX_PROBES);
	__type(key, u32);
	__type(value, struct gpurec_hook);
} hooks SEC(".maps");

/* Device numbers of the driver: major → family. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, u32);
	__type(value, u32);
} majors SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct gpurec_ioctl_key);
	__type(value, struct gpurec_ioctl_shape);
} shapes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct gpurec_driver);
} driver SEC(".maps");

/* An open function or system call. `place` is what its return needs: the pointers to read again, and for an ioctl
 * the key of its shape. */
struct kernel_frame {
	u64 sp;
	u64 ts;
	u32 probe;
	u32 size;
	u64 seen; /* the copies of the program that saw it, a bit for each */
	u64 place[GPUREC_HOOK_EXITS];
};

/* The memory in which a record is assembled. */
struct kernel_scratch {
	union {
		struct gpurec_call call;
		struct gpurec_return ret;
	};
	u8 payload[PAYLOAD + GPUREC_HOOK_PIECE + 64];
};

struct kernel_thread {
	u64 copy;  /* the bit of the copy that is handling the present hit */
	u32 depth;
	u32 busy;  /* the scratch memory is in use: an interrupt came in between */
	u64 registers[8]; /* registers of the call that begins, in memory so that a read can index them */
	struct kernel_frame at[GPUREC_KERNEL_FRAMES];
	struct kernel_scratch scratch;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct kernel_thread);
} kernel_threads SEC(".maps");

static __always_inline struct gpurec_driver *numbers(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&driver, &zero);
}

/* The flags of the current thread's records; 0 if it is not recorded. Only threads that use the driver's files get a
 * state; with --all no other threads are recorded. */
static __always_inline u32 recorded(struct task_struct *task, u32 scope, bool uses_driver)
{
	struct thread *t;

	if (!kernel_begins() || !task->pid)
		return 0;
	if (task->flags & PF_KTHREAD)
		return scope == GPUREC_TARGETS ? 0 : GPUREC_KERNEL | GPUREC_KERNEL_THREAD;
	t = uses_driver ? thread_state(task) : bpf_task_storage_get(&threads, task, 0, 0);
	if (t && uses_driver)
		t->uses_driver = 1;
	if (t)
		return t->traced ? GPUREC_KERNEL : 0;
	if (config.everyone && scope == GPUREC_TARGETS && !uses_driver)
		return 0;
	return is_target(task->tgid) ? GPUREC_KERNEL : 0;
}

static __always_inline bool same_stack(u64 a, u64 b)
{
	return ((a ^ b) >> STACK_BITS) == 0;
}

/* Drops frames that cannot be open any more: those at or below the new one on the same stack, and those on an
 * interrupt's stack when the thread itself continues. A new system call drops all. A function reached by a tail call
 * shares its frame with the previous function, which is still open. */
static __always_inline void drop_dead(struct kernel_thread *k, struct task_struct *task, u32 probe, u64 sp)
{
	u64 stack = (u64)BPF_CORE_READ(task, stack);
	bool on_own = same_stack(stack, sp);
	u32 i;

	if (sp == SYSTEM_CALL) {
		k->depth = 0;
		return;
	}
	for (i = 0; i < GPUREC_KERNEL_FRAMES && k->depth; i++) {
		struct kernel_frame *frame = &k->at[(k->depth - 1) & (GPUREC_KERNEL_FRAMES - 1)];
		u64 top = frame->sp;

		if (top == SYSTEM_CALL || (same_stack(top, sp) ? top > sp : !on_own))
			break;
		if (top == sp && frame->probe != probe)
			break;
		k->depth--;
	}
}

static __always_inline struct kernel_frame *open_frame(struct kernel_thread *k, u32 probe, u64 sp)
{
	struct kernel_frame *frame;

	if (k->depth >= GPUREC_KERNEL_FRAMES)
		return NULL;
	frame = &k->at[k->depth & (GPUREC_KERNEL_FRAMES - 1)];
	frame->sp = sp;
	frame->probe = probe;
	frame->ts = 0;
	frame->size = 0;
	frame->seen = k->copy;
	return frame;
}

static __always_inline struct kernel_frame *top_frame(struct kernel_thread *k, u32 probe, u64 sp)
{
	struct kernel_frame *top = &k->at[(k->depth - 1) & (GPUREC_KERNEL_FRAMES - 1)];

	return k->depth && top->sp == sp && top->probe == probe ? top : NULL;
}

/* Several copies of a program at one hook all see the hit: the frame that one copy has opened shows the others that
 * the hit is recorded. A copy that finds a frame that it has already seen has found a stale one, and the hit is new. */
static __always_inline bool is_reported(struct kernel_thread *k, u32 probe, u64 sp, u32 copy)
{
	struct kernel_frame *top = top_frame(k, probe, sp);

	k->copy = 1 << (copy & 31);
	if (!top || top->seen & k->copy)
		return false;
	top->seen |= k->copy;
	return true;
}

/* Closes the innermost frame of this probe, or the one at this stack position, and all frames opened after it: their
 * returns were missed. */
static __always_inline bool close_frame(struct kernel_thread *k, u32 probe, u64 sp, struct kernel_frame *to)
{
	u32 i, depth = k->depth;

	for (i = 0; i < GPUREC_KERNEL_FRAMES && depth; i++) {
		struct kernel_frame *frame = &k->at[(depth - 1) & (GPUREC_KERNEL_FRAMES - 1)];

		depth--;
		if (frame->probe == probe && (!sp || frame->sp == sp)) {
			k->depth = depth;
			*to = *frame;
			return true;
		}
	}
	return false;
}

static __always_inline void kernel_head(struct gpurec_head *head, u16 kind, u32 probe, u32 flags)
{
	fill_head(head, kind, probe, 0);
	head->flags = flags;
}

static __always_inline void kernel_call(struct gpurec_call *call, u32 probe, u32 flags, u32 depth, const u64 *args)
{
	u32 i;

	kernel_head(&call->head, GPUREC_CALL, probe, flags);
	call->pid = bpf_get_current_pid_tgid() >> 32;
	call->payload = 0;
	call->words = 0;
	call->sp = GPUREC_KERNEL_TOP - depth;
#pragma unroll
	for (i = 0; i < 6; i++)
		call->args[i] = args[i];
}

/* Appends a piece. Returns the number of payload bytes used. */
static __noinline u32 add_piece(struct kernel_scratch *s, u32 used, u64 pointer, u32 size, u32 user)
{
	struct gpurec_piece *piece;
	void *to;
	long error;

	if (used > PAYLOAD - sizeof(*piece))
		return used;
	if (size > GPUREC_HOOK_PIECE)
		size = GPUREC_HOOK_PIECE;
	piece = (struct gpurec_piece *)(s->payload + used);
	to = s->payload + used + sizeof(*piece);
	piece->late = 0;
	piece->length = 0;
	piece->state = GPUREC_PIECE_NULL;
	if (!pointer)
		return used + sizeof(*piece);
	error = user ? bpf_probe_read_user(to, size, (void *)pointer) : bpf_probe_read_kernel(to, size, (void *)pointer);
	piece->state = GPUREC_PIECE_READ;
	if (error && user && (pointer & 4095) + size > 4096) {
		/* The requested size is the largest that a request can have: this one may end earlier. */
		piece->state = GPUREC_PIECE_CUT;
		size = 4096 - (pointer & 4095);
		if (size > GPUREC_HOOK_PIECE)
			size = GPUREC_HOOK_PIECE;
		error = bpf_probe_read_user(to, size, (void *)pointer);
	}
	if (error) {
		piece->state = GPUREC_PIECE_UNREADABLE;
		return used + sizeof(*piece);
	}
	piece->length = size;
	return used + sizeof(*piece) + ((size + 7) & ~7U);
}

/* Four or eight bytes of a piece that was read; 0 if it was not. */
static __always_inline u64 read_back(struct kernel_scratch *s, u32 piece, u32 offset, u32 size)
{
	struct gpurec_piece *head = (struct gpurec_piece *)(s->payload + (piece & PAYLOAD_MASK));
	u64 value = 0;

	if ((head->state != GPUREC_PIECE_READ && head->state != GPUREC_PIECE_CUT) || offset + size > head->length)
		return 0;
	bpf_probe_read_kernel(&value, size == 8 ? 8 : 4, (u8 *)(head + 1) + offset);
	return value;
}

#define KERNEL_SIZES(each) each(128) each(256) each(512) each(PAYLOAD + 88)

#define KERNEL_SEND(room, limit)                                    \
	if (size <= (limit)) {                                      \
		struct gpurec_head *to_ = room(limit);              \
		if (!to_)                                           \
			return 0;                                   \
		bpf_probe_read_kernel(to_, limit, s);               \
		to_->ts = bpf_ktime_get_ns();                       \
		ts = to_->ts;                                       \
		submit(to_);                                        \
		return ts;                                          \
	}
#define KERNEL_SEND_CALL(limit) KERNEL_SEND(reserve_call, limit)
#define KERNEL_SEND_RETURN(limit) KERNEL_SEND(reserve, limit)

static __always_inline u64 send_kernel_call(const struct kernel_scratch *s, u32 size)
{
	u64 ts;

	KERNEL_SIZES(KERNEL_SEND_CALL)
	return 0;
}

static __always_inline u64 send_kernel_return(const struct kernel_scratch *s, u32 size)
{
	u64 ts;

	KERNEL_SIZES(KERNEL_SEND_RETURN)
	return 0;
}

/* Records a call with registers only. Returns its time, or 0 if there was no space. */
static __always_inline u64 plain_call(u32 probe, u32 flags, u32 depth, const u64 *args)
{
	struct gpurec_call *call = reserve_call(sizeof(*call));
	u64 ts;

	if (!call)
		return 0;
	kernel_call(call, probe, flags, depth, args);
	ts = call->head.ts;
	submit(call);
	return ts;
}

static __always_inline void plain_return(u32 probe, u32 flags, u64 begin, u64 value)
{
	struct gpurec_return *ret = reserve(sizeof(*ret));

	if (!ret) {
		count_lost_return(probe);
		return;
	}
	kernel_head(&ret->head, GPUREC_RETURN, probe, flags);
	ret->begin = begin;
	ret->value = value;
	ret->payload = 0;
	ret->pad = 0;
	submit(ret);
}

static __always_inline void scratch_return(struct kernel_scratch *s, u32 probe, u32 flags, u64 begin, u64 value, u32 payload)
{
	kernel_head(&s->ret.head, GPUREC_RETURN, probe, flags);
	s->ret.begin = begin;
	s->ret.value = value;
	s->ret.payload = payload;
	s->ret.pad = 0;
	if (!send_kernel_return(s, sizeof(s->call) + payload))
		count_lost_return(probe);
}

/* Flags for the return record of an open frame: a call that was recorded also gets its return. */
static __always_inline u32 flags_at_return(struct task_struct *task)
{
	return task->flags & PF_KTHREAD ? GPUREC_KERNEL | GPUREC_KERNEL_THREAD : GPUREC_KERNEL;
}

#endif

/*
 * Reads the target's memory by a table that the recorder made from the functions' signatures. In: the registers and a
 * plan. Out: stack words and pieces, one after the other, in scratch memory; from there one copy moves them into the
 * ring, so that a record's space in the ring is not held while memory is read.
 * A read that fails is recorded as failed: never a wrong value.
 *
 * No read here waits for a page. A program that waits does so inside Linux's grace period for uprobes and sleepable
 * programs, and a target whose page never arrives (userfaultfd, a FUSE file) would block every process of the machine
 * that attaches or detaches. Memory that is not resident at the entry is read once more at the return, when the callee
 * has usually touched it.
 */
#ifndef GPUREC_CAPTURE_H
#define GPUREC_CAPTURE_H

/* The memory in which a record is assembled. The record comes first: it is copied from here. */
struct scratch {
	union {
		struct gpurec_call call;
		struct gpurec_return ret;
	};
	u8 payload[GPUREC_PAYLOAD + GPUREC_PIECE + 512]; /* the last piece may begin anywhere before its end */
	u32 taken;
	u32 pad;
};

/* A few for all threads, because one is in use only for a moment, and too large for task storage. The recorder
 * creates as many as the CPUs can need. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 64);
	__type(key, u32);
	__type(value, struct scratch);
} scratches SEC(".maps");

#define SCRATCH_TRIES 16

/* Takes a free scratch: returns its number, or the number of scratches if none is free. A preempted thread keeps its
 * own. Not static: the verifier checks it once. */
__attribute__((noinline)) u32 free_scratch(u32 at)
{
	u32 i;

	for (i = 0; i < SCRATCH_TRIES; i++) {
		u32 key = (at + i) & (config.scratches - 1);
		struct scratch *s = bpf_map_lookup_elem(&scratches, &key);

		if (s && !s->taken && !__sync_val_compare_and_swap(&s->taken, 0, 1))
			return key;
	}
	return config.scratches;
}

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GPUREC_MAX_PROBES);
	__type(key, u32);
	__type(value, struct gpurec_capture);
} captures SEC(".maps");

struct reader {
	u32 key; /* of the reader's scratch memory */
	u32 words;
	u32 used;
	u32 at[GPUREC_READS]; /* where each piece's bytes begin */
};

static __always_inline u64 word(const struct reader *r, const struct scratch *s, u32 index)
{
	if (index < 6)
		return s->call.args[index];
	index -= 6;
	if (index >= r->words || index >= GPUREC_WORDS)
		return 0;
	return ((u64 *)s->payload)[index];
}

/* Eight or four bytes of an earlier piece. */
static __always_inline u64 inside(const struct reader *r, const struct scratch *s, u32 piece, u32 offset, bool wide)
{
	u64 value = 0;
	u32 at = r->at[piece & (GPUREC_READS - 1)] + offset;

	if (!r->at[piece & (GPUREC_READS - 1)] || at > GPUREC_PAYLOAD)
		return 0;
	bpf_probe_read_kernel(&value, wide ? 8 : 4, s->payload + at);
	return value;
}

/* Finds a piece's place. Not static, as below: the verifier checks it once, and not in each iteration of each loop
 * that calls it. */
__attribute__((noinline)) int find_place(struct reader *r, const struct gpurec_read *read, struct place *place)
{
	struct scratch *s;
	u32 key;

	if (!r || !read || !place)
		return 0;
	key = r->key;
	s = bpf_map_lookup_elem(&scratches, &key);
	if (!s)
		return 0;
	place->count = 1;
	if (read->source & GPUREC_INSIDE)
		place->pointer = inside(r, s, read->source & ~GPUREC_INSIDE, read->source_offset, true);
	else
		place->pointer = word(r, s, read->source);
	if (read->kind == GPUREC_READ_COUNTED) {
		if (read->count & GPUREC_INSIDE)
			place->count = inside(r, s, read->count & ~GPUREC_INSIDE, read->count_offset, false);
		else
			place->count = word(r, s, read->count);
	}
	return 0;
}

/* `index` is the number by which later pieces refer to this one; GPUREC_READS if none does. Above that, at a return:
 * the piece is entry read `index - GPUREC_READS - 1`, which failed at the entry. Returns enum gpurec_piece_state. */
__attribute__((noinline)) int read_piece(struct reader *r, const struct gpurec_read *read, struct place *place, u32 index)
{
	struct gpurec_piece *piece;
	u32 key, used, size;
	struct scratch *s;
	long length = 0;
	u64 pointer;
	void *to;

	if (!r || !read || !place)
		return 0;
	key = r->key;
	s = bpf_map_lookup_elem(&scratches, &key);
	used = r->used;
	if (!s || used > GPUREC_PAYLOAD - sizeof(*piece))
		return 0;
	size = read->size;
	pointer = place->pointer;
	piece = (struct gpurec_piece *)(s->payload + used);
	to = s->payload + used + sizeof(*piece);
	piece->late = index > GPUREC_READS ? index - GPUREC_READS : 0;
	piece->length = 0;
	piece->state = pointer ? GPUREC_PIECE_READ : GPUREC_PIECE_NULL;
	if (pointer && read->kind == GPUREC_READ_TEXT_THROUGH) {
		u64 through = 0;

		if (bpf_probe_read_user(&through, sizeof(through), (void *)pointer))
			piece->state = GPUREC_PIECE_UNREADABLE;
		else if (!through)
			piece->state = GPUREC_PIECE_NULL;
		pointer = through;
	}
	if (piece->state == GPUREC_PIECE_READ) {
		if (read->kind == GPUREC_READ_COUNTED && place->count > GPUREC_PIECE)
			piece->state = GPUREC_PIECE_CUT;
		else if (read->kind == GPUREC_READ_COUNTED && place->count * read->each < size)
			size = place->count * read->each;
		else if (read->kind == GPUREC_READ_COUNTED && place->count * read->each > size)
			piece->state = GPUREC_PIECE_CUT;
		if (size > GPUREC_PIECE)
			size = GPUREC_PIECE;
		if (read->kind == GPUREC_READ_TEXT || read->kind == GPUREC_READ_TEXT_THROUGH) {
			length = bpf_probe_read_user_str(to, size, (void *)pointer);
			if (length == size) {
				u8 last = 1;

				bpf_probe_read_user(&last, 1, (void *)(pointer + size - 1));
				if (last)
					piece->state = GPUREC_PIECE_CUT;
			}
		} else {
			length = size;
			if (bpf_probe_read_user(to, size, (void *)pointer))
				length = -1;
		}
		if (length < 0) {
			piece->state = GPUREC_PIECE_UNREADABLE;
			length = 0;
		}
		if (length > GPUREC_PIECE)
			length = GPUREC_PIECE;
		piece->length = length;
		if (length && index < GPUREC_READS) {
			barrier_var(index); /* the verifier needs a visible bound */
			r->at[index & (GPUREC_READS - 1)] = used + sizeof(*piece);
		}
	}
	r->used = used + sizeof(*piece) + ((length + 7) & ~7UL);
	return piece->state;
}

#endif

/*
 * Programs in copies. A thread can be preempted in a program (Linux 7.1), and as long as it is the kernel passes the
 * program over for whoever else hits it on that CPU: what one copy is passed over for another sees.
 * In: a hit, and which copy. Out: whether another has told it; and the hits that the first was passed over for and
 * another saw, so that the recorder knows how many were seen by none.
 */
#ifndef GPUREC_COPIES_H
#define GPUREC_COPIES_H

/* One fork, exec or exit: by which thread, and when that began. */
struct mark {
	u32 tid;
	u32 what;
	u64 when;
};

/* Hits of which not all copies have run yet. One that the last copy was passed over for stays. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, GPUREC_MAX_MARKS);
	__type(key, struct mark);
	__type(value, u32);
} marks SEC(".maps");

/* By enum gpurec_copied. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GPUREC_COPIED);
	__type(key, u32);
	__type(value, u64);
} covered SEC(".maps");

static __always_inline void cover(u32 what)
{
	u64 *count = bpf_map_lookup_elem(&covered, &what);

	if (count)
		__sync_fetch_and_add(count, 1);
}

/* A hit could not be marked: the table is full. From then on the first copy alone tells, since another would not
 * know what it has told. */
u32 first_alone = 0;

/* Also of whoever is not traced: the kernel's own count does not tell them apart. */
static __always_inline bool is_told(u32 copy, u32 what, struct task_struct *task)
{
	struct mark mark = {.what = what};
	int error; /* not long: see forks */

	if (config.copies <= 1)
		return false;
	if (copy && *(volatile u32 *)&first_alone)
		return true;
	mark.tid = BPF_CORE_READ(task, pid);
	mark.when = BPF_CORE_READ(task, start_time);
	if (what == GPUREC_COPIED_EXEC)
		mark.when += BPF_CORE_READ(task, self_exec_id);
	/* Looking is done sooner: the shorter this is, the less often somebody is preempted in it. */
	error = -1;
	if (!copy || !bpf_map_lookup_elem(&marks, &mark))
		error = bpf_map_update_elem(&marks, &mark, &copy, BPF_NOEXIST);
	if (!copy && error)
		*(volatile u32 *)&first_alone = 1;
	if (copy && !error)
		cover(what);
	if (copy + 1 == config.copies)
		bpf_map_delete_elem(&marks, &mark);
	return copy && error;
}

/* Which copy has seen a thread's mapping last, at its entry or its exit. These have no name that all copies would know
 * them by; but they come one after the other, and the copies in their order. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, u32);
} last_mapping SEC(".maps");

/* There was no memory for that: from then on nothing is covered any more. */
u32 cannot_cover = 0;

/* Of every thread of the machine, as the kernel's own count. Where all copies at an exit were passed over, and then the
 * first ones at the next entry, two entries are taken for one: then more is counted as missing than is. Returns whether
 * this is the first copy that sees the hit. */
static __always_inline bool cover_mapping(u32 copy, u32 what)
{
	u32 *last, now = what << 8 | copy;
	bool is_first;

	if (config.copies <= 1 || *(volatile u32 *)&cannot_cover)
		return !copy;
	last = bpf_task_storage_get(&last_mapping, bpf_get_current_task_btf(), 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!last) {
		*(volatile u32 *)&cannot_cover = 1;
		return !copy;
	}
	is_first = !copy || !(*last >> 8 == what && *last < now);
	if (copy && is_first)
		cover(what);
	*last = now;
	return is_first;
}

#endif

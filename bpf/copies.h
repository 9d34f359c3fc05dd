/*
 * Programs in copies. A thread can be preempted in a program (Linux 7.1). Until it continues, Linux skips that program
 * for every other thread that hits it on the same CPU, and another copy sees the hit instead.
 * In: a hit, and the copy's number. Out: whether another copy has recorded the hit; and the number of hits that the
 * first copy missed and another saw, so that the recorder knows how many hits no copy saw.
 */
#ifndef GPUREC_COPIES_H
#define GPUREC_COPIES_H

/* One fork, exec or exit: its thread, and when that thread began. */
struct mark {
	u32 tid;
	u32 what;
	u64 when;
};

/* Hits that some copy has not seen yet. The entry of a hit that the last copy missed stays. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, GPUREC_MAX_MARKS);
	__type(key, struct mark);
	__type(value, u32);
} marks SEC(".maps");

/* Indexed by enum gpurec_copied. */
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

/* A hit could not be marked: the table is full. From then on only the first copy records, because the others would
 * not know what it has recorded. */
u32 first_alone = 0;

/* Also counts threads that are not traced, because Linux's own miss counter includes them. */
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
	/* The lookup is quicker than an update: the shorter this is, the less often a thread is preempted in it. */
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

/* The copy that last saw a thread's mapping, at its entry or its exit. Mappings have no name that all copies know,
 * but they happen one after the other, and the copies run in order. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, u32);
} last_mapping SEC(".maps");

/* An allocation failed: from then on nothing is counted as covered. */
u32 cannot_cover = 0;

/* Counts every thread of the machine, as Linux's own miss counter does. If all copies are skipped at an exit, and
 * the first ones again at the next entry, two entries look like one: then the count of missing hits is too high.
 * Returns whether this is the first copy that sees the hit. */
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

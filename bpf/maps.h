/*
 * The maps that the programs share. One object creates them, the others take them over
 * (reuse_fd), so there is one set of rings, one target set, one thread state.
 */
#ifndef GPUREC_MAPS_H
#define GPUREC_MAPS_H

/* The recorder's hold on a thread. Having one at all means that the question
 * "is this thread traced?" was answered. */
struct thread {
	u32 traced;
	u32 seq;
	u64 outermost;  /* the stack pointer of the outermost call under way, 0: in none */
	u64 off_since;  /* when it left the CPU inside a call or an ioctl */
	u32 off_state;
	u32 in_ioctl;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct gpurec_state);
} state SEC(".maps");

/* One ring a CPU: a single ring serialises every CPU on its lock. The recorder fills
 * this array with rings of the size that the user asked for. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, GPUREC_MAX_CPUS);
	__type(key, u32);
	__array(values, struct {
		__uint(type, BPF_MAP_TYPE_RINGBUF);
		__uint(max_entries, 4096);
	});
} rings SEC(".maps");

/* What the recorder must act on at once, while a process waits. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} control SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, GPUREC_MAX_TARGETS);
	__type(key, u32);
	__type(value, u32);
} targets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thread);
} threads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, GPUREC_MAX_PROBES);
	__type(key, u32);
	__type(value, struct gpurec_lost);
} lost SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct gpurec_lost_total);
} lost_total SEC(".maps");

#endif

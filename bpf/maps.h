/*
 * The maps that the programs share. One object creates them, the others take them over
 * (reuse_fd), so there is one set of rings, one target set, one thread state.
 */
#ifndef GPUREC_MAPS_H
#define GPUREC_MAPS_H

/* A call under way that leaves one thing behind a pointer. */
struct awaited {
	u64 begin; /* its time, 0: nobody's */
	u64 sp;
	u64 pointer;
};

/* As many as are nested in most programs; those beyond are kept among the frames. */
#define GPUREC_AWAITED 4

/* The recorder's hold on a thread. Having one at all means that the question
 * "is this thread traced?" was answered. */
struct thread {
	u32 traced;
	u32 seq;
	u64 outermost;  /* the stack pointer of the outermost call under way, 0: in none */
	u64 open_above; /* where the calls under way have their frames: above this stack pointer */
	u64 off_since;  /* when it left the CPU inside a call or an ioctl */
	u32 off_state;
	u32 in_ioctl;
	u32 uses_driver;
	u32 told_by;    /* of a hit that programs of two reaches see, what the first of them saw */
	u64 told_sp;
	u64 told_ip;
	u64 stack_low;  /* the memory that holds the stack of the outermost call: see stack.h */
	u64 stack_size;
	u32 late;       /* some open call has reads that failed at its entry */
	u32 pad;
	struct awaited awaited[GPUREC_AWAITED];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct gpurec_state);
} state SEC(".maps");

/* For each CPU its rings (struct gpurec_positions): one for all would serialise every CPU on
 * it. Not the kernel's own ring buffer: that takes a lock and two helpers for each record, and
 * is always as cold as it is large. The recorder makes this map, of its own sizes. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(u32));
	__uint(value_size, 4096);
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
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct gpurec_pulse);
} pulse SEC(".maps");

/* Processes stopped for --lossless, and since when (pause.h). What outlives the recorder reads
 * this too. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, GPUREC_MAX_TARGETS);
	__type(key, u32);
	__type(value, u64);
} paused SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thread);
} threads SEC(".maps");

/* What a piece is read from, known at entry and, for exit pieces, kept until the return. */
struct place {
	u64 pointer;
	u64 count;
};

/* Open calls of a thread: for the backends without session memory all of them, else those
 * from which something is to be read at the return, when the registers that told where
 * are long overwritten. Dropped frames follow the kernel's own rule for uretprobes: a
 * frame at or below the new one is dead. */
struct frame {
	u64 sp;
	u64 ts;
	u64 late;                        /* a bit for each entry read that failed */
	struct place exit[GPUREC_READS]; /* what is read at the return: exit reads, then late ones */
};

struct frames {
	u32 depth;
	u32 pad;
	struct frame at[GPUREC_MAX_FRAMES];
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct frames);
} frames SEC(".maps");

/* Not one for each CPU: the kernel would allocate each entry by itself, and what is lost is
 * counted seldom. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
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

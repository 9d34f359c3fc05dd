/*
 * The maps that the programs share. One object creates them, the others reuse them (reuse_fd), so there is one set of
 * rings, one target set, one thread state.
 */
#ifndef GPUREC_MAPS_H
#define GPUREC_MAPS_H

/* A call in progress whose single capture is read through a pointer at its return. */
struct awaited {
	u64 begin; /* the call's time; 0: unused */
	u64 sp;
	u64 pointer;
};

/* Enough for the nesting of most programs; deeper calls are kept among the frames. */
#define GPUREC_AWAITED 4

/* The state of a thread. If it exists, the question "is this thread traced?" is answered. */
struct thread {
	u32 traced;
	u32 seq;
	u64 outermost;  /* the stack pointer of the outermost call in progress; 0: none */
	u64 open_above; /* the frames of the calls in progress are above this stack pointer */
	u64 off_since;  /* when the thread left the CPU inside a call or an ioctl */
	u32 off_state;
	u32 in_ioctl;
	u32 uses_driver;
	u32 late;       /* some open call has reads that failed at its entry */
	u32 child;      /* what a copy of a program at forks, execs, exits or mprotect has recorded already (process.bpf.c) */
	u32 execs;
	u32 ended;
	u32 protected;
	u64 stack_low;  /* the memory that contains the stack of the outermost call: see stack.h */
	u64 stack_size;
	u64 stack_sp;   /* the stack pointer of the open call that has a stack (stacks.h); 0: none */
	u64 stack_key;  /* of the call that begins; 0: it has none */
	u64 stack_seed;
	u64 python;     /* the thread's state in the Python interpreter */
	u64 python_newest; /* the newest thread there when this one was last looked for */
	u32 python_span; /* from the thread's innermost frame to its outermost, in bytes, at its last stack */
	u32 pad;
	u64 own_id;     /* gettid() in the process's PID namespace */
	struct awaited awaited[GPUREC_AWAITED];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct gpurec_state);
} state SEC(".maps");

/* The rings of each CPU (struct gpurec_positions): a single ring would serialise all CPUs. Not BPF's own ring
 * buffer: it takes a lock and two helpers for each record, and its memory is always as cold as it is large. The
 * recorder creates this map with its own sizes. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(u32));
	__uint(value_size, 4096);
} rings SEC(".maps");

/* Records that the recorder must act on at once, because a process waits. */
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

/* Processes stopped for --lossless, with the time of the stop (pause.h). The guardian reads this map too. */
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

/* Layouts of Python interpreters, and the interpreter of each process. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GPUREC_PYTHONS);
	__type(key, u32);
	__type(value, struct gpurec_python);
} pythons SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, GPUREC_MAX_TARGETS);
	__type(key, u32);
	__type(value, struct gpurec_python_at);
} python_at SEC(".maps");

/* How to unwind from a return address, by rule_key (stacks.h). */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, GPUREC_RULES);
	__type(key, u64);
	__type(value, struct gpurec_rule);
} rules SEC(".maps");

/* Where a piece is read from: known at entry and, for exit pieces, kept until the return. */
struct place {
	u64 pointer;
	u64 count;
};

/* Open calls of a thread: all of them for backends without session memory; otherwise those with something to read at
 * the return, when the registers that held the pointers are overwritten. Frames are dropped by Linux's own rule for
 * uretprobes: a frame at or below the new one is dead. */
struct frame {
	u64 sp;
	u64 ts;
	u64 late;                        /* a bit for each entry read that failed */
	struct place exit[GPUREC_READS]; /* read at the return: exit reads, then late ones */
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

/* Not per CPU: Linux would allocate each entry separately, and losses are rare. */
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

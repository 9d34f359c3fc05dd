/*
 * The wire contract between the BPF programs and the recorder: every record that
 * crosses a ring, and every map value that both sides touch. This is the only file
 * that both C and Rust read (Rust through the skeletons' generated types).
 *
 * In: nothing. Out: fixed-width, explicitly padded structs and the limits.
 * Not here: kernel types, helpers, anything that is private to one program.
 */
#ifndef GPUREC_H
#define GPUREC_H

enum gpurec_limit {
	GPUREC_MAX_CPUS = 1024,
	GPUREC_MAX_PROBES = 16384,    /* probe ids: index of the loss counters */
	GPUREC_MAX_TARGETS = 65536,   /* traced processes alive at one time */
	GPUREC_MAX_FILES = 65536,     /* executable files already looked at */
	GPUREC_MAX_MARKS = 16384,     /* forks, execs and exits that not all copies of a program have seen */
	GPUREC_MAX_SPENDERS = 32768,  /* threads times functions that --budget watches */
	GPUREC_MAX_FRAMES = 64,       /* nested calls a thread (the kernel's own limit for uretprobes) */
	GPUREC_STOP_COUNT = 24,       /* bits of a number of files that a stopped process waits for */
	GPUREC_FILE_NAME = 32,        /* bytes of a file's name kept */
	GPUREC_COMMAND = 4096,        /* bytes of a command line kept */
	GPUREC_READS = 4,             /* pieces of memory read at a call's entry, and at its return */
	GPUREC_WORDS = 16,            /* stack words read at a call's entry */
	GPUREC_FEW_WORDS = 6,         /* of these, read straight into the ring */
	GPUREC_SMALL = 64,            /* bytes of a single thing that is read at a return */
	GPUREC_PIECE = 4096,          /* bytes of the longest piece */
	GPUREC_PAYLOAD = 8192,        /* bytes of all of a call's pieces */
	GPUREC_HOOK_EXITS = 2,        /* pieces read at a kernel function's return */
	GPUREC_HOOK_PIECE = 256,      /* bytes of the longest piece of a kernel hook */
	GPUREC_KERNEL_FRAMES = 32,    /* nested kernel functions a thread */
	GPUREC_RING_HEADER = 8,
	GPUREC_RING_DATA = 4096,      /* where the first ring of a CPU begins: positions lie before */
	GPUREC_RING_SLACK = 16384,    /* behind a ring's end: the last record may begin anywhere before it */
	GPUREC_KERNEL_TOP = 4096,     /* `sp` of a thread's outermost kernel frame: below every user stack */
};

enum gpurec_kind {
	GPUREC_CALL = 1,       /* struct gpurec_call: a hooked function was entered */
	GPUREC_RETURN = 2,     /* struct gpurec_return: it returned */
	GPUREC_FORK = 3,       /* struct gpurec_fork */
	GPUREC_EXEC = 4,       /* struct gpurec_exec */
	GPUREC_EXIT = 5,       /* struct gpurec_exit: a thread ended, perhaps its process with it */
	GPUREC_NEW_FILE = 6,   /* struct gpurec_new_file, control ring only */
	GPUREC_INSTANT = 7,    /* struct gpurec_instant: something in the kernel that is told once */
};

enum gpurec_flag {
	/* The call's return address is the uretprobe trampoline: it was reached by a
	 * tail call from a hooked function, and both end with one return. */
	GPUREC_CHAINED = 1,
	/* gpurec_exit: the whole process ended. */
	GPUREC_PROCESS_ENDED = 2,
	/* gpurec_exec: the command line is cut. Calls and returns: the memory that was to be read
	 * with them was not. */
	GPUREC_CUT = 4,
	/* gpurec_new_file: the process waits (SIGSTOP) until the recorder lets it go on. */
	GPUREC_STOPPED = 8,
	/* gpurec_new_file: the program itself (exec), not a mapping. */
	GPUREC_PROGRAM = 16,
	/* Seen in the kernel, beneath the program: not counted in the thread's `seq`, since it
	 * may come in the middle of another program that is just counting. */
	GPUREC_KERNEL = 32,
	/* The thread is one of the kernel's own, not a target's. */
	GPUREC_KERNEL_THREAD = 64,
	/* An ioctl that came wrapped in NV_ESC_IOCTL_XFER_CMD. */
	GPUREC_WRAPPED = 128,
	/* gpurec_new_file: no file. Hooks for one process see less from here on: it forked, or
	 * the kernel knows it by a thread that is gone. */
	GPUREC_ALONE = 256,
	/* gpurec_new_file: not stopped, since somebody would take the stop for one of their own: a
	 * shell with job control, a debugger. */
	GPUREC_WATCHED = 512,
	/* A call whose return is not watched: see stack.h. */
	GPUREC_NO_RETURN = 1024,
	/* gpurec_new_file: the kernel puts no hooks into this mapping, which is shared or writable. */
	GPUREC_NO_HOOKS = 2048,
};

/* How a piece of the target's memory is read. */
enum gpurec_read_kind {
	GPUREC_READ_BYTES = 1,         /* `size` bytes at the pointer */
	GPUREC_READ_COUNTED = 2,       /* `each` bytes for each of a number of elements, `size` at most */
	GPUREC_READ_TEXT = 3,          /* a string, `size` bytes at most */
	GPUREC_READ_TEXT_THROUGH = 4,  /* a string that the pointer's pointee points to */
};

/* Where a pointer or a count is: a word (0..5 registers, from 6 on the stack), or this flag
 * with the number of an earlier piece, and an offset into it. */
enum gpurec_source {
	GPUREC_INSIDE = 0x80,
};

struct gpurec_read {
	unsigned char kind;
	unsigned char source;
	unsigned char count;
	unsigned char pad;
	unsigned short source_offset;
	unsigned short count_offset;
	unsigned short size;
	unsigned short each;
};

/* What to capture of a function beside its six registers and its return value. */
struct gpurec_capture {
	unsigned char words;         /* of the stack, at entry */
	unsigned char entry_reads;
	unsigned char exit_reads;
	unsigned char pad[5];
	struct gpurec_read entry[GPUREC_READS];
	struct gpurec_read exit[GPUREC_READS];
};

/* A hook's cookie: the probe's number, from bit 32 on what its hits want, from bit 40 a word's
 * number or how many, from bit 48 a size. Most functions want so little that it stands here, and
 * their hits need not look into the table of captures. */
enum gpurec_wants {
	GPUREC_WANTS_CAPTURE = 0,  /* what the table says */
	GPUREC_WANTS_NOTHING = 1,  /* beyond registers and return value */
	GPUREC_WANTS_OUT = 2,      /* GPUREC_SMALL bytes at most that a register pointed to, at the return */
	GPUREC_WANTS_WORDS = 3,    /* GPUREC_FEW_WORDS words at most of the stack, at entry */
};

/* What follows a call or return record: the stack words of a call, then each piece. */
enum gpurec_piece_state {
	GPUREC_PIECE_READ = 0,
	GPUREC_PIECE_NULL = 1,
	GPUREC_PIECE_UNREADABLE = 2,
	GPUREC_PIECE_CUT = 3,          /* read, but there was more */
};

struct gpurec_piece {
	unsigned short state;
	unsigned short length;         /* of the bytes that follow, padded to 8 */
	unsigned int late;             /* behind a return: 1 + the number of the entry read that failed at the entry */
};

/* Every record begins with this. `seq` counts the hits of a thread, recorded or lost:
 * a gap tells the recorder where in the thread's order something is missing. */
struct gpurec_head {
	unsigned long long ts;   /* CLOCK_MONOTONIC, ns; taken after the room in the ring was had */
	unsigned int tid;
	unsigned int seq;
	unsigned short kind;
	unsigned short flags;
	unsigned int probe;      /* calls and returns: the probe's id; exec: the thread's id before */
};

struct gpurec_call {
	struct gpurec_head head;
	unsigned int pid;
	unsigned short payload;  /* bytes that follow */
	unsigned short words;    /* stack words among them, 0 if they could not be read */
	unsigned long long sp;   /* names the stack frame */
	unsigned long long args[6];
};

struct gpurec_return {
	struct gpurec_head head;
	unsigned long long begin;   /* head.ts of its call: names the call */
	unsigned long long value;
	unsigned int payload;       /* bytes that follow */
	unsigned int pad;
};

/* Told once, when it is over: an interrupt, time off the CPU, a tracepoint's hit. What
 * follows are pieces. */
struct gpurec_instant {
	struct gpurec_head head;
	unsigned int pid;           /* 0: in whatever thread was running */
	unsigned int cpu;
	unsigned long long duration;
	unsigned long long args[6];
	unsigned int payload;       /* bytes that follow */
	unsigned int pad;
};

struct gpurec_fork {
	struct gpurec_head head;
	unsigned int pid;
	unsigned int child;
};

struct gpurec_exit {
	struct gpurec_head head;
	unsigned int pid;
	int status;              /* as wait() gives it; of the process where it ended */
};

struct gpurec_exec {
	struct gpurec_head head;
	unsigned int pid;
	unsigned int length;     /* bytes of command in use */
	unsigned char command[GPUREC_COMMAND]; /* argv, each with its closing zero */
};

/* A file as the kernel knows it, in the state in which it was mapped: inode numbers are used again (overlayfs has no
 * generation), and a file may be overwritten in place. `inode` 0: the file that is mapped at the address. */
struct gpurec_file {
	unsigned long long inode;
	unsigned int device;      /* the kernel's own encoding: major << 20 | minor */
	unsigned int generation;
	unsigned long long changed; /* its ctime, ns */
	unsigned long long size;
};

struct gpurec_new_file {
	struct gpurec_head head;
	unsigned int pid;
	int fd;                   /* the descriptor that was mapped, -1: none (a program, mprotect) */
	unsigned long long address;
	struct gpurec_file file;
	char name[GPUREC_FILE_NAME]; /* of the file, cut: what is known of it if it is gone before it is looked at */
};

/* Calls and returns that found no room, for one probe on one CPU. */
struct gpurec_lost {
	unsigned long long calls;
	unsigned long long returns;
};

/* All that found no room on one CPU: tells whether the probes' own counters moved. */
struct gpurec_lost_total {
	unsigned long long calls, returns, fork, exec, exit, file;
};

/* How far a recording is. At its end, calls that are under way may still return for a
 * moment; then every hook falls silent at once, although removing them takes longer and
 * goes library by library: so what is open then was open at one and the same time. */
enum gpurec_phase {
	GPUREC_RECORDING = 0,
	GPUREC_RETURNS_ONLY = 1,
	GPUREC_SILENT = 2,
};

/* The rings. Each CPU has two, in one element of an array that both sides map: a near one,
 * small enough to stay in the CPU's cache while the recorder keeps up, and a far one for
 * bursts, which takes what finds no room in the near one. Positions only grow; a record lies
 * at its position modulo the ring's size, in one piece: it may reach into the slack behind
 * the end. Before it is its header: in the lower 16 bits its length, above them its position
 * mixed with the recording's secret. It is written last, and until then there is something
 * else in its place: what an earlier record left there, which may be a target's own data, but
 * no target knows the secret. So nobody has to wipe what was read. */
struct gpurec_positions {
	unsigned long long head;  /* programs: where the next record goes */
	unsigned long long nothing; /* always 0, which the verifier cannot know */
	unsigned long long pad[6];
	unsigned long long tail;  /* the recorder: where it reads next */
	unsigned long long pad2[7];
};

/* What no user id ever is. */
#define GPUREC_ANY_USER 0xffffffffU

/* Read-only configuration, set before load. */
struct gpurec_config {
	unsigned int everyone;    /* --all: no target set */
	unsigned int follow;      /* children of targets are targets */
	unsigned long long call_limit; /* bytes of the far ring that calls may fill */
	unsigned long long pause_at;   /* bytes of it beyond which --lossless pauses; 0: never */
	unsigned long long near_size;  /* of the rings, powers of two */
	unsigned long long far_size;
	unsigned long long far_at;     /* where in a CPU's part the far ring begins */
	unsigned long long secret;     /* see gpurec_positions */
	unsigned int probe;       /* fentry: the one function that these programs are for */
	unsigned int scratches;   /* how many there are */
	unsigned int budget;      /* hits are counted for --budget (see budget.h) */
	unsigned int reach;       /* enum gpurec_reach of the CUDA programs */
	unsigned int early_frames; /* threads are given their open calls' memory when they begin */
	unsigned int copies;      /* of the programs at forks, execs, exits and mappings (see copies.h) */
	int recorder;             /* its process */
	unsigned int pause_user;  /* --lossless pauses only this user's processes */
};

/* What they see; the recorder knows them by these numbers. */
enum gpurec_copied {
	GPUREC_COPIED_FORK = 0,
	GPUREC_COPIED_EXEC = 1,
	GPUREC_COPIED_EXIT = 2,
	GPUREC_COPIED_MMAP_ENTER = 3,
	GPUREC_COPIED_MMAP_EXIT = 4,
	GPUREC_COPIED_MPROTECT = 5,
	GPUREC_COPIED_PKEY_MPROTECT = 6,
	GPUREC_COPIED = 7,
};

/* Whom hooks are for. Where there are hooks of both kinds in one process, both see its calls,
 * and one of them tells. */
enum gpurec_reach {
	GPUREC_ALWAYS_EVERYBODY = 0, /* there are no others */
	GPUREC_ONE_PROCESS = 1,
	GPUREC_EVERYBODY_SINCE = 2,  /* since one process is not enough */
};

/* What becomes of a function's hits under --budget. */
enum gpurec_level {
	GPUREC_RECORDED = 0,
	GPUREC_COUNTED = 1,
};

/* Who pays, and where. */
struct gpurec_spender {
	unsigned int tid;
	unsigned int probe;
};

/* Hits of one thread at one probe, since the first. */
struct gpurec_spent {
	unsigned long long entered;   /* to be recorded, found room or not */
	unsigned long long returned;  /* of those */
	unsigned long long counted;
	unsigned int pid;
	unsigned int pad;
};

/* What is shared by all programs while they run. */
struct gpurec_state {
	unsigned int phase;       /* enum gpurec_phase */
	unsigned int kernel;      /* what lies beneath is recorded: not before the calls are */
	unsigned int only;        /* the process that the hooks are for, 0: for everybody */
	unsigned int may_pause;   /* somebody reads the rings, and lets go whom --lossless pauses */
};

/* Whose hits of a kernel hook are recorded. */
enum gpurec_scope {
	GPUREC_TARGETS = 0,
	GPUREC_DRIVER = 1,        /* and the kernel's own threads, where it does the driver's work */
	GPUREC_EVERYBODY = 2,     /* interrupts belong to nobody */
};

enum gpurec_role {
	GPUREC_FUNCTION = 0,
	GPUREC_IOCTL = 1,         /* (file, cmd, arg): recorded as an ioctl, not as a function */
	GPUREC_IOCTL_INODE = 2,   /* (inode, file, cmd, arg) */
	GPUREC_XID = 3,           /* (pci_dev, number, format) */
	GPUREC_TOP_HALF = 4,      /* runs in interrupt context: told once, by CPU */
};

/* What to record of a kernel function beside its six registers and its return value. */
struct gpurec_hook {
	unsigned char role;
	unsigned char scope;
	unsigned char entry_reads;
	unsigned char exit_reads;    /* GPUREC_HOOK_EXITS at most */
	unsigned short context;      /* tracepoints: bytes of the event */
	unsigned short pad;
	struct gpurec_read entry[GPUREC_READS];
	struct gpurec_read exit[GPUREC_HOOK_EXITS];
};

/* Whose driver a device number is: see the table of majors. */
enum gpurec_family {
	GPUREC_NVIDIA = 1,
	GPUREC_UVM = 2,
	GPUREC_FAMILY = 0xff,
	/* Beside the family: its ioctls are seen as calls of a function, and so are those of
	 * the minor number that has a function of its own. */
	GPUREC_BY_FUNCTION = 0x100,
	GPUREC_SPECIAL_BY_FUNCTION = 0x200,
};

struct gpurec_ioctl_key {
	unsigned int family;
	unsigned int nr;
};

/* What to read of an ioctl's payload. */
struct gpurec_ioctl_shape {
	unsigned short entry;        /* bytes at entry */
	unsigned short exit;         /* bytes at return */
	unsigned short second_at;    /* where in the payload a pointer to more is, or more itself */
	unsigned short second_size;  /* bytes of that, 0: none */
	unsigned short status;       /* where the driver's own status is */
	unsigned short has_status;
	unsigned int second_inline;  /* the second part is in the payload itself */
};

/* The numbers of the probes that are no functions. 0: not wanted. */
struct gpurec_driver {
	unsigned int ioctl, uvm_ioctl, modeset_ioctl, other_ioctl;
	unsigned int open, close, mmap, poll;
	unsigned int irq, off_cpu, xid;
	unsigned int by_function; /* what functions of nvidia.ko tell: GPUREC_..._BY_FUNCTION */
};

enum gpurec_told_by_function {
	GPUREC_OPEN_BY_FUNCTION = 1,
	GPUREC_CLOSE_BY_FUNCTION = 2,
	GPUREC_MMAP_BY_FUNCTION = 4,
};

/* Written by the recorder a few times a second. A process is only ever stopped while
 * the recorder is there to let it go on. */
struct gpurec_pulse {
	unsigned long long alive_ns;
	unsigned long long stop_allowed;
};

_Static_assert(sizeof(struct gpurec_positions) == 128, "positions");
_Static_assert(GPUREC_PAYLOAD + GPUREC_COMMAND < GPUREC_RING_SLACK, "slack");
_Static_assert(sizeof(struct gpurec_head) == 24, "head");
_Static_assert(sizeof(struct gpurec_call) == 88, "call");
_Static_assert(sizeof(struct gpurec_return) == 48, "return");
_Static_assert(sizeof(struct gpurec_read) == 12, "read");
_Static_assert(sizeof(struct gpurec_capture) == 8 + 8 * 12, "capture");
_Static_assert(sizeof(struct gpurec_piece) == 8, "piece");
_Static_assert(sizeof(struct gpurec_instant) == 96, "instant");
_Static_assert(sizeof(struct gpurec_hook) == 8 + 6 * 12, "hook");
_Static_assert(sizeof(struct gpurec_ioctl_shape) == 16, "shape");
_Static_assert(sizeof(struct gpurec_driver) == 48, "driver");
_Static_assert(sizeof(struct gpurec_spent) == 32, "spent");
_Static_assert(sizeof(struct gpurec_fork) == 32, "fork");
_Static_assert(sizeof(struct gpurec_exit) == 32, "exit");
_Static_assert(sizeof(struct gpurec_exec) == 32 + GPUREC_COMMAND, "exec");
_Static_assert(sizeof(struct gpurec_file) == 32, "file");
_Static_assert(sizeof(struct gpurec_new_file) == 72 + GPUREC_FILE_NAME, "new_file");

#endif

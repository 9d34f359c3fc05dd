/*
 * The wire contract between the BPF programs and the recorder: every record that crosses a ring, and every map value
 * that both sides touch. This is the only file that both C and Rust read (Rust through the skeletons' generated types).
 *
 * In: nothing. Out: fixed-width, explicitly padded structs and the limits.
 * Not here: Linux types, helpers, anything that is private to one program.
 */
#ifndef GPUREC_H
#define GPUREC_H

enum gpurec_limit {
	GPUREC_MAX_CPUS = 1024,
	GPUREC_MAX_PROBES = 16384,    /* probe ids: index of the loss counters */
	GPUREC_MAX_TARGETS = 65536,   /* traced processes alive at one time */
	GPUREC_MAX_FILES = 65536,     /* executable files that gpurec has examined */
	GPUREC_MAX_SPENDERS = 32768,  /* threads times functions that --budget watches */
	GPUREC_STACK_SPENDERS = 8192, /* threads whose stacks --budget watches */
	GPUREC_MAX_FRAMES = 64,       /* nested calls of a thread (Linux has the same limit for uretprobes) */
	GPUREC_STOP_COUNT = 24,       /* bits for the number of files that a stopped process waits for */
	GPUREC_FILE_NAME = 32,        /* bytes of a file's name kept */
	GPUREC_COMMAND = 4096,        /* bytes of a command line kept */
	GPUREC_READS = 4,             /* pieces of memory read at a call's entry, and at its return */
	GPUREC_WORDS = 16,            /* stack words read at a call's entry */
	GPUREC_FEW_WORDS = 6,         /* as many stack words as a program reads straight into the ring */
	GPUREC_SMALL = 64,            /* bytes of an object read at a return without the table of captures */
	GPUREC_PIECE = 4096,          /* bytes of the longest piece */
	GPUREC_PAYLOAD = 8192,        /* bytes of all pieces of a call */
	GPUREC_HOOK_EXITS = 2,        /* pieces read at the return of a function of Linux or nvidia.ko */
	GPUREC_HOOK_PIECE = 256,      /* bytes of the longest piece of such a function */
	GPUREC_KERNEL_FRAMES = 32,    /* nested functions of Linux and nvidia.ko in a thread */
	GPUREC_RING_HEADER = 8,
	GPUREC_RING_DATA = 4096,      /* where the first ring of a CPU begins; the positions are before it */
	GPUREC_RING_SLACK = 16384,    /* space after a ring's end: the last record may begin anywhere before the end */
	GPUREC_PYTHON_FRAMES = 128,   /* Python frames of a stack */
	GPUREC_NATIVE_FRAMES = 64,    /* native frames of a stack */
	GPUREC_FRAMES = 256,          /* room for both; a power of two */
	GPUREC_COPY = 6104,           /* bytes of a thread's stack that are copied for unwinding, behind its registers */
	GPUREC_REGISTERS = 5,         /* those that a function keeps, besides the base pointer: rbx, r12 to r15 */
	GPUREC_RULES = 65536,         /* return addresses that BPF can unwind from */
	GPUREC_PYTHONS = 64,          /* layouts of Python interpreters */
	GPUREC_STACKS = 65536,        /* stacks, and Python functions, that BPF knows to be in the recorder's hands */
	GPUREC_TEXT = 1024,           /* bytes of a Python function's name, and of its file's */
	GPUREC_LINES = 4096,          /* bytes of a table of lines in one record */
	GPUREC_LINE_PARTS = 32,       /* such records of one table */
	GPUREC_SITES = 1024,          /* forms that static probes have in all libraries */
	GPUREC_ARGUMENTS = 4,         /* arguments that are read of a static probe */
	GPUREC_KERNEL_TOP = 4096,     /* `sp` of a thread's outermost Linux-side frame: below every user stack */
};

enum gpurec_kind {
	GPUREC_CALL = 1,       /* struct gpurec_call: a hooked function was entered */
	GPUREC_RETURN = 2,     /* struct gpurec_return: it returned */
	GPUREC_FORK = 3,       /* struct gpurec_fork */
	GPUREC_EXEC = 4,       /* struct gpurec_exec */
	GPUREC_EXIT = 5,       /* struct gpurec_exit: a thread ended, and perhaps its process */
	GPUREC_NEW_FILE = 6,   /* struct gpurec_new_file, control ring only */
	GPUREC_INSTANT = 7,    /* struct gpurec_instant: a Linux-side event that has a single record */
	GPUREC_STACK = 8,      /* struct gpurec_stack: a stack, before the first call that has it */
	GPUREC_CODE = 9,       /* struct gpurec_code: a Python function that a stack refers to */
	GPUREC_UNWIND = 10,    /* struct gpurec_unwind: a stack that BPF cannot unwind yet */
	GPUREC_BLOCK = 11,     /* struct gpurec_block: PyTorch's allocator handed out or took back a block */
	GPUREC_MAPPED = 12,    /* struct gpurec_mapped: a process has mapped code */
};

enum gpurec_flag {
	/* The call's return address is the uretprobe trampoline: a hooked function reached it by a tail call, and
	 * one return ends both. */
	GPUREC_CHAINED = 1,
	/* gpurec_exit: the whole process ended. */
	GPUREC_PROCESS_ENDED = 2,
	/* gpurec_exec: the command line is cut. Calls and returns: their memory could not be read. gpurec_stack: outer
	 * frames are missing. */
	GPUREC_CUT = 4,
	/* gpurec_new_file: the process is stopped (SIGSTOP) until the recorder resumes it. */
	GPUREC_STOPPED = 8,
	/* gpurec_new_file: the program itself (exec), not a mapping. */
	GPUREC_PROGRAM = 16,
	/* The event happened on the Linux side, below the program. It does not count in the thread's `seq`, because
	 * it may interrupt another program that is just counting. */
	GPUREC_KERNEL = 32,
	/* The thread is a kernel thread of Linux, not a target's. */
	GPUREC_KERNEL_THREAD = 64,
	/* An ioctl that was wrapped in NV_ESC_IOCTL_XFER_CMD. */
	GPUREC_WRAPPED = 128,
	/* gpurec_new_file: the process is not stopped, because a shell with job control or a debugger would take the
	 * stop for its own. */
	GPUREC_WATCHED = 512,
	/* A call without a return probe: see stack.h. */
	GPUREC_NO_RETURN = 1024,
	/* gpurec_new_file: Linux puts no hooks into this mapping, because it is shared or writable. */
	GPUREC_NO_HOOKS = 2048,
	/* gpurec_call: the key of its stack follows the payload; 0: it has none of its own. */
	GPUREC_HAS_STACK = 4096,
	/* gpurec_stack: a gpurec_unwind was sent before it. */
	GPUREC_COPIED = 8192,
	/* gpurec_exit: the thread ended by itself, and its stack had left the calls that it had open: by pthread_cancel or
	 * pthread_exit. */
	GPUREC_LEFT_CALLS = 16384,
	/* gpurec_new_file: what is mapped as code can be changed through a shared mapping, which may be the mapping itself.
	 * Without an address, the code was examined before, and the shared mapping is new. */
	GPUREC_CHANGEABLE = 32768,
};

/* How a piece of the target's memory is read. */
enum gpurec_read_kind {
	GPUREC_READ_BYTES = 1,         /* `size` bytes at the pointer */
	GPUREC_READ_COUNTED = 2,       /* `each` bytes for each of a number of elements, `size` at most */
	GPUREC_READ_TEXT = 3,          /* a string, `size` bytes at most */
	GPUREC_READ_TEXT_THROUGH = 4,  /* a string that the pointer's pointee points to */
};

/* The location of a pointer or a count: a word (0..5 are registers, 6 and above are on the stack), or this flag with
 * the number of an earlier piece and an offset into it. */
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

/* What to capture of a function in addition to its six registers and its return value. */
struct gpurec_capture {
	unsigned char words;         /* stack words read at entry */
	unsigned char entry_reads;
	unsigned char exit_reads;
	unsigned char also;          /* a return value besides 0 with which outputs mean something; 0: none */
	unsigned char pad[4];
	struct gpurec_read entry[GPUREC_READS];
	struct gpurec_read exit[GPUREC_READS];
};

/* A hook's cookie: the probe's number; from bit 32, what its hits capture; from bit 40, a word's number or a count;
 * from bit 48, a size. Most functions need so little that the cookie holds it, and their hits need not look into the
 * table of captures. The highest bit: its outermost
 * calls have a stack (stacks.h). */
enum gpurec_wants {
	GPUREC_WANTS_CAPTURE = 0,  /* the table of captures has it */
	GPUREC_WANTS_NOTHING = 1,  /* only registers and return value */
	GPUREC_WANTS_OUT = 2,      /* at the return, at most GPUREC_SMALL bytes that a register pointed to */
	GPUREC_WANTS_WORDS = 3,    /* at entry, at most GPUREC_FEW_WORDS words of the stack */
};

/* In the size of a cookie. */
#define GPUREC_WANTS_STACK 0x8000

/* A static probe's cookie: the probe's number, from bit 32 the number of its site, and the highest bit as above. */
#define GPUREC_SITE_OF(cookie) ((unsigned short)((cookie) >> 32))

/* Where an argument of a static probe is. */
enum gpurec_argument_kind {
	GPUREC_ARGUMENT_NONE = 0,
	GPUREC_ARGUMENT_CONSTANT = 1,
	GPUREC_ARGUMENT_REGISTER = 2,
	GPUREC_ARGUMENT_MEMORY = 3,    /* at `base` plus `index` shifted plus `value` */
};

/* Registers are offsets in struct pt_regs. */
struct gpurec_argument {
	unsigned char kind;
	unsigned char size;            /* bytes */
	unsigned char is_signed;
	unsigned char shift;
	unsigned short base;           /* GPUREC_NO_REGISTER: none */
	unsigned short index;
	long long value;
};

#define GPUREC_NO_REGISTER 0xffff

enum gpurec_operation {
	GPUREC_ALLOC = 1,
	GPUREC_FREE = 2,
};

/* A static probe of PyTorch's allocator: its arguments are pointer, device, size, stream. */
struct gpurec_site {
	unsigned int operation;
	unsigned int pad;
	struct gpurec_argument arguments[GPUREC_ARGUMENTS];
};

/* The data after a call or return record: the stack words of a call, then each piece. */
enum gpurec_piece_state {
	GPUREC_PIECE_READ = 0,
	GPUREC_PIECE_NULL = 1,
	GPUREC_PIECE_UNREADABLE = 2,
	GPUREC_PIECE_CUT = 3,          /* read, but there was more */
};

struct gpurec_piece {
	unsigned short state;
	unsigned short length;         /* of the bytes that follow, padded to 8 */
	unsigned int late;             /* after a return: 1 + the number of the entry read that failed at the entry */
};

/* Every record begins with this. `seq` counts the hits of a thread, recorded or lost: a gap shows the recorder where
 * in the thread's order something is missing. */
struct gpurec_head {
	unsigned long long ts;   /* CLOCK_MONOTONIC, ns; taken after space in the ring was reserved */
	unsigned int tid;
	unsigned int seq;
	unsigned short kind;
	unsigned short flags;
	unsigned int probe;      /* calls and returns: the probe's id; exec: the thread's id before exec */
};

struct gpurec_call {
	struct gpurec_head head;
	unsigned int pid;
	unsigned short payload;  /* bytes that follow */
	unsigned short words;    /* stack words among them, 0 if they could not be read */
	unsigned long long sp;   /* identifies the stack frame */
	unsigned long long args[6];
};

struct gpurec_return {
	struct gpurec_head head;
	unsigned long long begin;   /* head.ts of its call: identifies the call */
	unsigned long long value;
	unsigned int payload;       /* bytes that follow */
	unsigned int pad;
};

/* A hit of a static probe of PyTorch's allocator. */
struct gpurec_block {
	struct gpurec_head head;
	unsigned int pid;
	unsigned short operation;
	unsigned short known;       /* a bit for each argument that was read */
	unsigned long long sp;
	unsigned long long stack;   /* the key of its stack; 0: it has none of its own */
	unsigned long long arguments[GPUREC_ARGUMENTS];
};

/* A single record, written when the event is over: an interrupt, time off the CPU, a tracepoint's hit. Pieces follow
 * it. */
struct gpurec_instant {
	struct gpurec_head head;
	unsigned int pid;           /* 0: the event belongs to no target */
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
	int status;              /* as wait() gives it; that of the process if it ended */
};

struct gpurec_exec {
	struct gpurec_head head;
	unsigned int pid;
	unsigned int length;     /* bytes of command in use */
	unsigned char command[GPUREC_COMMAND]; /* argv, each argument with its closing zero */
};

/* A file as Linux identifies it, in the state in which it was mapped: inode numbers are reused (overlayfs has no
 * generation), and a file may be overwritten in place. `inode` 0: the file that is mapped at the address. */
struct gpurec_file {
	unsigned long long inode;
	unsigned int device;      /* as Linux encodes it: major << 20 | minor */
	unsigned int generation;
	unsigned long long changed; /* its ctime, ns */
	unsigned long long size;
};

struct gpurec_new_file {
	struct gpurec_head head;
	unsigned int pid;
	int fd;                   /* the descriptor that was mapped; -1: none (a program, mprotect) */
	unsigned long long address;
	struct gpurec_file file;
	char name[GPUREC_FILE_NAME]; /* cut; the only clue if the file is gone before gpurec examines it */
};

/* A frame. Native: its return address. Python: its code object, by the number that BPF gave it, and the position in
 * its instructions. */
struct gpurec_frame {
	unsigned long long code;
	unsigned int position;   /* as the interpreter has it: see instruction_kind */
	unsigned int owner;      /* as the interpreter has it, and GPUREC_ENTRY */
};

/* gpurec_frame: the interpreter was entered here: the next Python frame belongs to an outer native one. */
#define GPUREC_ENTRY 0x100

/* A stack, before the first call that has it. The native frames follow, then the Python frames, both innermost
 * first. */
struct gpurec_stack {
	struct gpurec_head head;
	unsigned int pid;
	unsigned short natives;
	unsigned short pythons;
	unsigned long long key;    /* equal keys: equal stacks */
	unsigned long long seed;   /* distinguishes the process's mappings from earlier ones: see rule_key */
};

/* The caller of the last native frame in the thread's next stack, for which BPF has no rule. GPUREC_REGISTERS words
 * and bytes of the thread's stack from `sp` on follow. */
struct gpurec_unwind {
	struct gpurec_head head;
	unsigned int pid;
	unsigned int size;
	unsigned long long seed;   /* as in gpurec_stack */
	unsigned long long ip;
	unsigned long long sp;
	unsigned long long bp;
	unsigned long long has_registers; /* the words are the registers there. As long as gpurec_code: see struct walk */
};

/* A process has mapped a part of a file as code, and whatever was there before is gone. */
struct gpurec_mapped {
	struct gpurec_head head;
	unsigned int pid;
	unsigned int number;       /* from 0 for each program that the process executes: a gap is a lost record */
	unsigned long long start;
	unsigned long long end;
	unsigned long long offset; /* of `start` in the file */
	struct gpurec_file file;
};

/* How to find the caller's frame from a return address: rows of the .eh_frame section. */
enum gpurec_rule_kind {
	GPUREC_RULE_STOP = 1,      /* unknown */
	GPUREC_RULE_END = 2,       /* the outermost function */
	GPUREC_RULE_SP = 3,        /* the frame ends at the stack pointer plus `frame` */
	GPUREC_RULE_BP = 4,        /* at the base pointer plus `frame` */
	GPUREC_RULE_AT_BP = 5,     /* where the word at the base pointer plus `frame` points to */
};

struct gpurec_rule {
	int kind;
	int frame;
	int bp;                    /* where the caller's base pointer is: from the frame's end, or for RULE_AT_BP from the
	                            * base pointer */
	int saves_bp;              /* 0: the caller's base pointer is the same */
};

/* A Python function, read while a frame of it is on the stack. The bytes of both texts and of a part of the table of
 * lines follow, each padded to 8. */
struct gpurec_code {
	struct gpurec_head head;
	unsigned int pid;
	unsigned int version;      /* PY_VERSION_HEX */
	unsigned long long code;
	int first_line;
	unsigned int first_traceable;
	unsigned int lines;        /* bytes of the whole table */
	unsigned int at;           /* where the part begins */
	unsigned int part;         /* its bytes */
	unsigned short name;       /* bytes of the function's name */
	unsigned short file;
	unsigned int name_state;   /* as Python has it: the width of a character */
	unsigned int file_state;
};

/* Where an interpreter keeps what a walk through its frames needs: offsets in bytes. GPUREC_ABSENT: it has none. */
struct gpurec_python {
	unsigned int version;            /* PY_VERSION_HEX */
	unsigned int interpreters_head;  /* in _PyRuntime */
	unsigned int interpreter_next;
	unsigned int threads_head;       /* in an interpreter */
	unsigned int thread_next;
	unsigned int thread_id;
	unsigned int id_is_pthread;      /* the id is pthread_self(), not gettid() */
	unsigned int thread_frame;
	unsigned int thread_from;        /* the part of a thread's state that holds these two; size 0: too large */
	unsigned int thread_size;
	unsigned int cframe_frame;       /* where the frame is found through another struct: its offset there */
	unsigned int frame_size;         /* bytes that hold all of the next four */
	unsigned int frame_code;
	unsigned int frame_previous;
	unsigned int frame_instruction;
	unsigned int frame_owner;
	unsigned int frame_entry;        /* a byte that says that the interpreter was entered here */
	unsigned int thread_base_frame;  /* a pointer to the frame that ends the chain, and runs no function */
	unsigned int owner_limit;        /* frames with this owner or a higher one are no Python functions */
	unsigned int instruction_kind;   /* 0: an int, in bytes; 1: an int, in units; 2, 3: a pointer */
	unsigned int code_mask;          /* low bits of frame_code that are no part of the pointer */
	unsigned int code_from;          /* the part of a code object that identifies it */
	unsigned int code_size;
	unsigned int check_texts;        /* that part has no serial number: look at its texts too */
	unsigned int code_filename;
	unsigned int code_name;
	unsigned int code_firstlineno;
	unsigned int code_linetable;
	unsigned int code_adaptive;
	unsigned int code_first_traceable;
	unsigned int unicode_length;
	unsigned int unicode_state;
	unsigned int ascii_data;
	unsigned int unicode_data;       /* of texts that are not ASCII */
	unsigned int bytes_size;
	unsigned int bytes_data;
};

#define GPUREC_ABSENT 0xffffffffU

/* In the state of a text: all its characters are ASCII. Bits 2 to 4 hold the bytes of a character. */
#define GPUREC_PYTHON_ASCII 0x40

/* The interpreter of a process. */
struct gpurec_python_at {
	unsigned long long runtime; /* the address of _PyRuntime */
	unsigned int layout;        /* 1 + its index among the layouts; 0: none */
	unsigned int mappings;      /* grows with each executable mapping of a file */
	unsigned int sent;          /* number of gpurec_mapped so far */
	unsigned int pad;
};

/* A file that gpurec has examined. If it is a Python interpreter: where _PyRuntime is, seen from the executable
 * segment. */
struct gpurec_seen {
	unsigned long long from_code;
	unsigned int layout;        /* as above */
	unsigned int no_hooks;      /* the mapping in which it was seen is shared or writable */
};

/* Calls and returns of one probe that found no space in a ring. */
struct gpurec_lost {
	unsigned long long calls;
	unsigned long long returns;
};

/* All records that found no space on one CPU: shows whether the probes' own counters moved. */
struct gpurec_lost_total {
	unsigned long long calls, returns, fork, exec, exit, file, stack;
};

/* The phase of a recording. At its end, calls in progress may still return for a moment. Then every hook falls
 * silent at once, although removing the hooks takes longer and happens library by library: so all calls that are
 * open then were open at the same time. */
enum gpurec_phase {
	GPUREC_RECORDING = 0,
	GPUREC_RETURNS_ONLY = 1,
	GPUREC_SILENT = 2,
};

/* The rings. Each CPU has two, in one element of an array that both sides map: a near one, small enough to stay in
 * the CPU's cache while the recorder keeps up, and a far one for bursts, which takes the records that do not fit
 * into the near one. Positions only grow. A record starts at its position modulo the ring's size, in one piece: it
 * may extend into the slack after the end. A header precedes it: the lower 16 bits hold its length, the bits above
 * hold its position mixed with the recording's secret. The header is written last. Until then its place holds data
 * of an earlier record, which a target may have chosen, but no target knows the secret. So the recorder need not
 * wipe what it has read. */
struct gpurec_positions {
	unsigned long long head;  /* written by programs: where the next record goes */
	unsigned long long nothing; /* always 0, which the verifier does not know */
	unsigned long long pad[6];
	unsigned long long tail;  /* written by the recorder: where it reads next */
	unsigned long long pad2[7];
};

/* Never the id of a user. */
#define GPUREC_ANY_USER 0xffffffffU

/* Read-only configuration, set before load. */
struct gpurec_config {
	unsigned int everyone;    /* --all: no target set */
	unsigned int follow;      /* children of targets become targets */
	unsigned long long call_limit; /* bytes of the far ring that call records may fill */
	unsigned long long pause_at;   /* --lossless pauses above this number of bytes of the far ring; 0: never */
	unsigned long long near_size;  /* sizes of the rings, powers of two */
	unsigned long long far_size;
	unsigned long long far_at;     /* where the far ring begins in a CPU's part */
	unsigned long long secret;     /* see gpurec_positions */
	unsigned long long tick_ns;    /* of Linux's own counter of time */
	unsigned int probe;       /* fentry: the only function that these programs hook */
	unsigned int scratches;   /* number of scratches, a power of two */
	unsigned int budget;      /* hits are watched for --budget (see budget.h) */
	unsigned int early_frames; /* a thread's open-call memory is allocated when the thread begins */
	int recorder;             /* process id of the recorder */
	unsigned int pause_user;  /* --lossless pauses only this user's processes */
	unsigned int stacks;      /* calls have stacks */
	unsigned int native;      /* with native frames beyond the caller */
};

/* The thread and the probe that cost time. */
struct gpurec_spender {
	unsigned int tid;
	unsigned int probe;
};

/* Hits of one thread at one probe since the first hit. */
struct gpurec_spent {
	unsigned long long entered;   /* meant to be recorded, including those lost for lack of space */
	unsigned long long returned;  /* returns of the entered calls */
	unsigned int pid;
	unsigned int pad;
};

/* What the stacks of one thread's calls have cost it. */
struct gpurec_stack_spent {
	unsigned long long ns;
	unsigned int count;
	unsigned int pid;
};

/* State that all programs share while they run. */
struct gpurec_state {
	unsigned int phase;       /* enum gpurec_phase */
	unsigned int kernel;      /* Linux-side events are recorded, but not before calls are */
	unsigned int may_pause;   /* the recorder reads the rings and resumes processes that --lossless pauses */
};

/* The threads whose hits of a Linux-side hook are recorded. */
enum gpurec_scope {
	GPUREC_TARGETS = 0,
	GPUREC_DRIVER = 1,        /* targets, and kernel threads of Linux that do the driver's work */
	GPUREC_EVERYBODY = 2,     /* all threads: interrupts belong to no process */
};

enum gpurec_role {
	GPUREC_FUNCTION = 0,
	GPUREC_IOCTL = 1,         /* (file, cmd, arg): recorded as an ioctl, not as a function */
	GPUREC_IOCTL_INODE = 2,   /* (inode, file, cmd, arg) */
	GPUREC_XID = 3,           /* (pci_dev, number, format) */
	GPUREC_TOP_HALF = 4,      /* runs in interrupt context: one record when it ends, per CPU */
};

/* What to record of a Linux-side function in addition to its six registers and its return value. */
struct gpurec_hook {
	unsigned char role;
	unsigned char scope;
	unsigned char entry_reads;
	unsigned char exit_reads;    /* at most GPUREC_HOOK_EXITS */
	unsigned short context;      /* tracepoints: bytes of the event */
	unsigned short pad;
	struct gpurec_read entry[GPUREC_READS];
	struct gpurec_read exit[GPUREC_HOOK_EXITS];
};

/* The driver that owns a device number: see the table of majors. */
enum gpurec_family {
	GPUREC_NVIDIA = 1,
	GPUREC_UVM = 2,
	GPUREC_FAMILY = 0xff,
	/* Flags next to the family: function hooks see its ioctls, and those of the minor number that has its own
	 * function. */
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
	unsigned short second_at;    /* offset in the payload of a pointer to a second part, or of the part itself */
	unsigned short second_size;  /* bytes of the second part; 0: none */
	unsigned short status;       /* offset of the driver's own status */
	unsigned short has_status;
	unsigned int second_inline;  /* the second part is in the payload itself */
};

/* The numbers of the probes that are not functions. 0: not wanted. */
struct gpurec_driver {
	unsigned int ioctl, uvm_ioctl, modeset_ioctl, other_ioctl;
	unsigned int open, close, mmap, poll;
	unsigned int irq, off_cpu, xid;
	unsigned int by_function; /* events that functions of nvidia.ko report: GPUREC_..._BY_FUNCTION */
};

enum gpurec_reported_by_function {
	GPUREC_OPEN_BY_FUNCTION = 1,
	GPUREC_CLOSE_BY_FUNCTION = 2,
	GPUREC_MMAP_BY_FUNCTION = 4,
};

/* The recorder writes this a few times a second. A process is only ever stopped while the recorder is alive and can
 * resume it. */
struct gpurec_pulse {
	unsigned long long alive_ns;
	unsigned long long stop_allowed;
};

#endif

/*
 * Follows processes: a target's children become targets at fork, targets leave the set at exit, and executable files
 * that gpurec has not examined yet are reported before their code can run.
 * In: scheduler tracepoints, the mmap and mprotect system calls. Out: fork, exec and exit records in the CPU's ring
 * (for the trace), new-file records in the control ring (the recorder acts on them).
 *
 * A target that maps a new executable file, makes one executable, or executes one is stopped on its way back to user
 * mode; the recorder hooks the functions in the file and resumes the process. No process is stopped under --all, while
 * the recorder's pulse is missing, or when a parent or debugger would take the stop for its own.
 */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "gpurec.h"
#include "maps.h"
#include "following.h"
#include "emit.h"
#include "stopping.h"

#define SIGNAL_GROUP_EXIT 4
#define PF_SIGNALED 0x400
#define PROT_READ 1
#define PROT_EXEC 4
#define READ_IMPLIES_EXEC 0x0400000
#define ENOENT 2
#define EEXIST 17
#define MAP_SHARED 1
#define MAP_ANONYMOUS 0x20
#define FMODE_WRITE 2
#define PROT_WRITE 2

/* Unused variables: they carry the record types into this object's BTF, from which the recorder's own types are
 * generated. */
struct gpurec_positions *type_positions;
struct gpurec_call *type_call;
struct gpurec_return *type_return;
struct gpurec_fork *type_fork;
struct gpurec_exit *type_exit;
struct gpurec_exec *type_exec;
struct gpurec_new_file *type_new_file;
struct gpurec_capture *type_capture;
struct gpurec_piece *type_piece;
enum gpurec_piece_state type_piece_state;
enum gpurec_read_kind type_read_kind;
enum gpurec_source type_source;
enum gpurec_kind type_kind;
enum gpurec_flag type_flag;
enum gpurec_limit type_limit;
enum gpurec_phase type_phase;
enum gpurec_scope type_scope;
enum gpurec_role type_role;
enum gpurec_family type_family;
enum gpurec_reported_by_function type_reported;
enum gpurec_wants type_wants;
struct gpurec_instant *type_instant;
struct gpurec_hook *type_hook;
struct gpurec_driver *type_driver;
struct gpurec_ioctl_key *type_ioctl_key;
struct gpurec_ioctl_shape *type_ioctl_shape;
struct gpurec_state *type_state;
struct gpurec_spender *type_spender;
struct gpurec_spent *type_spent;
struct gpurec_stack_spent *type_stack_spent;
struct gpurec_stack *type_stack;
struct gpurec_frame *type_frame;
struct gpurec_code *type_code;
struct gpurec_python *type_python;
struct gpurec_python_at *type_python_at;
struct gpurec_seen *type_seen;
struct gpurec_unwind *type_unwind;
struct gpurec_mapped *type_mapped;
struct gpurec_rule *type_rule;
enum gpurec_rule_kind type_rule_kind;
struct gpurec_block *type_block;
struct gpurec_site *type_site;
struct gpurec_argument *type_argument;
enum gpurec_argument_kind type_argument_kind;
enum gpurec_operation type_operation;

struct mapping_begun {
	struct gpurec_new_file file;
	struct gpurec_seen seen; /* of a file that was examined before */
	u64 length, offset;
	u32 is_seen;
	u32 pad;
};

/* An executable mapping under way, from the entry of mmap to its exit. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, struct mapping_begun);
} mapping SEC(".maps");

/* From Linux 6.13 on, Linux uses the highest bit of the nanoseconds as a flag: it is not part of the time. */
static __always_inline u64 changed_at(struct inode *inode)
{
	struct inode___before_6_13 *older = (void *)inode;
	struct inode___before_6_6 *oldest = (void *)inode;

	if (bpf_core_field_exists(inode->i_ctime_sec))
		return BPF_CORE_READ(inode, i_ctime_sec) * 1000000000ULL + (BPF_CORE_READ(inode, i_ctime_nsec) & 0x7fffffff);
	if (bpf_core_field_exists(older->__i_ctime))
		return BPF_CORE_READ(older, __i_ctime.tv_sec) * 1000000000ULL + BPF_CORE_READ(older, __i_ctime.tv_nsec);
	return BPF_CORE_READ(oldest, i_ctime.tv_sec) * 1000000000ULL + BPF_CORE_READ(oldest, i_ctime.tv_nsec);
}

/* Pointers are always followed by copying with BPF_CORE_READ. For each pointer that a program follows directly, the
 * verifier looks up the type by name in all types of Linux, which takes a millisecond. */
static __always_inline void read_file(struct gpurec_file *id, struct file *file)
{
	struct inode *inode = BPF_CORE_READ(file, f_inode);

	id->inode = BPF_CORE_READ(inode, i_ino);
	id->device = BPF_CORE_READ(inode, i_sb, s_dev);
	id->generation = BPF_CORE_READ(inode, i_generation);
	id->changed = changed_at(inode);
	id->size = BPF_CORE_READ(inode, i_size);
}

static __always_inline void read_name(struct gpurec_new_file *what, struct file *file)
{
	bpf_probe_read_kernel_str(what->name, sizeof(what->name), BPF_CORE_READ(file, f_path.dentry, d_name.name));
}

static __always_inline struct gpurec_seen *is_seen(const struct gpurec_file *file)
{
	return bpf_map_lookup_elem(&seen, file);
}

/* The current process has mapped the executable segment of a Python interpreter. */
static __always_inline void has_python(const struct gpurec_seen *seen, u64 segment)
{
	u32 pid = bpf_get_current_pid_tgid() >> 32;
	struct gpurec_python_at *at;

	if (!config.stacks || !seen->layout)
		return;
	at = bpf_map_lookup_elem(&python_at, &pid);
	if (!at)
		return;
	at->runtime = segment + seen->from_code;
	at->layout = seen->layout;
}

#include "mapped.h"

static __always_inline void report_file(const struct gpurec_new_file *what, u16 flags)
{
	u32 pid = bpf_get_current_pid_tgid() >> 32;
	struct gpurec_new_file *r = bpf_ringbuf_reserve(&control, sizeof(*r), 0);
	u16 watched = what->head.flags & GPUREC_WATCHED;

	if (!r) {
		COUNT_LOST(file);
		return;
	}
	*r = *what;
	fill_head(&r->head, GPUREC_NEW_FILE, 0, 0);
	r->pid = pid;
	r->head.flags = flags | (what->head.flags & (GPUREC_NO_HOOKS | GPUREC_CHANGEABLE));
	if (!config.everyone)
		r->head.flags |= watched ? watched : stop_current(pid) ? GPUREC_STOPPED : 0;
	bpf_ringbuf_submit(r, BPF_RB_FORCE_WAKEUP);
}

static __always_inline bool becomes_executable(u64 protection)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();

	if (protection & PROT_EXEC)
		return true;
	return (protection & PROT_READ) && (BPF_CORE_READ(task, personality) & READ_IMPLIES_EXEC);
}

/* Flags of a mapping of code: whether hooks are impossible in it (this is 1), and whether the file can be changed
 * through a mapping that exists, of which some file systems keep no time. Without branches, each of which would double
 * the paths that the verifier has to check. */
static __always_inline u16 flags_of(u64 no_hooks, struct file *file)
{
	u32 none = -(u32)BPF_CORE_READ(file, f_inode, i_mapping, i_mmap_writable.counter);

	return no_hooks * GPUREC_NO_HOOKS | (none >> 31) * GPUREC_CHANGEABLE;
}

/* A file that was examined when a process mapped it as code is now mapped so that the code can be changed. Code in a
 * mapping without hooks is as it was: programs that make code at run time map it twice, both times shared. The copy
 * that deletes the entry reports the mapping; the next process that maps the file as code has it examined again. */
static __always_inline void can_change(struct gpurec_new_file *what, struct file *file)
{
	struct gpurec_seen *known = is_seen(&what->file);
	struct gpurec_new_file *r;

	if (!known || known->no_hooks || bpf_map_delete_elem(&seen, &what->file))
		return;
	r = bpf_ringbuf_reserve(&control, sizeof(*r), 0);
	if (!r) {
		COUNT_LOST(file);
		return;
	}
	read_name(what, file);
	*r = *what;
	fill_head(&r->head, GPUREC_NEW_FILE, 0, 0);
	r->pid = bpf_get_current_pid_tgid() >> 32;
	r->head.flags = GPUREC_CHANGEABLE;
	bpf_ringbuf_submit(r, BPF_RB_FORCE_WAKEUP);
}

static __always_inline int mmap_begins(struct trace_event_raw_sys_enter *ctx)
{
	struct mapping_begun begun = {};
	struct gpurec_new_file *what = &begun.file;
	struct gpurec_seen *seen;
	struct task_struct *task;
	struct file **fds, *file = NULL;
	u32 tid = (u32)bpf_get_current_pid_tgid();
	bool executable = becomes_executable(ctx->args[2]);
	unsigned int max;
	u16 flags;

	keep_own_stack(ctx);
	if ((ctx->args[3] & MAP_ANONYMOUS) || !(executable || (ctx->args[3] & MAP_SHARED)))
		return 0;
	if (!is_target(bpf_get_current_pid_tgid() >> 32))
		return 0;
	what->fd = (int)ctx->args[4];
	task = (struct task_struct *)bpf_get_current_task();
	max = BPF_CORE_READ(task, files, fdt, max_fds);
	if (what->fd < 0 || (u32)what->fd >= max)
		return 0;
	fds = BPF_CORE_READ(task, files, fdt, fd);
	bpf_probe_read_kernel(&file, sizeof(file), fds + what->fd);
	if (!file || (!executable && !(BPF_CORE_READ(file, f_mode) & FMODE_WRITE)))
		return 0;
	read_file(&what->file, file);
	if (!executable) {
		can_change(what, file);
		return 0;
	}
	count_mapping();
	/* PROT_WRITE is 2. */
	flags = flags_of((ctx->args[2] >> 1 | ctx->args[3]) & MAP_SHARED, file);
	/* It may have changed since it was examined. */
	seen = flags == GPUREC_CHANGEABLE ? NULL : is_seen(&what->file);
	if (seen && !config.stacks)
		return 0;
	begun.length = ctx->args[1];
	begun.offset = ctx->args[5];
	if (seen) {
		begun.seen = *seen;
		begun.is_seen = 1;
	}
	read_name(what, file);
	if (is_watched())
		what->head.flags = GPUREC_WATCHED;
	what->head.flags |= flags;
	bpf_map_update_elem(&mapping, &tid, &begun, BPF_ANY);
	return 0;
}

/* The copy that deletes the entry of a mapping reports the mapping. */
static __always_inline int mmap_ends(struct trace_event_raw_sys_exit *ctx)
{
	u32 tid = (u32)bpf_get_current_pid_tgid();
	struct mapping_begun *begun;

	keep_own_stack(ctx);
	begun = bpf_map_lookup_elem(&mapping, &tid);
	if (!begun)
		return 0;
	begun->file.address = ctx->ret;
	if ((unsigned long)ctx->ret < (unsigned long)-4095) {
		struct mapped mapped = {
			.file = begun->file.file,
			.start = ctx->ret,
			.end = (ctx->ret + begun->length + PAGE - 1) & ~(u64)(PAGE - 1),
			.offset = begun->offset,
		};

		send_mapped(&mapped);
		if (begun->is_seen)
			has_python(&begun->seen, ctx->ret);
		else
			report_file(&begun->file, 0);
	}
	bpf_map_delete_elem(&mapping, &tid);
	return 0;
}

/* Has another copy handled this exit of mprotect? --all stops no process, and a second record does no harm. */
static __always_inline bool has_protected(u32 copy, struct task_struct *task)
{
	struct thread *t = config.everyone ? NULL : thread_state(task);
	bool has;

	if (!t)
		return false;
	has = copy && t->protected;
	t->protected = !copy;
	return has;
}

/* Mappings of files become executable. This also matters where the call fails: the range before a hole has changed.
 * The arguments are still in the registers. */
static __always_inline int mprotect_ends(u32 copy, struct trace_event_raw_sys_exit *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct gpurec_new_file file = {.fd = -1};
	struct pt_regs *regs;
	u64 at, end, watched;

	keep_own_stack(ctx);
	if (!is_target(task->tgid) || has_protected(copy, task))
		return 0;
	regs = (struct pt_regs *)bpf_task_pt_regs(task);
	if (!becomes_executable(PT_REGS_PARM3_CORE_SYSCALL(regs)))
		return 0;
	at = PT_REGS_PARM1_CORE_SYSCALL(regs);
	end = at + PT_REGS_PARM2_CORE_SYSCALL(regs);
	watched = is_watched() ? GPUREC_WATCHED : 0;
	for (int i = 0; i < MOST_RANGES && at < end; i++) {
		struct mapped mapped = {};
		long error = bpf_find_vma(task, at, mapped_file, &mapped, 0);

		if (error == -ENOENT)
			return 0;
		file.address = at;
		file.file = mapped.file;
		/* VM_WRITE is 2, VM_SHARED 8. */
		file.head.flags = watched | ((mapped.flags >> 1 | mapped.flags >> 3) & 1) * GPUREC_NO_HOOKS;
		if (mapped.file.inode)
			send_mapped(&mapped);
		/* Another thread is changing the mappings: the recorder reads them itself. */
		if (error || (mapped.file.inode && !is_seen(&mapped.file)))
			report_file(&file, 0);
		if (error)
			return 0;
		at = mapped.end;
	}
	if (at < end)
		COUNT_LOST(file);
	return 0;
}

/* Allocates a target's thread state when the thread begins, so that no hit has to. */
static __always_inline void give_state(struct task_struct *task)
{
	if (config.everyone)
		return;
	thread_state(task);
	if (config.early_frames)
		bpf_task_storage_get(&frames, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
}

static __always_inline void inherit_python(u32 pid, u32 child)
{
	struct gpurec_python_at *at = config.stacks ? bpf_map_lookup_elem(&python_at, &pid) : NULL;
	struct gpurec_python_at own;

	if (!at)
		return;
	own = *at;
	bpf_map_update_elem(&python_at, &child, &own, BPF_ANY);
}

static __always_inline void forget_python(u32 pid)
{
	if (config.stacks)
		bpf_map_delete_elem(&python_at, &pid);
}

static __always_inline int forks(struct task_struct *parent, struct task_struct *child)
{
	u32 pid = parent->tgid, new_pid = child->tgid, one = 1;
	struct gpurec_fork *r;
	int error; /* not long: kernels before 6.4 leave the upper half as it was */

	if (pid == new_pid) {
		/* A new thread. */
		if (is_target(pid))
			give_state(child);
		return 0;
	}
	if (!config.everyone) {
		if (!config.follow || !is_target(pid))
			return 0;
		error = bpf_map_update_elem(&targets, &new_pid, &one, BPF_NOEXIST);
		if (error == -EEXIST)
			return 0;
		if (error) {
			/* The table is full: no call of the child will be seen. */
			COUNT_LOST(fork);
			return 0;
		}
		give_state(child);
		inherit_python(pid, new_pid);
	} else {
		struct thread *t = bpf_task_storage_get(&threads, parent, 0, 0);

		/* --all: only processes that have used CUDA */
		if (!t || t->child == new_pid)
			return 0;
		t->child = new_pid;
		inherit_python(pid, new_pid);
	}
	r = reserve(sizeof(*r));
	if (!r) {
		COUNT_LOST(fork);
		return 0;
	}
	fill_head(&r->head, GPUREC_FORK, 0, 0);
	r->pid = pid;
	r->child = new_pid;
	submit(r);
	return 0;
}

static __always_inline void record_exec(struct task_struct *task, u32 old_tid)
{
	struct gpurec_exec *r = reserve(sizeof(*r));
	u64 start, length;

	if (!r) {
		COUNT_LOST(exec);
		return;
	}
	fill_head(&r->head, GPUREC_EXEC, old_tid, 0);
	r->pid = task->tgid;
	start = BPF_CORE_READ(task, mm, arg_start);
	length = BPF_CORE_READ(task, mm, arg_end) - start;
	if (length > GPUREC_COMMAND) {
		length = GPUREC_COMMAND;
		r->head.flags |= GPUREC_CUT;
	}
	r->length = length;
	if (bpf_probe_read_user(r->command, length, (void *)start)) {
		r->length = 0;
		r->head.flags |= GPUREC_CUT;
	}
	submit(r);
}

static __always_inline int execs(struct task_struct *task, int old_pid, struct linux_binprm *bprm)
{
	struct gpurec_new_file what = {.fd = -1};
	struct gpurec_seen *seen;
	u32 times = BPF_CORE_READ(task, self_exec_id);
	struct thread *t;

	if (!is_target(task->tgid))
		return 0;
	give_state(task);
	t = bpf_task_storage_get(&threads, task, 0, 0);
	if (t && t->execs == times)
		return 0;
	if (t)
		t->execs = times;
	if (!config.everyone)
		record_exec(task, old_pid);
	forget_python(task->tgid);
	count_mapping();
	send_program(task);
	read_file(&what.file, BPF_CORE_READ(bprm, file));
	if (is_watched())
		what.head.flags = GPUREC_WATCHED;
	what.address = BPF_CORE_READ(task, mm, start_code) & ~(u64)(PAGE - 1);
	seen = is_seen(&what.file);
	if (seen) {
		has_python(seen, what.address);
	} else {
		read_name(&what, BPF_CORE_READ(bprm, file));
		report_file(&what, GPUREC_PROGRAM);
	}
	return 0;
}

/* Has the thread ended by itself above the calls that it has open? pthread_cancel and pthread_exit unwind the stack up to
 * the first return address that Linux replaced, and go from there to the thread's beginning, which ends it. A thread that
 * ends by a signal, by another's exit_group or exec, or by a system call of its own inside the call has left nothing. */
static __always_inline bool has_left_calls(struct task_struct *task, struct thread *t)
{
	if (!t || !t->outermost || (task->flags & PF_SIGNALED) || (task->exit_code & 0x7f))
		return false;
	if (BPF_CORE_READ(task, signal, flags) & SIGNAL_GROUP_EXIT)
		return false;
	return PT_REGS_SP_CORE((struct pt_regs *)bpf_task_pt_regs(task)) > t->outermost;
}

static __always_inline int ends(struct task_struct *task)
{
	u32 pid = task->tgid;
	struct gpurec_exit *r;
	bool ended, known;
	struct thread *t;

	ended = BPF_CORE_READ(task, signal, live.counter) == 0;
	t = bpf_task_storage_get(&threads, task, 0, 0);
	if (t && t->ended)
		return 0;
	if (t)
		t->ended = 1;
	/* The thread made calls, or has begun to. */
	known = t && (config.everyone || t->seq || t->uses_driver);
	/* The last thread of a process that made calls may have made none. If several threads end at the same time,
	 * only one of them deletes the entry. */
	if (config.everyone && ended && !bpf_map_delete_elem(&targets, &pid))
		known = true;
	if (config.everyone ? !known : !(is_target(pid) && (known || ended)))
		return 0;
	if (ended && !config.everyone) {
		/* Threads that end at the same time may all find that none is left. */
		if (bpf_map_delete_elem(&targets, &pid))
			return 0;
		bpf_map_delete_elem(&stopped, &pid);
	}
	if (ended)
		forget_python(pid);
	r = reserve(sizeof(*r));
	if (!r) {
		COUNT_LOST(exit);
		return 0;
	}
	fill_head(&r->head, GPUREC_EXIT, 0, 0);
	r->pid = pid;
	r->status = task->exit_code;
	if (has_left_calls(task, t))
		r->head.flags = GPUREC_LEFT_CALLS;
	if (ended) {
		r->head.flags |= GPUREC_PROCESS_ENDED;
		if (BPF_CORE_READ(task, signal, flags) & SIGNAL_GROUP_EXIT)
			r->status = BPF_CORE_READ(task, signal, group_exit_code);
	}
	submit(r);
	return 0;
}

#define AT_SYSTEM_CALLS(copy)                                                             \
	SEC("tracepoint/syscalls/sys_enter_mmap")                                         \
	int mmap_enter_##copy(struct trace_event_raw_sys_enter *ctx)                      \
	{                                                                                 \
		return mmap_begins(ctx);                                                  \
	}                                                                                 \
	SEC("tracepoint/syscalls/sys_exit_mmap")                                          \
	int mmap_exit_##copy(struct trace_event_raw_sys_exit *ctx)                        \
	{                                                                                 \
		return mmap_ends(ctx);                                                    \
	}                                                                                 \
	SEC("tracepoint/syscalls/sys_exit_mprotect")                                      \
	int mprotect_exit_##copy(struct trace_event_raw_sys_exit *ctx)                    \
	{                                                                                 \
		return mprotect_ends(copy, ctx);                                          \
	}                                                                                 \
	SEC("tracepoint/syscalls/sys_exit_pkey_mprotect")                                 \
	int pkey_mprotect_exit_##copy(struct trace_event_raw_sys_exit *ctx)               \
	{                                                                                 \
		return mprotect_ends(copy, ctx);                                          \
	}

#define AT_PROCESSES(copy)                                                                \
	SEC("tp_btf/sched_process_fork")                                                  \
	int BPF_PROG(process_fork_##copy, struct task_struct *parent, struct task_struct *child) \
	{                                                                                 \
		return forks(parent, child);                                              \
	}                                                                                 \
	SEC("tp_btf/sched_process_exec")                                                  \
	int BPF_PROG(process_exec_##copy, struct task_struct *task, int old_pid, struct linux_binprm *bprm) \
	{                                                                                 \
		return execs(task, old_pid, bprm);                                        \
	}                                                                                 \
	SEC("tp_btf/sched_process_exit")                                                  \
	int BPF_PROG(process_exit_##copy, struct task_struct *task)                       \
	{                                                                                 \
		return ends(task);                                                        \
	}

/* From Linux 7.1 on, a thread can be preempted in a program. Until it continues, Linux skips that program for every
 * other thread that hits it on the same CPU, and the second copy sees the hit instead. Where both see a hit, the maps
 * and the thread's state show the second that the first has recorded it. */
AT_SYSTEM_CALLS(0)
AT_SYSTEM_CALLS(1)
AT_PROCESSES(0)
AT_PROCESSES(1)

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/*
 * --lossless: a process that fills a ring waits until the recorder has emptied it.
 * In: a record that went into a far ring beyond `config.pause_at`. Out: the current process, if it is a target, is
 * stopped on its way back to user mode, and is in `paused`. The recorder resumes it when the rings are empty
 * (src/probe/pauses.rs); the guardian does so if the recorder dies.
 * Without --lossless the programs contain none of this: `config.pause_at` is 0.
 *
 * Why a signal, and not a loop in the program until there is room: a loop burns the CPU that the recorder needs to make
 * the room (on kernels without preemption for ever), and delays everything that waits for the programs to end. The cost
 * of a stop: a parent that asks for stops sees it, and some system calls of the process (epoll_wait, semop...) end with
 * EINTR, as after any SIGSTOP.
 *
 * Why each thread signals itself: one thread takes a signal to the process, and until that thread runs the others keep
 * calling. A signal to the thread is taken before the thread is back in user mode, so the thread puts no second call
 * into a ring above the mark; it still stops the whole process. So above the mark comes one record of each running
 * thread, plus those of system calls in progress: calls have three eighths of the far ring above the mark, and returns
 * an eighth more.
 *
 * Not here: threads that cannot be paused. These are Linux's own threads, interrupts, processes in a debugger, other
 * users' processes when a user records through sudo, and with --hook every process that is not a target: their losses
 * are counted as usual and reported.
 */
#ifndef GPUREC_PAUSE_H
#define GPUREC_PAUSE_H

#define SIGSTOP 19
#define EEXIST 17
#define JOBCTL_STOP_PENDING (1UL << 17)
#define PT_PTRACED 1
#define PT_SEIZED 0x10000
#define PULSE_LIMIT_NS 2000000000ULL

/* Is the recorder running, so that it can resume a process that is stopped? */
static __always_inline bool may_stop(void)
{
	u32 zero = 0;
	struct gpurec_pulse *p = bpf_map_lookup_elem(&pulse, &zero);

	return p && p->stop_allowed && bpf_ktime_get_ns() - p->alive_ns < PULSE_LIMIT_NS;
}

/* A debugger that attached without PTRACE_SEIZE (gdb) would catch our signal and stop. One that seized the process
 * (strace) passes it on. The signal stops all threads, and a simple debugger traces only the first. */
static __always_inline bool is_debugged(struct task_struct *task)
{
	return (BPF_CORE_READ(task, ptrace) & (PT_PTRACED | PT_SEIZED)) == PT_PTRACED ||
	       (BPF_CORE_READ(task, group_leader, ptrace) & (PT_PTRACED | PT_SEIZED)) == PT_PTRACED;
}

/* A user may pause their own processes for as long as they like, but no others: neither set-user-id programs nor
 * those that they run by sudo. */
static __always_inline bool is_theirs(struct task_struct *task)
{
	const struct cred *cred = BPF_CORE_READ(task, real_cred);
	u32 user = config.pause_user;

	return user == GPUREC_ANY_USER ||
	       (BPF_CORE_READ(cred, uid.val) == user && BPF_CORE_READ(cred, euid.val) == user &&
		BPF_CORE_READ(cred, suid.val) == user);
}

/* Not static: the verifier checks it once. */
__attribute__((noinline)) u32 pause_current(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u32 pid = bpf_get_current_pid_tgid() >> 32, zero = 0;
	struct gpurec_state *s = bpf_map_lookup_elem(&state, &zero);
	u64 now = bpf_ktime_get_ns();
	int error; /* not long: kernels before 6.4 leave the upper half as it was */

	if (!s || !s->may_pause || !may_stop() || !bpf_map_lookup_elem(&targets, &pid) || !is_theirs(task) ||
	    is_debugged(task))
		return 0;
	/* Another thread, or an unrelated program, has begun the stop: then gpurec must not end it. */
	if (BPF_CORE_READ(task, jobctl) & JOBCTL_STOP_PENDING)
		return 0;
	error = bpf_map_update_elem(&paused, &pid, &now, BPF_NOEXIST);
	if (error && error != -EEXIST)
		return 0;
	bpf_send_signal_thread(SIGSTOP);
	/* Again: the recorder may have resumed the process just before the signal. The first update comes before the
	 * signal, so that no process is stopped without an entry in the map. */
	bpf_map_update_elem(&paused, &pid, &now, BPF_NOEXIST);
	return 1;
}

#endif

/*
 * --lossless: whoever fills a ring waits until the recorder has emptied it.
 * In: a record that went into a far ring beyond `config.pause_at`. Out: the current process, if
 * it is a target, is stopped on its way back to user mode, and is in `paused`; the recorder lets
 * it go when the rings are empty (src/probe/pauses.rs), what outlives the recorder if it dies.
 * Without --lossless nothing of this is in the programs: `config.pause_at` is 0.
 *
 * Why a signal, and not a loop in the program until there is room: a loop burns the CPU that the
 * recorder needs to make the room, on kernels without preemption for ever, and holds up whoever
 * waits for the programs to end. What a stop costs: a parent that asks for it sees it, and some
 * system calls of the process (epoll_wait, semop...) end with EINTR, as after any SIGSTOP.
 *
 * Why each thread signals itself: a signal to the process is taken by one thread, and until that
 * runs the others go on calling. One to the thread is taken before the thread is back in user
 * mode, so it puts no second call into a ring above the mark; the stop is the whole process's all
 * the same. So above the mark comes one record of each running thread, and those that the kernel
 * makes of system calls under way: there are three eighths of the far ring for calls above the
 * mark, and for returns an eighth more.
 *
 * Not here: who cannot be paused. The kernel's own threads, interrupts, other users' processes
 * where a person records through sudo, and with --hook everybody else: what these lose is counted as ever, and said.
 */
#ifndef GPUREC_PAUSE_H
#define GPUREC_PAUSE_H

#define SIGSTOP 19
#define EEXIST 17
#define JOBCTL_STOP_PENDING (1UL << 17)
#define PULSE_LIMIT_NS 2000000000ULL

/* Is the recorder running, so that it can resume a process that is stopped? */
static __always_inline bool may_stop(void)
{
	u32 zero = 0;
	struct gpurec_pulse *p = bpf_map_lookup_elem(&pulse, &zero);

	return p && p->stop_allowed && bpf_ktime_get_ns() - p->alive_ns < PULSE_LIMIT_NS;
}

/* A person may make their own processes wait for as long as they like, and no others: not what
 * they run by set-user-id, nor by sudo. */
static __always_inline bool is_theirs(struct task_struct *task)
{
	const struct cred *cred = BPF_CORE_READ(task, real_cred);
	u32 user = config.pause_user;

	return user == GPUREC_ANY_USER ||
	       (BPF_CORE_READ(cred, uid.val) == user && BPF_CORE_READ(cred, euid.val) == user &&
		BPF_CORE_READ(cred, suid.val) == user);
}

/* Not static: verified once. */
__attribute__((noinline)) u32 pause_current(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u32 pid = bpf_get_current_pid_tgid() >> 32, zero = 0;
	struct gpurec_state *s = bpf_map_lookup_elem(&state, &zero);
	u64 now = bpf_ktime_get_ns();
	int error; /* not long: kernels before 6.4 leave the upper half as it was */

	if (!s || !s->may_pause || !may_stop() || !bpf_map_lookup_elem(&targets, &pid) || !is_theirs(task))
		return 0;
	/* By another thread, or by somebody who has nothing to do with us: then it is not ours to
	 * let go. */
	if (BPF_CORE_READ(task, jobctl) & JOBCTL_STOP_PENDING)
		return 0;
	error = bpf_map_update_elem(&paused, &pid, &now, BPF_NOEXIST);
	if (error && error != -EEXIST)
		return 0;
	bpf_send_signal_thread(SIGSTOP);
	/* Again: the recorder may have let the process go just before the signal. Before it,
	 * so that nobody is stopped of whom there was no room to tell. */
	bpf_map_update_elem(&paused, &pid, &now, BPF_NOEXIST);
	return 1;
}

#endif

/*
 * Stops a process that has mapped a new file, and decides whether its parent or debugger would take that stop for its own.
 * In: the current thread. Out: SIGSTOP, the entry in `stopped`, and the flags of the
 * record that reports it. Not here: which file is new (process.bpf.c), resuming (the recorder and the guardian).
 */
#ifndef GPUREC_STOPPING_H
#define GPUREC_STOPPING_H

#define SIGSTOP 19
#define SIGTSTP 20
#define SIGTTOU 22
#define SIG_IGN 1
#define WUNTRACED 2
#define MOST_WAITING 4

static __always_inline bool waits(u32 pid)
{
	u64 first, *known;

	if (!may_stop())
		return false;
	known = bpf_map_lookup_elem(&stopped, &pid);
	if (known) {
		__sync_fetch_and_add(known, 1);
		return true;
	}
	first = (bpf_ktime_get_ns() / 1000000) << GPUREC_STOP_COUNT | 1;
	if (bpf_map_update_elem(&stopped, &pid, &first, BPF_ANY))
		return false;
	return true;
}

/* Reports whether the parent is waiting for its children and wants to see stops (su, runuser, nsenter, a shell with
 * a job in the foreground). Several of its threads may be waiting. The flags are read from the stacks of those
 * threads, which may hold something else by the time of the read: then the data does not name a thread of the
 * parent. */
static __always_inline bool waits_for_stops(struct task_struct *parent)
{
	void *all = (void *)BPF_CORE_READ(parent, signal);
	struct list_head *first = all + bpf_core_field_offset(struct signal_struct, wait_chldexit.head);
	struct list_head *at = BPF_CORE_READ(first, next);
	int tgid = BPF_CORE_READ(parent, tgid), flags;
	struct task_struct *waiter;
	struct wait_opts *one;

	for (int i = 0; i < MOST_WAITING && at && at != first; i++) {
		one = (void *)at - bpf_core_field_offset(struct wait_opts, child_wait.entry);
		flags = BPF_CORE_READ(one, wo_flags);
		waiter = BPF_CORE_READ(one, child_wait.private);
		if (BPF_CORE_READ(waiter, tgid) != tgid)
			return false;
		if (flags & WUNTRACED)
			return true;
		at = BPF_CORE_READ(at, next);
	}
	return false;
}

/* Reports whether a parent or debugger would take our stop for its own, and show it or stop itself. A shell with job
 * control gives each job its own process group on the terminal that they share; without a terminal, such a shell is
 * recognised because it ignores or handles SIGTTOU, the signal that background groups cause. A program that gives
 * its child a terminal (script, sudo) sits between the two. A parent that stays in one group with its child, and
 * stops when the child stops, handles SIGTSTP. Other programs that start processes in groups of their own (mpirun
 * without a terminal) do not see stops. Not static: the verifier checks it once. */
__attribute__((noinline)) u32 is_watched(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct task_struct *parent = BPF_CORE_READ(task, real_parent);
	struct pid *own = BPF_CORE_READ(task, signal, pids[PIDTYPE_PGID]);
	struct sighand_struct *takes = BPF_CORE_READ(parent, sighand);

	if (is_debugged(task))
		return 1;
	if (BPF_CORE_READ(parent, tgid) == config.recorder)
		return 0; /* the recorder also waits for its other children */
	if (waits_for_stops(parent))
		return 1;
	if (own == BPF_CORE_READ(parent, signal, pids[PIDTYPE_PGID]))
		return (unsigned long)BPF_CORE_READ(takes, action[SIGTSTP - 1].sa.sa_handler) > SIG_IGN;
	return BPF_CORE_READ(task, signal, tty) || BPF_CORE_READ(takes, action[SIGTTOU - 1].sa.sa_handler);
}

/* Another program has begun to stop the process: gpurec must not end that stop. */
static __always_inline bool others_stop(u32 pid)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();

	return (BPF_CORE_READ(task, jobctl) & JOBCTL_STOP_PENDING) && !bpf_map_lookup_elem(&stopped, &pid) &&
	       !bpf_map_lookup_elem(&paused, &pid);
}

/* The signal precedes the record: the recorder's SIGCONT must never overtake it. The signal goes to the thread: a
 * pending SIGSTOP for the process is then another program's, and it stays in force when the recorder resumes the
 * process. */
static __always_inline bool stop_current(u32 pid)
{
	return !others_stop(pid) && waits(pid) && bpf_send_signal_thread(SIGSTOP) == 0;
}

#endif

/*
 * --stacks: what code a recorded process has at which address.
 * In: its executable mappings of files, as they come. Out: a gpurec_mapped in the ring of this CPU for each, so that the
 * recorder knows what an address was at the time of a stack, also after the process has ended or has mapped another file
 * there. Not with --all, where every process of the machine would send them: there the recorder reads /proc.
 */
#ifndef GPUREC_MAPPED_H
#define GPUREC_MAPPED_H

#define PAGE 4096
#define PAGE_BITS 12
#define MOST_RANGES 4
#define VM_EXEC 4
#define AT_BASE 7
#define AUXV_WORDS 44

/* The current process has a new executable mapping, so that an address may mean something else from now on. */
static __always_inline void count_mapping(void)
{
	u32 pid = bpf_get_current_pid_tgid() >> 32;
	struct gpurec_python_at *at, first = {};

	if (!config.stacks)
		return;
	at = bpf_map_lookup_elem(&python_at, &pid);
	if (at)
		__sync_fetch_and_add(&at->mappings, 1);
	else
		bpf_map_update_elem(&python_at, &pid, &first, BPF_NOEXIST);
}

/* The mapping that contains an address. */
struct mapped {
	struct gpurec_file file; /* if it is executable, and of a file */
	u64 start, end, offset;
	u64 flags; /* as Linux has them */
};

static long mapped_file(struct task_struct *task, struct vm_area_struct *vma, void *to)
{
	struct mapped *mapped = to;
	struct file *file = BPF_CORE_READ(vma, vm_file);

	mapped->start = BPF_CORE_READ(vma, vm_start);
	mapped->end = BPF_CORE_READ(vma, vm_end);
	mapped->offset = BPF_CORE_READ(vma, vm_pgoff) << PAGE_BITS;
	mapped->flags = BPF_CORE_READ(vma, vm_flags);
	if (file && (mapped->flags & VM_EXEC))
		read_file(&mapped->file, file);
	return 0;
}

static __noinline u32 send_mapped(const struct mapped *what)
{
	u32 pid = bpf_get_current_pid_tgid() >> 32, number;
	struct gpurec_python_at *at;
	struct gpurec_mapped *r;

	if (!config.stacks || config.everyone)
		return 0;
	at = bpf_map_lookup_elem(&python_at, &pid);
	if (!at)
		return 0;
	/* A record that finds no room leaves a gap. */
	number = __sync_fetch_and_add(&at->sent, 1);
	r = reserve(sizeof(*r));
	if (!r)
		return 0;
	fill_head(&r->head, GPUREC_MAPPED, 0, 0);
	r->pid = pid;
	r->number = number;
	r->start = what->start;
	r->end = what->end;
	r->offset = what->offset;
	r->file = what->file;
	submit(r);
	return 0;
}

/* Sends the executable part of the file that is mapped from `at` on. */
static __always_inline void send_from(struct task_struct *task, u64 at)
{
	u32 i;

	for (i = 0; i < MOST_RANGES && at; i++) {
		struct mapped mapped = {};

		if (bpf_find_vma(task, at, mapped_file, &mapped, 0))
			return;
		if (mapped.file.inode) {
			send_mapped(&mapped);
			return;
		}
		at = mapped.end;
	}
}

/* The program and its loader, which no system call of the process maps. */
static __always_inline void send_program(struct task_struct *task)
{
	u64 pair[2] = {}, words;
	u32 i;

	if (!config.stacks || config.everyone)
		return;
	send_from(task, BPF_CORE_READ(task, mm, start_code));
	words = (u64)BPF_CORE_READ(task, mm) + bpf_core_field_offset(struct mm_struct, saved_auxv);
	for (i = 0; i < AUXV_WORDS / 2; i++) {
		if (bpf_probe_read_kernel(pair, sizeof(pair), (void *)(words + i * sizeof(pair))) || !pair[0])
			return;
		if (pair[0] == AT_BASE) {
			send_from(task, pair[1]);
			return;
		}
	}
}

#endif

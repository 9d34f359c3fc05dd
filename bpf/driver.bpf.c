/*
 * Records what happens below a program's CUDA calls: ioctls and other system calls on the driver's files, functions of
 * nvidia.ko and of Linux, interrupts, time off the CPU, errors that the driver reports.
 *
 * In: hits of every backend: system-call tracepoints, kprobes (single, multi, session), fentry, and any tracepoint that
 * the user names; the probe's id is the cookie.
 * Out: the records of kernel.h. The recorder loads this object a few programs at a time, so that a program that Linux
 * refuses does not cost the others.
 * Not here: what a request means.
 */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "gpurec.h"
#include "maps.h"
#include "emit.h"
#include "kernel.h"
#include "syscalls.h"

#define WAITED 0x10000    /* next to a task state: the thread left the CPU by itself, whatever its state is now */

extern bool bpf_session_is_return(void) __weak __ksym;
extern bool bpf_session_is_return___ctx(void *ctx) __weak __ksym;

/* --- functions, hooked by any backend --- */

struct pending {
	u64 ts;
	u64 task; /* a return in another thread does not end this */
	u32 probe, pad;
	u64 args[2];
};

/* Interrupts run in whatever thread is current, and nest on one CPU. */
struct pendings {
	u32 depth, pad;
	struct pending at[8];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct pendings);
} interrupts SEC(".maps");

static __always_inline void interrupt_begin(u32 probe, u64 arg0, u64 arg1)
{
	u32 zero = 0, i;
	struct pendings *p = bpf_map_lookup_elem(&interrupts, &zero);
	struct pending *one;

	if (!p || !kernel_begins())
		return;
	if (p->depth >= 8) {
		/* No CPU nests this many: their ends were missed. */
		for (i = 0; i < 8; i++)
			count_lost_call(p->at[i].probe);
		p->depth = 0;
	}
	one = &p->at[p->depth & 7];
	one->ts = bpf_ktime_get_ns();
	one->probe = probe;
	one->task = (u64)bpf_get_current_task();
	one->args[0] = arg0;
	one->args[1] = arg1;
	p->depth++;
}

static __always_inline void fill_instant(struct gpurec_instant *i, u32 probe, u64 duration)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread *t = bpf_task_storage_get(&threads, task, 0, 0);

	kernel_head(&i->head, GPUREC_INSTANT, probe, GPUREC_KERNEL);
	i->pid = 0;
	if (t ? t->traced : !config.everyone && is_target(task->tgid))
		i->pid = task->tgid;
	else
		i->head.tid = 0;
	i->cpu = bpf_get_smp_processor_id();
	i->duration = duration;
	i->payload = 0;
	i->pad = 0;
}

static __always_inline void interrupt_end(u32 probe, u64 value)
{
	u32 zero = 0, i;
	struct pendings *p = bpf_map_lookup_elem(&interrupts, &zero);
	struct gpurec_instant *r;
	struct pending one = {};
	u32 depth;

	if (!p || phase_now() == GPUREC_SILENT)
		return;
	depth = p->depth;
	for (i = 0; i < 8 && depth; i++) {
		depth--;
		one = p->at[depth & 7];
		if (one.probe == probe && one.task == (u64)bpf_get_current_task())
			break;
		one.ts = 0;
	}
	if (!one.ts)
		return;
	/* For interrupts that began after it, the end was missed. */
	for (i = 1; i < 8 && depth + i < p->depth; i++)
		count_lost_call(p->at[(depth + i) & 7].probe);
	p->depth = depth;
	r = reserve_call(sizeof(*r));
	if (!r) {
		count_lost_call(probe);
		return;
	}
	fill_instant(r, probe, 0);
	r->duration = r->head.ts - one.ts;
	r->args[0] = one.args[0];
	r->args[1] = one.args[1];
	r->args[2] = value;
	r->args[3] = p->depth;
	r->args[4] = 0;
	r->args[5] = 0;
	submit(r);
}

/* An error that the driver reports, followed by a text and the device's name. */
struct xid_record {
	struct gpurec_instant instant;
	struct gpurec_piece text_head;
	char text[256];
	struct gpurec_piece device_head;
	char device[32];
};

static __always_inline void report_xid(struct pci_dev *device, u32 number, const char *text)
{
	struct gpurec_driver *n = numbers();
	struct xid_record *r;
	const char *name;
	long length;

	if (!n || !n->xid || phase_now() == GPUREC_SILENT)
		return;
	r = reserve(sizeof(*r));
	if (!r) {
		count_lost_call(n->xid);
		return;
	}
	fill_instant(&r->instant, n->xid, 0);
	__builtin_memset(r->instant.args, 0, sizeof(r->instant.args));
	r->instant.args[0] = number;
	r->instant.payload = sizeof(*r) - sizeof(r->instant);
	length = bpf_probe_read_kernel_str(r->text, sizeof(r->text), text);
	r->text_head.state = length > 0 ? GPUREC_PIECE_READ : GPUREC_PIECE_UNREADABLE;
	r->text_head.length = sizeof(r->text);
	r->text_head.late = 0;
	name = BPF_CORE_READ(device, dev.kobj.name);
	length = bpf_probe_read_kernel_str(r->device, sizeof(r->device), name);
	r->device_head.state = length > 0 ? GPUREC_PIECE_READ : GPUREC_PIECE_UNREADABLE;
	r->device_head.length = sizeof(r->device);
	r->device_head.late = 0;
	submit(r);
}

static __noinline int function_begin(struct kernel_thread *k, const struct gpurec_hook *hook, struct kernel_frame *like, const u64 *args)
{
	struct kernel_frame *frame = open_frame(k, like->probe, like->sp);
	struct kernel_scratch *s = &k->scratch;
	u32 at[GPUREC_READS] = {};
	u32 used = 0, i;

	if (!frame) {
		count_lost_call(like->probe);
		return 0;
	}
#pragma unroll
	for (i = 0; i < 6; i++)
		k->registers[i] = args[i];
	for (i = 0; i < GPUREC_HOOK_EXITS; i++)
		frame->place[i] = i < hook->exit_reads ? k->registers[hook->exit[i].source & 7] : 0;
	if (k->busy || !hook->entry_reads) {
		frame->ts = plain_call(like->probe, hook->entry_reads ? like->size | GPUREC_CUT : like->size, k->depth, args);
	} else {
		k->busy = 1;
		kernel_call(&s->call, like->probe, like->size, k->depth, args);
		for (i = 0; i < GPUREC_READS && i < hook->entry_reads; i++) {
			const struct gpurec_read *read = &hook->entry[i];
			u64 pointer;

			if (read->source & GPUREC_INSIDE)
				pointer = read_back(s, at[read->source & (GPUREC_READS - 1)], read->source_offset, 8);
			else
				pointer = k->registers[read->source & 7];
			at[i] = used;
			used = add_piece(s, used, pointer, read->size, 0);
		}
		s->call.payload = used;
		frame->ts = send_kernel_call(s, sizeof(s->call) + used);
		k->busy = 0;
	}
	k->depth++;
	if (!frame->ts)
		count_lost_call(like->probe);
	return 0;
}

/* Copies of the program have different numbers. A copy that finds the hit already recorded leaves it alone. */
static __always_inline void function_enter(u32 probe, u64 sp, const u64 *args, u32 copy)
{
	struct gpurec_hook *hook = bpf_map_lookup_elem(&hooks, &probe);
	struct task_struct *task = bpf_get_current_task_btf();
	struct kernel_frame like = {.sp = sp, .probe = probe};
	struct kernel_thread *k;

	if (!hook)
		return;
	switch (hook->role) {
	case GPUREC_IOCTL:
		ioctl_enter(task, (struct file *)args[0], -1, args[1], args[2], sp, copy);
		return;
	case GPUREC_IOCTL_INODE:
		ioctl_enter(task, (struct file *)args[1], -1, args[2], args[3], sp, copy);
		return;
	case GPUREC_XID:
		if (!copy)
			report_xid((struct pci_dev *)args[0], args[1], (const char *)args[2]);
		return;
	case GPUREC_TOP_HALF:
		if (!copy)
			interrupt_begin(probe, args[0], args[1]);
		return;
	}
	like.size = recorded(task, hook->scope, false);
	if (!like.size)
		return;
	k = kernel_thread(task);
	if (!k) {
		count_lost_call(probe);
		return;
	}
	if (is_reported(k, probe, sp, copy))
		return;
	drop_dead(k, task, probe, sp);
	function_begin(k, hook, &like, args);
}

static __noinline int function_end(struct kernel_thread *k, const struct gpurec_hook *hook, u32 probe, u64 value, u64 sp)
{
	u32 flags = flags_at_return(bpf_get_current_task_btf());
	struct kernel_frame frame;
	u32 used = 0, i;

	if (!close_frame(k, probe, sp, &frame) || !frame.ts)
		return 0;
	if (k->busy || !hook->exit_reads) {
		plain_return(probe, hook->exit_reads ? flags | GPUREC_CUT : flags, frame.ts, value);
		return 0;
	}
	k->busy = 1;
	for (i = 0; i < GPUREC_HOOK_EXITS && i < hook->exit_reads; i++)
		used = add_piece(&k->scratch, used, frame.place[i], hook->exit[i].size, 0);
	scratch_return(&k->scratch, probe, flags, frame.ts, value, used);
	k->busy = 0;
	return 0;
}

/* Where several copies see the return, the stack position identifies the frame: the first copy has already closed
 * it. */
static __always_inline void function_leave(u32 probe, u64 value, u64 sp, u32 copy)
{
	struct gpurec_hook *hook = bpf_map_lookup_elem(&hooks, &probe);
	struct task_struct *task = bpf_get_current_task_btf();
	struct kernel_thread *k;

	if (!hook)
		return;
	switch (hook->role) {
	case GPUREC_IOCTL:
	case GPUREC_IOCTL_INODE:
		ioctl_leave(task, value, sp);
		return;
	case GPUREC_XID:
		return;
	case GPUREC_TOP_HALF:
		if (!copy)
			interrupt_end(probe, value);
		return;
	}
	k = bpf_task_storage_get(&kernel_threads, task, 0, 0);
	if (k && k->depth && phase_now() != GPUREC_SILENT)
		function_end(k, hook, probe, value, sp);
}

static __always_inline int enter_with_registers(struct pt_regs *regs)
{
	u64 args[6] = {
		PT_REGS_PARM1(regs), PT_REGS_PARM2(regs), PT_REGS_PARM3(regs),
		PT_REGS_PARM4(regs), PT_REGS_PARM5(regs), PT_REGS_PARM6(regs),
	};

	function_enter(bpf_get_attach_cookie(regs), PT_REGS_SP(regs), args, 0);
	return 0;
}

static __always_inline int leave_with_registers(struct pt_regs *regs)
{
	function_leave(bpf_get_attach_cookie(regs), PT_REGS_RC(regs), 0, 0);
	return 0;
}

SEC("kprobe")
int single_entry(struct pt_regs *regs)
{
	keep_own_stack(regs);
	return enter_with_registers(regs);
}

SEC("kretprobe")
int single_return(struct pt_regs *regs)
{
	keep_own_stack(regs);
	return leave_with_registers(regs);
}

SEC("kprobe.multi")
int multi_entry(struct pt_regs *regs)
{
	keep_own_stack(regs);
	return enter_with_registers(regs);
}

SEC("kretprobe.multi")
int multi_return(struct pt_regs *regs)
{
	keep_own_stack(regs);
	return leave_with_registers(regs);
}

SEC("kprobe.session")
int session(struct pt_regs *regs)
{
	keep_own_stack(regs);
	return bpf_session_is_return() ? leave_with_registers(regs) : enter_with_registers(regs);
}

SEC("kprobe.session")
int session_ctx(struct pt_regs *regs)
{
	keep_own_stack(regs);
	return bpf_session_is_return___ctx(regs) ? leave_with_registers(regs) : enter_with_registers(regs);
}

/* The trampoline keeps the arguments on the thread's own stack, at the function's entry and at its return: their
 * address serves as the stack pointer. */
static __always_inline u64 place_of(u64 *ctx)
{
	u64 *place = ctx, sp = 0;

	/* The verifier forbids arithmetic on this pointer; read back from memory it is a number. */
	bpf_probe_read_kernel(&sp, sizeof(sp), &place);
	return sp;
}

static __always_inline int enter_by_trampoline(u64 *ctx, u32 copy)
{
	u64 args[6] = {};
	u32 i, count = bpf_get_func_arg_cnt(ctx);

	for (i = 0; i < 6 && i < count; i++)
		bpf_get_func_arg(ctx, i, &args[i]);
	function_enter(config.probe, place_of(ctx), args, copy);
	return 0;
}

static __always_inline int leave_by_trampoline(u64 *ctx, u32 copy)
{
	u64 value = 0;

	bpf_get_func_ret(ctx, &value);
	function_leave(config.probe, value, place_of(ctx), copy);
	return 0;
}

#define BY_TRAMPOLINE(copy)                                   \
	SEC("fentry")                                         \
	int function_fentry_##copy(u64 *ctx)                  \
	{                                                     \
		return enter_by_trampoline(ctx, copy);        \
	}                                                     \
	SEC("fexit")                                          \
	int function_fexit_##copy(u64 *ctx)                   \
	{                                                     \
		return leave_by_trampoline(ctx, copy);        \
	}

BY_TRAMPOLINE(0)
BY_TRAMPOLINE(1)
BY_TRAMPOLINE(2)

/* --- tracepoints --- */

SEC("tp_btf/irq_handler_entry")
int BPF_PROG(irq_entry, int irq, struct irqaction *action)
{
	struct gpurec_driver *n = numbers();
	char name[8] = {}, wanted[] = "nvidia";
	u32 i;

	if (!n || !n->irq || bpf_probe_read_kernel_str(name, sizeof(name), action->name) < 0)
		return 0;
#pragma unroll
	for (i = 0; i < sizeof(wanted) - 1; i++) {
		if (name[i] != wanted[i])
			return 0;
	}
	interrupt_begin(n->irq, irq, 0);
	return 0;
}

SEC("tp_btf/irq_handler_exit")
int BPF_PROG(irq_exit, int irq, struct irqaction *action, int handled)
{
	struct gpurec_driver *n = numbers();
	u32 zero = 0;
	struct pendings *p = bpf_map_lookup_elem(&interrupts, &zero);

	if (n && n->irq && p && p->depth)
		interrupt_end(n->irq, handled);
	return 0;
}

static __always_inline u32 state_of(struct task_struct *task)
{
	if (bpf_core_field_exists(task->__state))
		return BPF_CORE_READ(task, __state);
	return BPF_CORE_READ((struct task_struct___before_5_14 *)task, state);
}

/* A thread leaves the CPU inside a call or an ioctl, and comes back: recorded when it comes back. */
SEC("tp_btf/sched_switch")
int BPF_PROG(sched_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	struct gpurec_instant *r;
	struct gpurec_driver *n;
	struct thread *t;

	if (!(prev->flags & PF_KTHREAD)) {
		t = bpf_task_storage_get(&threads, prev, 0, 0);
		if (t && t->traced && (t->outermost || t->in_ioctl)) {
			t->off_state = preempt ? 0 : state_of(prev) | WAITED;
			t->off_since = bpf_ktime_get_ns();
		}
	}
	if (next->flags & PF_KTHREAD)
		return 0;
	t = bpf_task_storage_get(&threads, next, 0, 0);
	n = numbers();
	if (!t || !t->off_since || !n)
		return 0;
	if (kernel_begins()) {
		r = reserve_call(sizeof(*r));
		if (r) {
			kernel_head(&r->head, GPUREC_INSTANT, n->off_cpu, GPUREC_KERNEL);
			r->head.tid = next->pid;
			r->pid = next->tgid;
			r->cpu = bpf_get_smp_processor_id();
			r->duration = r->head.ts - t->off_since;
			__builtin_memset(r->args, 0, sizeof(r->args));
			r->args[0] = t->off_state;
			r->payload = 0;
			r->pad = 0;
			submit(r);
		} else {
			count_lost_call(n->off_cpu);
		}
	}
	t->off_since = 0;
	return 0;
}

SEC("raw_tp/nvidia_dev_xid")
int xid(struct bpf_raw_tracepoint_args *ctx)
{
	report_xid((struct pci_dev *)ctx->args[0], ctx->args[1], (const char *)ctx->args[2]);
	return 0;
}

/* A tracepoint that the user names: the event without the fields that all events share. */
struct event_record {
	struct gpurec_instant instant;
	struct gpurec_piece head;
	u8 event[GPUREC_HOOK_PIECE];
};

SEC("tracepoint")
int any_tracepoint(void *ctx)
{
	u32 probe = bpf_get_attach_cookie(ctx);
	struct gpurec_hook *hook = bpf_map_lookup_elem(&hooks, &probe);
	struct task_struct *task = bpf_get_current_task_btf();
	struct event_record *r;
	u32 size;

	keep_own_stack(ctx);
	if (!hook || !kernel_begins())
		return 0;
	if (hook->scope != GPUREC_EVERYBODY && !recorded(task, hook->scope, false))
		return 0;
	r = reserve_call(sizeof(*r));
	if (!r) {
		count_lost_call(probe);
		return 0;
	}
	fill_instant(&r->instant, probe, 0);
	__builtin_memset(r->instant.args, 0, sizeof(r->instant.args));
	size = hook->context;
	if (size > sizeof(r->event))
		size = sizeof(r->event);
	r->instant.payload = sizeof(r->head) + sizeof(r->event);
	r->head.late = 0;
	r->head.length = size;
	r->head.state = GPUREC_PIECE_READ;
	if (bpf_probe_read_kernel(r->event, size, ctx + sizeof(struct trace_entry)))
		r->head.state = GPUREC_PIECE_UNREADABLE;
	submit(r);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

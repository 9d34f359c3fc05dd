/*
 * CUDA entry and return. In: a uprobe hit, with the probe's id as its cookie. Out: a
 * gpurec_call and a gpurec_return in this CPU's ring.
 *
 * Three ways to be attached, one source: a session program (6.13+), a multi pair
 * (6.6+), or single uprobes. The recorder loads only the programs of the rung in use.
 * Not here: what a call means; reading memory of the target beyond its return address.
 */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "gpurec.h"
#include "maps.h"
#include "emit.h"

/* The kernel's own memory between a call's entry and its return. The newer form takes
 * the context; both are weak, and the programs of the other rungs use neither. */
extern bool bpf_session_is_return(void) __weak __ksym;
extern u64 *bpf_session_cookie(void) __weak __ksym;
extern bool bpf_session_is_return___ctx(void *ctx) __weak __ksym;
extern u64 *bpf_session_cookie___ctx(void *ctx) __weak __ksym;

volatile u32 phase = GPUREC_RECORDING; /* enum gpurec_phase, written by the recorder */

/* Open calls of a thread, for the rungs without session memory. Dropped frames follow
 * the kernel's own rule for uretprobes: a frame at or below the new one is dead. */
struct frames {
	u32 depth;
	u32 pad;
	struct {
		u64 sp;
		u64 ts;
	} at[GPUREC_MAX_FRAMES];
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct frames);
} frames SEC(".maps");

/* Is the return address the uretprobe trampoline? Then this function was reached by a
 * tail call, and its frame shares the stack slot of the one before. */
static __always_inline bool is_chained(struct task_struct *task, u64 return_address)
{
	struct xol_area *area = NULL;

	if (!bpf_core_field_exists(area->vaddr))
		return false;
	area = task->mm->uprobes_state.xol_area;
	return area && area->vaddr == return_address;
}

static __always_inline u64 return_address(struct pt_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	u64 address = 0;

	bpf_probe_read_user(&address, sizeof(address), (void *)PT_REGS_SP(regs));
	return address;
#else
	return PT_REGS_RET(regs);
#endif
}

/* Records the entry. Returns its timestamp, 0 if it isn't recorded. */
static __always_inline u64 enter(struct pt_regs *regs, struct task_struct *task, u32 probe, bool *chained)
{
	struct thread *t;
	struct gpurec_call *call;
	u64 ts;

	if (phase != GPUREC_RECORDING)
		return 0;
	t = traced_thread(task);
	if (!t)
		return 0;
	*chained = is_chained(task, return_address(regs));
	t->seq++;
	call = reserve_call(sizeof(*call));
	if (!call) {
		count_lost_call(probe);
		return 0;
	}
	fill_head(&call->head, GPUREC_CALL, probe, t->seq);
	if (*chained)
		call->head.flags = GPUREC_CHAINED;
	call->pid = bpf_get_current_pid_tgid() >> 32;
	call->pad = 0;
	call->sp = PT_REGS_SP(regs);
	call->args[0] = PT_REGS_PARM1(regs);
	call->args[1] = PT_REGS_PARM2(regs);
	call->args[2] = PT_REGS_PARM3(regs);
	call->args[3] = PT_REGS_PARM4(regs);
	call->args[4] = PT_REGS_PARM5(regs);
	call->args[5] = PT_REGS_PARM6(regs);
	ts = call->head.ts;
	submit(call);
	return ts;
}

static __always_inline void leave(struct pt_regs *regs, struct task_struct *task, u32 probe, u64 begin)
{
	struct thread *t;
	struct gpurec_return *ret;

	if (phase == GPUREC_SILENT)
		return;
	t = traced_thread(task);
	if (!t)
		return;
	t->seq++;
	ret = reserve(sizeof(*ret));
	if (!ret) {
		count_lost_return(probe);
		return;
	}
	fill_head(&ret->head, GPUREC_RETURN, probe, t->seq);
	ret->begin = begin;
	ret->value = PT_REGS_RC(regs);
	submit(ret);
}

/* A call that found no room is not followed to its return: returning 1 tells the kernel
 * not to hijack the return address. So a return always has its call in the trace. */
static __always_inline int session(struct pt_regs *regs, u64 *begin, bool is_return)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u32 probe = bpf_get_attach_cookie(regs);
	bool chained;

	if (is_return) {
		leave(regs, task, probe, *begin);
		return 0;
	}
	*begin = enter(regs, task, probe, &chained);
	return *begin == 0;
}

SEC("uprobe.session")
int cuda_session(struct pt_regs *regs)
{
	u64 *begin = bpf_session_cookie();

	return begin ? session(regs, begin, bpf_session_is_return()) : 1;
}

SEC("uprobe.session")
int cuda_session_ctx(struct pt_regs *regs)
{
	u64 *begin = bpf_session_cookie___ctx(regs);

	return begin ? session(regs, begin, bpf_session_is_return___ctx(regs)) : 1;
}

/* The pair without session memory: also for single uprobes, where the recorder gives
 * the programs another attach type. */
SEC("uprobe")
int cuda_entry(struct pt_regs *regs)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u32 probe = bpf_get_attach_cookie(regs);
	u64 sp = PT_REGS_SP(regs);
	struct frames *open;
	bool chained = false;
	u64 ts;
	u32 i;

	ts = enter(regs, task, probe, &chained);
	open = bpf_task_storage_get(&frames, task, 0, ts ? BPF_LOCAL_STORAGE_GET_F_CREATE : 0);
	if (!open)
		return 0;
	for (i = 0; i < GPUREC_MAX_FRAMES && open->depth; i++) {
		u32 top = (open->depth - 1) & (GPUREC_MAX_FRAMES - 1);
		u64 at = open->at[top].sp;

		if (chained ? at >= sp : at > sp)
			break;
		open->depth--;
	}
	if (ts && open->depth < GPUREC_MAX_FRAMES) {
		open->at[open->depth & (GPUREC_MAX_FRAMES - 1)].sp = sp;
		open->at[open->depth & (GPUREC_MAX_FRAMES - 1)].ts = ts;
		open->depth++;
	}
	return 0;
}

SEC("uretprobe")
int cuda_return(struct pt_regs *regs)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u32 probe = bpf_get_attach_cookie(regs);
	struct frames *open = bpf_task_storage_get(&frames, task, 0, 0);
	u64 sp = PT_REGS_SP(regs);
	u32 i;

	if (!open)
		return 0;
#if defined(__TARGET_ARCH_x86)
	sp -= sizeof(u64); /* the return address has been popped */
#endif
	for (i = 0; i < GPUREC_MAX_FRAMES && open->depth; i++) {
		u32 top = (open->depth - 1) & (GPUREC_MAX_FRAMES - 1);
		u64 at = open->at[top].sp;

		if (at > sp)
			return 0; /* its call was lost: nothing to end */
		open->depth--;
		if (at == sp) {
			leave(regs, task, probe, open->at[top].ts);
			return 0;
		}
	}
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/*
 * ioctls and the other system calls on the driver's files. In: system-call tracepoints, and for ioctls the driver's own
 * entry points where those are hooked. Out: a call and a return record each; an ioctl's records have the payload that
 * the table of shapes asks for. Files are identified by device number; open, which has no device number yet, by name.
 */
#ifndef GPUREC_SYSCALLS_H
#define GPUREC_SYSCALLS_H

#define XFER_COMMAND 211  /* NV_ESC_IOCTL_XFER_CMD: a request too large for a command word */
#define MODESET_MINOR 254
#define UVM_TOOLS_MINOR 1
#define DEFAULT_PAYLOAD 64
#define POLLED 16         /* descriptors examined in one poll */
#define DEVICE_PREFIX "/dev/nvidia"

/* The family of one of the driver's files; 0 if the file is not the driver's. */
static __always_inline u32 family_of(struct file *file, u32 *minor)
{
	u32 device = BPF_CORE_READ(file, f_inode, i_rdev);
	u32 major = device >> 20;
	u32 *family = bpf_map_lookup_elem(&majors, &major);

	*minor = device & 0xfffff;
	return family ? *family & GPUREC_FAMILY : 0;
}

/* Does a function hook see ioctls on this file too? */
static __always_inline bool by_function(struct file *file)
{
	u32 device = BPF_CORE_READ(file, f_inode, i_rdev);
	u32 major = device >> 20, minor = device & 0xfffff, special;
	u32 *family = bpf_map_lookup_elem(&majors, &major);

	if (!family)
		return false;
	special = (*family & GPUREC_FAMILY) == GPUREC_UVM ? UVM_TOOLS_MINOR : MODESET_MINOR;
	return *family & (minor == special ? GPUREC_SPECIAL_BY_FUNCTION : GPUREC_BY_FUNCTION);
}

static __always_inline struct file *file_of(struct task_struct *task, int fd)
{
	struct file **fds, *file = NULL;

	if (fd < 0 || (u32)fd >= BPF_CORE_READ(task, files, fdt, max_fds))
		return NULL;
	fds = BPF_CORE_READ(task, files, fdt, fd);
	bpf_probe_read_kernel(&file, sizeof(file), fds + fd);
	return file;
}

static __always_inline u32 family_of_fd(struct task_struct *task, int fd, u32 *minor)
{
	struct file *file = file_of(task, fd);

	return file ? family_of(file, minor) : 0;
}

static __always_inline struct kernel_thread *kernel_thread(struct task_struct *task)
{
	return bpf_task_storage_get(&kernel_threads, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
}

/* --- ioctls --- */

struct request {
	u32 family, minor;
	u32 cmd, nr, size;
	u32 fd;
	u64 payload;
	u32 flags;
};

static __always_inline u32 ioctl_probe(const struct request *r)
{
	struct gpurec_driver *n = numbers();

	if (!n)
		return 0;
	if (r->family == GPUREC_UVM)
		return n->uvm_ioctl;
	if (r->family != GPUREC_NVIDIA)
		return n->other_ioctl;
	return r->minor == MODESET_MINOR ? n->modeset_ioctl : n->ioctl;
}

/* Fills in the request's number, size and payload, even if it is wrapped in another request. */
static __always_inline void unwrap(struct request *r)
{
	struct {
		u32 nr, size;
		u64 payload;
	} wrapped;

	if (r->family == GPUREC_UVM) {
		r->nr = r->cmd;
		r->size = 0;
		return;
	}
	r->nr = r->cmd & 0xff;
	r->size = r->cmd >> 16 & 0x3fff;
	if (r->family != GPUREC_NVIDIA || r->minor == MODESET_MINOR || r->nr != XFER_COMMAND)
		return;
	if (r->size != sizeof(wrapped))
		return;
	if (bpf_probe_read_user(&wrapped, sizeof(wrapped), (void *)r->payload))
		return;
	r->nr = wrapped.nr;
	r->size = wrapped.size;
	r->payload = wrapped.payload;
	r->flags |= GPUREC_WRAPPED;
}

static __noinline int ioctl_begin(struct kernel_thread *k, const struct request *r, u32 probe, u64 sp)
{
	struct gpurec_ioctl_key key = {.family = r->family, .nr = r->nr};
	struct gpurec_ioctl_shape *shape = bpf_map_lookup_elem(&shapes, &key);
	struct kernel_frame *frame = open_frame(k, probe, sp);
	u64 args[6] = {r->family | (u64)r->minor << 32, r->cmd, r->payload, r->nr, r->size, r->fd};
	struct kernel_scratch *s = &k->scratch;
	u32 used, entry = shape ? shape->entry : DEFAULT_PAYLOAD;

	if (!frame) {
		count_lost_call(probe);
		return 0;
	}
	frame->size = r->size;
	frame->place[0] = r->payload;
	frame->place[1] = r->family | (u64)r->nr << 32;
	if (r->size && r->size < entry)
		entry = r->size;
	if (k->busy) {
		frame->ts = plain_call(probe, r->flags | GPUREC_CUT, k->depth, args);
	} else {
		k->busy = 1;
		kernel_call(&s->call, probe, r->flags, k->depth, args);
		used = add_piece(s, 0, r->payload, entry, 1);
		if (shape && shape->second_size) {
			u64 second = r->payload + shape->second_at;

			if (!shape->second_inline)
				second = read_back(s, 0, shape->second_at, 8);
			used = add_piece(s, used, second, shape->second_size, 1);
		}
		s->call.payload = used;
		frame->ts = send_kernel_call(s, sizeof(s->call) + used);
		k->busy = 0;
	}
	/* Also for a call that found no space: its return must not end the enclosing call. */
	k->depth++;
	if (!frame->ts)
		count_lost_call(probe);
	return 0;
}

static __noinline int ioctl_end(struct kernel_thread *k, u32 probe, u64 value, u32 flags, u64 sp)
{
	struct gpurec_ioctl_shape *shape;
	struct gpurec_ioctl_key key;
	struct kernel_frame frame;
	u32 used = 0, again;

	if (!close_frame(k, probe, sp, &frame) || !frame.ts)
		return 0;
	key.family = (u32)frame.place[1];
	key.nr = frame.place[1] >> 32;
	shape = bpf_map_lookup_elem(&shapes, &key);
	if (!shape || k->busy) {
		plain_return(probe, shape ? flags | GPUREC_CUT : flags, frame.ts, value);
		return 0;
	}
	k->busy = 1;
	again = frame.size && frame.size < shape->exit ? frame.size : shape->exit;
	used = add_piece(&k->scratch, 0, frame.place[0], again, 1);
	if (shape->has_status && (!frame.size || shape->status + 4 <= frame.size))
		used = add_piece(&k->scratch, used, frame.place[0] + shape->status, 4, 1);
	scratch_return(&k->scratch, probe, flags, frame.ts, value, used);
	k->busy = 0;
	return 0;
}

static __always_inline void ioctl_enter(struct task_struct *task, struct file *file, u32 fd, u32 cmd, u64 payload, u64 sp, u64 copy)
{
	struct request r = {.cmd = cmd, .payload = payload, .fd = fd};
	struct kernel_thread *k;
	struct thread *t;
	u32 probe;

	r.family = family_of(file, &r.minor);
	if (!r.family)
		return;
	r.flags = recorded(task, GPUREC_TARGETS, true);
	if (!r.flags)
		return;
	unwrap(&r);
	probe = ioctl_probe(&r);
	if (!probe)
		return;
	k = kernel_thread(task);
	if (!k) {
		count_lost_call(probe);
		return;
	}
	/* While functions are being hooked, both ways can see the same ioctl. */
	if (sp != SYSTEM_CALL && top_frame(k, probe, SYSTEM_CALL))
		return;
	if (is_reported(k, probe, sp, copy))
		return;
	drop_dead(k, task, probe, sp);
	ioctl_begin(k, &r, probe, sp);
	t = bpf_task_storage_get(&threads, task, 0, 0);
	if (t)
		t->in_ioctl = k->depth > 0;
}

/* The frame identifies the ioctl probe: the frame at this stack position, or else the innermost. */
static __always_inline void ioctl_leave(struct task_struct *task, u64 value, u64 sp)
{
	struct kernel_thread *k = bpf_task_storage_get(&kernel_threads, task, 0, 0);
	struct gpurec_driver *n = numbers();
	struct thread *t;
	u32 flags, i;

	t = bpf_task_storage_get(&threads, task, 0, 0);
	if (t)
		t->in_ioctl = 0;
	if (!k || !n || !k->depth || phase_now() == GPUREC_SILENT)
		return;
	flags = flags_at_return(task);
	for (i = 0; i < GPUREC_KERNEL_FRAMES && i < k->depth; i++) {
		struct kernel_frame *frame = &k->at[(k->depth - 1 - i) & (GPUREC_KERNEL_FRAMES - 1)];
		u32 probe = frame->probe;

		if (sp && frame->sp != sp)
			continue;
		if (probe == n->ioctl || probe == n->uvm_ioctl || probe == n->modeset_ioctl || probe == n->other_ioctl) {
			ioctl_end(k, probe, value, flags, sp);
			break;
		}
	}
}

SEC("tracepoint/syscalls/sys_enter_ioctl")
int syscall_ioctl_enter(struct trace_event_raw_sys_enter *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct file *file;

	keep_own_stack(ctx);
	if (!is_target(task->tgid))
		return 0;
	file = file_of(task, (int)ctx->args[0]);
	if (file && !by_function(file))
		ioctl_enter(task, file, ctx->args[0], ctx->args[1], ctx->args[2], SYSTEM_CALL, bpf_get_attach_cookie(ctx));
	return 0;
}

SEC("tracepoint/syscalls/sys_exit_ioctl")
int syscall_ioctl_exit(struct trace_event_raw_sys_exit *ctx)
{
	keep_own_stack(ctx);
	ioctl_leave(bpf_get_current_task_btf(), ctx->ret, 0);
	return 0;
}

/* --- other system calls on the driver's files --- */

static __always_inline void syscall_begin(struct task_struct *task, u32 flags, u32 probe, const u64 *args, u64 copy)
{
	struct kernel_thread *k = kernel_thread(task);
	struct kernel_frame *frame;

	if (!k) {
		count_lost_call(probe);
		return;
	}
	if (is_reported(k, probe, SYSTEM_CALL, copy))
		return;
	drop_dead(k, task, probe, SYSTEM_CALL);
	frame = open_frame(k, probe, SYSTEM_CALL);
	if (!frame) {
		count_lost_call(probe);
		return;
	}
	frame->ts = plain_call(probe, flags, k->depth, args);
	k->depth++;
	if (!frame->ts)
		count_lost_call(probe);
}

static __always_inline void syscall_end(struct task_struct *task, u32 probe, u64 value)
{
	struct kernel_thread *k = bpf_task_storage_get(&kernel_threads, task, 0, 0);
	struct kernel_frame frame;

	if (!k || !k->depth || phase_now() == GPUREC_SILENT || !close_frame(k, probe, 0, &frame) || !frame.ts)
		return;
	plain_return(probe, flags_at_return(task), frame.ts, value);
}

/* A system call on a descriptor, if that is one of the driver's files and no function hook reports the same event.
 * This is checked before the thread gets a state, because with --all every process is a target. */
static __always_inline void on_descriptor(u32 probe, u32 by_function, int fd, u64 *args, u64 copy)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u32 flags, family, minor = 0;

	if (!probe || !is_target(task->tgid))
		return;
	family = family_of_fd(task, fd, &minor);
	if (!family || (by_function && family == GPUREC_NVIDIA && minor != MODESET_MINOR))
		return;
	flags = recorded(task, GPUREC_TARGETS, true);
	if (!flags)
		return;
	args[0] = family | (u64)minor << 32;
	syscall_begin(task, flags, probe, args, copy);
}

SEC("tracepoint/syscalls/sys_enter_mmap")
int syscall_mmap_enter(struct trace_event_raw_sys_enter *ctx)
{
	struct gpurec_driver *n = numbers();
	u64 args[6] = {0, ctx->args[0], ctx->args[1], ctx->args[2], ctx->args[3], ctx->args[5]};

	keep_own_stack(ctx);
	if (n && (int)ctx->args[4] >= 0)
		on_descriptor(n->mmap, n->by_function & GPUREC_MMAP_BY_FUNCTION, (int)ctx->args[4], args, bpf_get_attach_cookie(ctx));
	return 0;
}

SEC("tracepoint/syscalls/sys_exit_mmap")
int syscall_mmap_exit(struct trace_event_raw_sys_exit *ctx)
{
	struct gpurec_driver *n = numbers();

	keep_own_stack(ctx);
	if (n)
		syscall_end(bpf_get_current_task_btf(), n->mmap, ctx->ret);
	return 0;
}

SEC("tracepoint/syscalls/sys_enter_close")
int syscall_close_enter(struct trace_event_raw_sys_enter *ctx)
{
	struct gpurec_driver *n = numbers();
	u64 args[6] = {0, ctx->args[0]};

	keep_own_stack(ctx);
	if (n)
		on_descriptor(n->close, n->by_function & GPUREC_CLOSE_BY_FUNCTION, (int)ctx->args[0], args, bpf_get_attach_cookie(ctx));
	return 0;
}

SEC("tracepoint/syscalls/sys_exit_close")
int syscall_close_exit(struct trace_event_raw_sys_exit *ctx)
{
	struct gpurec_driver *n = numbers();

	keep_own_stack(ctx);
	if (n)
		syscall_end(bpf_get_current_task_btf(), n->close, ctx->ret);
	return 0;
}

/* Before the open it is unknown which file a name leads to: here the name decides. */
SEC("tracepoint/syscalls/sys_enter_openat")
int syscall_open_enter(struct trace_event_raw_sys_enter *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct gpurec_driver *n = numbers();
	char name[32] = {}, prefix[] = DEVICE_PREFIX;
	u64 args[6] = {0, ctx->args[2]};
	u32 flags, i;

	keep_own_stack(ctx);
	if (!n || !n->open || !is_target(task->tgid))
		return 0;
	if (bpf_probe_read_user_str(name, sizeof(name), (void *)ctx->args[1]) < 0)
		return 0;
#pragma unroll
	for (i = 0; i < sizeof(prefix) - 1; i++) {
		if (name[i] != prefix[i])
			return 0;
	}
	/* nvidia_open serves /dev/nvidiactl and /dev/nvidiaN. */
	if ((n->by_function & GPUREC_OPEN_BY_FUNCTION) && name[i] != '-')
		return 0;
	/* The name, eight bytes per argument: as much as a record without pieces can hold. */
	__builtin_memcpy(&args[2], name, sizeof(name));
	flags = recorded(task, GPUREC_TARGETS, true);
	if (!flags)
		return 0;
	syscall_begin(task, flags, n->open, args, bpf_get_attach_cookie(ctx));
	return 0;
}

SEC("tracepoint/syscalls/sys_exit_openat")
int syscall_open_exit(struct trace_event_raw_sys_exit *ctx)
{
	struct gpurec_driver *n = numbers();

	keep_own_stack(ctx);
	if (n)
		syscall_end(bpf_get_current_task_btf(), n->open, ctx->ret);
	return 0;
}

struct polled {
	int fd;
	short events, got;
};

static __always_inline void poll_begin(u64 fds, u64 count, s64 timeout, u64 copy)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct gpurec_driver *n = numbers();
	u64 args[6] = {0, count, timeout};
	struct polled one;
	u32 flags, family, minor = 0, i;

	if (!n || !n->poll || !is_target(task->tgid))
		return;
	for (i = 0; i < POLLED && i < count; i++) {
		if (bpf_probe_read_user(&one, sizeof(one), (void *)(fds + i * sizeof(one))))
			return;
		family = family_of_fd(task, one.fd, &minor);
		if (!family)
			continue;
		args[0] = family | (u64)minor << 32;
		args[3] = one.fd;
		flags = recorded(task, GPUREC_TARGETS, true);
		if (flags)
			syscall_begin(task, flags, n->poll, args, copy);
		return;
	}
}

static __always_inline int poll_end(s64 value)
{
	struct gpurec_driver *n = numbers();

	if (n)
		syscall_end(bpf_get_current_task_btf(), n->poll, value);
	return 0;
}

SEC("tracepoint/syscalls/sys_enter_poll")
int syscall_poll_enter(struct trace_event_raw_sys_enter *ctx)
{
	keep_own_stack(ctx);
	poll_begin(ctx->args[0], ctx->args[1], (int)ctx->args[2], bpf_get_attach_cookie(ctx));
	return 0;
}

SEC("tracepoint/syscalls/sys_exit_poll")
int syscall_poll_exit(struct trace_event_raw_sys_exit *ctx)
{
	keep_own_stack(ctx);
	return poll_end(ctx->ret);
}

SEC("tracepoint/syscalls/sys_enter_ppoll")
int syscall_ppoll_enter(struct trace_event_raw_sys_enter *ctx)
{
	struct {
		s64 sec, nsec;
	} limit = {};
	s64 timeout = -1;

	keep_own_stack(ctx);
	if (ctx->args[2] && !bpf_probe_read_user(&limit, sizeof(limit), (void *)ctx->args[2]))
		timeout = limit.sec * 1000 + (u64)limit.nsec / 1000000;
	poll_begin(ctx->args[0], ctx->args[1], timeout, bpf_get_attach_cookie(ctx));
	return 0;
}

SEC("tracepoint/syscalls/sys_exit_ppoll")
int syscall_ppoll_exit(struct trace_event_raw_sys_exit *ctx)
{
	keep_own_stack(ctx);
	return poll_end(ctx->ret);
}

#endif

/*
 * The kernel types in use, and of each only the fields in use. CO-RE moves every access
 * to where the running kernel has the field, so this is no copy of any kernel's header.
 */
#ifndef __VMLINUX_H__
#define __VMLINUX_H__

typedef unsigned char __u8;
typedef signed char __s8;
typedef unsigned short __u16;
typedef short __s16;
typedef unsigned int __u32;
typedef int __s32;
typedef unsigned long long __u64;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef __u32 __wsum;
typedef __u16 __le16;
typedef __u32 __le32;
typedef __u64 __le64;
typedef __u16 __sum16;
typedef _Bool bool;
enum { false = 0, true = 1 };
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __s32 s32;
typedef __u64 u64;
typedef __s64 s64;

enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_ARRAY_OF_MAPS = 12,
	BPF_MAP_TYPE_RINGBUF = 27,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
};

enum {
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
	BPF_EXIST = 2,
	BPF_F_NO_PREALLOC = 1,
	BPF_F_MMAPABLE = 1 << 10,
	BPF_LOCAL_STORAGE_GET_F_CREATE = 1,
	BPF_RB_NO_WAKEUP = 1,
	BPF_RB_FORCE_WAKEUP = 2,
	BPF_RB_AVAIL_DATA = 0,
};

/* What programs are handed: of a fixed layout, and older kernels let no program compute
 * an address in it, as a moved access may. */
#if defined(__TARGET_ARCH_x86)
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di;
	unsigned long orig_ax, ip, cs, flags, sp, ss;
};
#elif defined(__TARGET_ARCH_arm64)
struct user_pt_regs {
	__u64 regs[31];
	__u64 sp, pc, pstate;
};
struct pt_regs {
	struct user_pt_regs user_regs;
	__u64 orig_x0;
};
#else
#error "gpurec runs on x86-64 and AArch64"
#endif

struct trace_entry {
	unsigned short type;
	unsigned char flags, preempt_count;
	int pid;
};

struct trace_event_raw_sys_enter {
	struct trace_entry ent;
	long id;
	unsigned long args[6];
};

struct trace_event_raw_sys_exit {
	struct trace_entry ent;
	long id;
	long ret;
};

struct bpf_raw_tracepoint_args {
	__u64 args[0];
};

#ifndef BPF_NO_PRESERVE_ACCESS_INDEX
#pragma clang attribute push (__attribute__((preserve_access_index)), apply_to = record)
#endif

struct super_block {
	__u32 s_dev;
};

typedef struct {
	int counter;
} atomic_t;

struct address_space {
	atomic_t i_mmap_writable;
};

struct inode {
	struct super_block *i_sb;
	struct address_space *i_mapping;
	unsigned long i_ino;
	__u32 i_generation;
	__u32 i_rdev;
	long long i_size;
	long long i_ctime_sec;
	__u32 i_ctime_nsec;
};

struct timespec64 {
	long long tv_sec;
	long tv_nsec;
};

struct inode___before_6_13 {
	struct timespec64 __i_ctime;
};

struct inode___before_6_6 {
	struct timespec64 i_ctime;
};

struct qstr {
	const unsigned char *name;
};

struct dentry {
	struct qstr d_name;
};

struct path {
	struct dentry *dentry;
};

struct file {
	struct inode *f_inode;
	unsigned int f_mode;
	struct path f_path;
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct xol_area {
	unsigned long vaddr;
};

struct uprobes_state {
	struct xol_area *xol_area;
};

struct vm_area_struct {
	unsigned long vm_start, vm_end, vm_flags, vm_pgoff;
	struct file *vm_file;
};

struct mm_struct {
	unsigned long start_stack;
	unsigned long start_code;
	unsigned long arg_start, arg_end;
	unsigned long saved_auxv[44];
	struct uprobes_state uprobes_state;
};

enum pid_type { PIDTYPE_PID, PIDTYPE_TGID, PIDTYPE_PGID, PIDTYPE_SID, PIDTYPE_MAX };

struct pid;
struct tty_struct;

struct list_head {
	struct list_head *next;
};

struct wait_queue_head {
	struct list_head head;
};

struct wait_queue_entry {
	void *private; /* the thread */
	struct list_head entry;
};

/* A thread that waits for children: what of, and where it is among those that do. */
struct wait_opts {
	int wo_flags;
	struct wait_queue_entry child_wait;
};

struct sigaction {
	void *sa_handler;
};

struct k_sigaction {
	struct sigaction sa;
};

struct sighand_struct {
	struct k_sigaction action[64];
};

struct signal_struct {
	atomic_t live;
	struct wait_queue_head wait_chldexit;
	int group_exit_code;
	unsigned int flags;
	struct pid *pids[PIDTYPE_MAX];
	struct tty_struct *tty;
};

struct thread_struct {
#if defined(__TARGET_ARCH_x86)
	unsigned long fsbase;
#else
	struct {
		unsigned long tp_value;
	} uw;
#endif
};

typedef struct {
	u32 val;
} kuid_t;

struct cred {
	kuid_t uid, suid, euid;
};

struct upid {
	int nr;
};

struct pid {
	unsigned int level;
	struct upid numbers[1];
};

struct return_instance {
	unsigned long stack;
	unsigned long orig_ret_vaddr;
	bool chained;
	struct return_instance *next;
};

struct uprobe_task {
	struct return_instance *return_instances;
};

struct task_struct {
	struct uprobe_task *utask;
	const struct cred *real_cred;
	unsigned int __state;
	unsigned int personality;
	unsigned long sas_ss_sp;
	unsigned long sas_ss_size;
	struct thread_struct thread;
	void *stack;
	unsigned long jobctl;
	unsigned int ptrace;
	int pid, tgid;
	int exit_code;
	unsigned int flags;
	u64 start_time;
	u64 self_exec_id; /* before 5.7: 32 bits */
	struct task_struct *real_parent;
	struct task_struct *group_leader;
	struct pid *thread_pid;
	struct mm_struct *mm;
	struct files_struct *files;
	struct signal_struct *signal;
	struct sighand_struct *sighand;
};

struct task_struct___before_5_14 {
	long state;
};

struct linux_binprm {
	struct file *file;
};

struct kobject {
	const char *name;
};

struct device {
	struct kobject kobj;
};

struct pci_dev {
	struct device dev;
};

struct irqaction {
	const char *name;
};


#ifndef BPF_NO_PRESERVE_ACCESS_INDEX
#pragma clang attribute pop
#endif

#endif

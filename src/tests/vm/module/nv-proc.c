// SPDX-License-Identifier: GPL-2.0
/* Stands in for /proc/driver/nvidia/version, and holds the truth: standin_counts, what was done since it was last
 * written to. "reset" starts anew; "interrupt", "fault" and "xid NUMBER TEXT" make one happen. */
#include "standin.h"

#include <linux/hashtable.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/proc_fs.h>
#include <linux/sched.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

struct standin_functions standin_here = {.list = LLIST_HEAD_INIT(standin_here.list), .module = "nvidia",
                                         .others = LIST_HEAD_INIT(standin_here.others)};

/* A kind of line with its count. */
struct line {
    struct hlist_node node;
    char text[120];
    u64 count;
};
static DEFINE_HASHTABLE(lines, 8);
static DEFINE_MUTEX(lines_lock);
static atomic_t events[STANDIN_EVENTS];
static const char *const event_names[STANDIN_EVENTS] = {"interrupts", "posted", "xids", "cpu_faults", "gpu_faults"};
static struct proc_dir_entry *directory;

/* Any context: no lock, no memory. */
void notrace standin_called(struct standin_functions *mine, struct standin_function *function, const char *name)
{
    atomic_inc(&function->count);
    if (!atomic_read(&function->listed) && !atomic_xchg(&function->listed, 1)) {
        function->name = name;
        llist_add(&function->node, &mine->list);
    }
}
EXPORT_SYMBOL(standin_called);

void standin_functions_add(struct standin_functions *more)
{
    mutex_lock(&lines_lock);
    list_add_tail(&more->others, &standin_here.others);
    mutex_unlock(&lines_lock);
}
EXPORT_SYMBOL(standin_functions_add);

void standin_functions_remove(struct standin_functions *more)
{
    mutex_lock(&lines_lock);
    list_del(&more->others);
    mutex_unlock(&lines_lock);
}
EXPORT_SYMBOL(standin_functions_remove);

static void count(const char *text)
{
    struct line *line;
    u32 key = 5381;
    const char *at;
    for (at = text; *at; at++)
        key = key * 33 + *at;
    mutex_lock(&lines_lock);
    hash_for_each_possible(lines, line, node, key)
        if (!strcmp(line->text, text))
            goto found;
    line = kzalloc(sizeof(*line), GFP_KERNEL);
    if (!line)
        goto out;
    strscpy(line->text, text, sizeof(line->text));
    hash_add(lines, &line->node, key);
found:
    line->count++;
out:
    mutex_unlock(&lines_lock);
}

static void put_name(char *text, size_t room, const char *device, unsigned int minor)
{
    if (minor == NO_NUMBER)
        snprintf(text, room, "%s", device);
    else
        snprintf(text, room, "%s%u", device, minor);
}

void standin_count_ioctl(const struct standin_ioctl *ioctl)
{
    char device[24], detail[12] = "-", status[12] = "-", text[120];
    put_name(device, sizeof(device), ioctl->device, ioctl->minor);
    if (ioctl->has_detail)
        snprintf(detail, sizeof(detail), "0x%x", ioctl->detail);
    if (ioctl->has_status)
        snprintf(status, sizeof(status), "0x%x", ioctl->status);
    snprintf(text, sizeof(text), "ioctl %s 0x%x %s %s %ld %s", device, ioctl->nr, detail, status, ioctl->returned,
             ioctl->wrapped ? "wrapped" : "plain");
    count(text);
    snprintf(text, sizeof(text), "process %d %s", current->tgid, current->group_leader->comm);
    count(text);
}
EXPORT_SYMBOL(standin_count_ioctl);

void standin_count_file(const char *device, unsigned int minor, const char *what)
{
    char name[24], text[120];
    put_name(name, sizeof(name), device, minor);
    snprintf(text, sizeof(text), "file %s %s", name, what);
    count(text);
}
EXPORT_SYMBOL(standin_count_file);

void standin_count_event(enum standin_event event)
{
    atomic_inc(&events[event]);
}
EXPORT_SYMBOL(standin_count_event);

/* --- /proc --- */

static void each_function(void (*visit)(const char *module, struct standin_function *, void *), void *data)
{
    struct standin_functions *all = &standin_here;
    do {
        struct standin_function *function;
        llist_for_each_entry(function, READ_ONCE(all->list.first), node)
            visit(all->module, function, data);
        all = list_entry(all->others.next, struct standin_functions, others);
    } while (all != &standin_here);
}

static void show_function(const char *module, struct standin_function *function, void *data)
{
    int count = atomic_read(&function->count);
    if (count)
        seq_printf(data, "function %s %s %d\n", module, function->name, count);
}

static int show_counts(struct seq_file *out, void *unused)
{
    struct line *line;
    int i;
    mutex_lock(&lines_lock);
    hash_for_each(lines, i, line, node)
        seq_printf(out, "%s %llu\n", line->text, line->count);
    for (i = 0; i < STANDIN_EVENTS; i++)
        seq_printf(out, "event %s %d\n", event_names[i], atomic_read(&events[i]));
    each_function(show_function, out);
    mutex_unlock(&lines_lock);
    return 0;
}

static int open_counts(struct inode *inode, struct file *file)
{
    return single_open(file, show_counts, NULL);
}

static void clear_function(const char *module, struct standin_function *function, void *data)
{
    atomic_set(&function->count, 0);
}

static void reset(void)
{
    struct hlist_node *next;
    struct line *line;
    int i;
    mutex_lock(&lines_lock);
    hash_for_each_safe(lines, i, next, line, node) {
        hash_del(&line->node);
        kfree(line);
    }
    for (i = 0; i < STANDIN_EVENTS; i++)
        atomic_set(&events[i], 0);
    each_function(clear_function, NULL);
    mutex_unlock(&lines_lock);
}

static ssize_t write_counts(struct file *file, const char __user *user, size_t size, loff_t *at)
{
    char text[120] = "";
    u32 number;
    int used = 0;
    if (size >= sizeof(text))
        return -EINVAL;
    if (copy_from_user(text, user, size))
        return -EFAULT;
    strim(text);
    if (!strcmp(text, "reset"))
        reset();
    else if (!strcmp(text, "interrupt"))
        nv_interrupt_raise();
    else if (!strcmp(text, "fault"))
        nv_uvm_gpu_fault();
    else if (sscanf(text, "xid %u %n", &number, &used) == 1 && used)
        standin_xid(number, text + used);
    else
        return -EINVAL;
    return size;
}

static const struct proc_ops counts_ops = {
    .proc_open = open_counts, .proc_read = seq_read, .proc_lseek = seq_lseek, .proc_release = single_release,
    .proc_write = write_counts,
};


/* As in the real module, another function of this name is in another file. */
static FN int nv_procfs_read_permissions(struct seq_file *out)
{
    HERE;
    return 0;
}

static FN int nv_procfs_read_version(struct seq_file *out, void *unused)
{
    HERE;
    nv_procfs_read_permissions(out);
#ifdef STANDIN_proprietary
    seq_printf(out, "NVRM version: NVIDIA UNIX x86_64 Kernel Module  %s  Thu Jan  1 00:00:00 UTC 2026\n",
               standin_version);
#else
    seq_printf(out, "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  %s  Release Build  (stand-in)\n",
               standin_version);
#endif
    seq_puts(out, "GCC version:  gcc version 12.2.0\n");
    return 0;
}

static int open_version(struct inode *inode, struct file *file)
{
    return single_open(file, nv_procfs_read_version, NULL);
}

static const struct proc_ops version_ops = {
    .proc_open = open_version, .proc_read = seq_read, .proc_lseek = seq_lseek, .proc_release = single_release,
};

int nv_proc_init(void)
{
    directory = proc_mkdir("driver/nvidia", NULL);
    if (!directory)
        return -ENOMEM;
    if (proc_create("version", 0444, directory, &version_ops) &&
        proc_create("standin_counts", 0666, directory, &counts_ops))
        return 0;
    proc_remove(directory);
    return -ENOMEM;
}

void nv_proc_exit(void)
{
    proc_remove(directory);
    reset();
}

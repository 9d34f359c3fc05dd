// SPDX-License-Identifier: GPL-2.0
/* Stands in for the device files: /dev/nvidiactl and /dev/nvidia0. A request's payload is copied in, dispatched, and
 * copied out again also if it failed. */
#include "standin.h"

#include <linux/cdev.h>
#include <linux/file.h>
#include <linux/module.h>
#include <linux/poll.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>

#define PAYLOAD_LIMIT 16384
#define CARD_INFO_BYTES 72

nv_state_t nv_gpu = {.minor = 0}, nv_ctl = {.minor = NV_MINOR_CTL};
static LIST_HEAD(files);
static DEFINE_MUTEX(files_lock);

static const char *name_of(unsigned int minor, unsigned int *number)
{
    *number = minor == NV_MINOR_CTL ? NO_NUMBER : minor;
    return minor == NV_MINOR_CTL ? "nvidiactl" : "nvidia";
}

static void count_file(const nv_file_private_t *nvfp, const char *what)
{
    unsigned int number;
    const char *name = name_of(nvfp->minor, &number);
    standin_count_file(name, number, what);
}

/* As in the real module, another function of this name is in another file. */
static FN int nv_procfs_read_permissions(struct file *file)
{
    HERE;
    return 0;
}

static FN int nv_open_device(nv_state_t *nv, nvidia_stack_t *sp)
{
    HERE;
    return rm_init_adapter(sp, nv) ? 0 : -EIO;
}

FN int nvidia_open(struct inode *inode, struct file *file);
FN int nvidia_open(struct inode *inode, struct file *file)
{
    nv_file_private_t *nvfp;
    int result = 0;
    HERE;
    nvfp = kzalloc(sizeof(*nvfp), GFP_KERNEL);
    if (!nvfp)
        return -ENOMEM;
    nvfp->minor = iminor(inode);
    nv_procfs_read_permissions(file);
    nvfp->nv = nvfp->minor == NV_MINOR_CTL ? &nv_ctl : &nv_gpu;
    init_waitqueue_head(&nvfp->waiting);
    if (nvfp->minor != NV_MINOR_CTL)
        result = nv_open_device(nvfp->nv, NULL);
    if (result) {
        kfree(nvfp);
        return result;
    }
    mutex_lock(&files_lock);
    list_add(&nvfp->files, &files);
    mutex_unlock(&files_lock);
    file->private_data = nvfp;
    count_file(nvfp, "open");
    return 0;
}

FN int nvidia_close(struct inode *inode, struct file *file);
FN int nvidia_close(struct inode *inode, struct file *file)
{
    nv_file_private_t *nvfp = file->private_data;
    HERE;
    mutex_lock(&files_lock);
    list_del(&nvfp->files);
    mutex_unlock(&files_lock);
    rm_cleanup_file_private(NULL, nvfp->nv, nvfp);
    count_file(nvfp, "close");
    vfree(nvfp->mapping);
    kfree(nvfp);
    return 0;
}

/* --- ioctl --- */

static void put_card(char *at)
{
    memset(at, 0, CARD_INFO_BYTES);
    at[0] = 1;
    put32(at, 4, 0);       /* domain */
    at[8] = 1;             /* bus */
    put32(at, 12, 0x233510de);
    put32(at, 16, 0x100);  /* gpu_id */
    put64(at, 48, 8ull << 30);
    put32(at, 56, nv_gpu.minor);
}

static long card_info(char *payload, u32 size)
{
    if (!size || size % CARD_INFO_BYTES)
        return -EINVAL;
    memset(payload, 0, size);
    put_card(payload);
    return 0;
}

/* cmd '2': say which version this is. Else the caller's must be ours. */
static long check_version(char *payload, u32 size)
{
    bool same;
    if (size != 72)
        return -EINVAL;
    payload[71] = 0;
    same = get32(payload, 0) == '2' || !strcmp(payload + 8, standin_version);
    put32(payload, 4, same);
    memset(payload + 8, 0, 64);
    strscpy(payload + 8, standin_version, 64);
    return same ? 0 : -EINVAL;
}

static long attach_gpus(const char *payload, u32 size)
{
    u32 at;
    if (!size || size % 4)
        return -EINVAL;
    for (at = 0; at < size; at += 4)
        if (get32(payload, at) != 0x100)
            return -EINVAL;
    return 0;
}

/* The newer source has this as a function; the compiler puts it into its caller. */
static inline long dispatch(nv_file_private_t *nvfp, u32 nr, void *payload, u32 size)
{
    bool control = nvfp->minor == NV_MINOR_CTL;
    switch (nr) {
    case NV_ESC_CARD_INFO: return control ? card_info(payload, size) : -EINVAL;
    case NV_ESC_CHECK_VERSION_STR: return control ? check_version(payload, size) : -EINVAL;
    case NV_ESC_ATTACH_GPUS_TO_FD: return control ? attach_gpus(payload, size) : -EINVAL;
    case NV_ESC_SYS_PARAMS:
        if (!control || size != 8)
            return -EINVAL;
        put64(payload, 0, 128ull << 20);
        return 0;
    case NV_ESC_QUERY_DEVICE_INTR:
        if (control || size != 8)
            return -EINVAL;
        put64(payload, 0, 1);
        return 0;
    case NV_ESC_WAIT_OPEN_COMPLETE:
        if (control || size != 8)
            return -EINVAL;
        put64(payload, 0, 0);
        return 0;
    default:
        return rm_ioctl(NULL, nvfp->nv, nvfp, nr, payload, size) == NV_OK ? 0 : -EINVAL;
    }
}

static int status_at(u32 nr, u32 size)
{
    switch (nr) {
    case 0x27: return 40;
    case 0x28: return 16;
    case 0x29: case 0x52: case 0x59: case 0xce: case 0xcf: return 12;
    case 0x2a: return 28;
    case 0x2b: return size == 32 ? 28 : 40;
    case 0x34: case 0x39: case 0x4f: return 24;
    case 0x35: case 0x4a: return 20;
    case 0x41: case 0x54: return 48;
    case 0x4d: return 64;
    case 0x4e: return 40;
    case 0x57: return standin_layout >= 580 ? 56 : 48;
    case 0x58: return standin_layout >= 550 ? 40 : 32;
    case 0x5e: return 32;
    case 0xd1: return 8;
    case 0xd5: case 0xda: return 4;
    default: return -1;
    }
}

static void describe(struct standin_ioctl *ioctl, const void *payload, u32 size)
{
    int at = status_at(ioctl->nr, size);
    if (at >= 0 && at + 4 <= (int)size) {
        ioctl->has_status = true;
        ioctl->status = get32(payload, at);
    }
    at = ioctl->nr == NV_ESC_RM_CONTROL ? 8 : ioctl->nr == NV_ESC_RM_ALLOC || ioctl->nr == NV_ESC_RM_ALLOC_MEMORY ? 12 : -1;
    if (at >= 0 && at + 4 <= (int)size) {
        ioctl->has_detail = true;
        ioctl->detail = get32(payload, at);
    }
}

static long with_payload(nv_file_private_t *nvfp, struct standin_ioctl *ioctl, void __user *user, u32 size)
{
    long result;
    char *payload;
    if (size > PAYLOAD_LIMIT)
        return -EINVAL;
    payload = kzalloc(size ? size : 1, GFP_KERNEL);
    if (!payload)
        return -ENOMEM;
    if (copy_from_user(payload, user, size)) {
        kfree(payload);
        return -EFAULT;
    }
    result = dispatch(nvfp, ioctl->nr, payload, size);
    if (copy_to_user(user, payload, size))
        result = -EFAULT;
    describe(ioctl, payload, size);
    kfree(payload);
    return result;
}

static long run(struct file *file, unsigned int cmd, unsigned long arg)
{
    nv_file_private_t *nvfp = file->private_data;
    struct standin_ioctl ioctl = {.nr = _IOC_NR(cmd)};
    u32 size = _IOC_SIZE(cmd);
    void __user *user = (void __user *)arg;
    struct {
        u32 nr, size;
        u64 user;
    } wrapped;
    ioctl.device = name_of(nvfp->minor, &ioctl.minor);
    if (ioctl.nr == NV_ESC_IOCTL_XFER_CMD) {
        if (size != sizeof(wrapped)) {
            ioctl.returned = -EINVAL;
        } else if (copy_from_user(&wrapped, user, sizeof(wrapped))) {
            ioctl.returned = -EFAULT;
        } else {
            ioctl.nr = wrapped.nr;
            ioctl.wrapped = true;
            ioctl.returned = with_payload(nvfp, &ioctl, u64_to_user_ptr(wrapped.user), wrapped.size);
        }
    } else {
        ioctl.returned = with_payload(nvfp, &ioctl, user, size);
    }
    standin_count_ioctl(&ioctl);
    return ioctl.returned;
}

#ifdef STANDIN_535
/* Up to 535 another layer came first, and the ioctl was a function that could be seen. */
static FN long nvidia_ioctl(struct inode *inode, struct file *file, unsigned int cmd, unsigned long arg)
{
    HERE;
    return run(file, cmd, arg);
}

FN long nvidia_frontend_unlocked_ioctl(struct file *file, unsigned int cmd, unsigned long arg);
FN long nvidia_frontend_unlocked_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
    HERE;
    return nvidia_ioctl(file_inode(file), file, cmd, arg);
}
#define IOCTL nvidia_frontend_unlocked_ioctl
#else
FN long nvidia_unlocked_ioctl(struct file *file, unsigned int cmd, unsigned long arg);
FN long nvidia_unlocked_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
    HERE;
    return run(file, cmd, arg);
}
#define IOCTL nvidia_unlocked_ioctl
#endif

/* --- mmap and poll --- */

FN int nvidia_mmap(struct file *file, struct vm_area_struct *vma);
FN int nvidia_mmap(struct file *file, struct vm_area_struct *vma)
{
    nv_file_private_t *nvfp = file->private_data;
    HERE;
    count_file(nvfp, "mmap");
    if (!nvfp->mapping || vma->vm_end - vma->vm_start > PAGE_ALIGN(nvfp->mapping_bytes))
        return -EINVAL;
    return remap_vmalloc_range(vma, nvfp->mapping, 0);
}

/* Who waits gets an interrupt a little later. */
FN __poll_t nvidia_poll(struct file *file, poll_table *wait);
FN __poll_t nvidia_poll(struct file *file, poll_table *wait)
{
    nv_file_private_t *nvfp = file->private_data;
    HERE;
    count_file(nvfp, "poll");
    poll_wait(file, &nvfp->waiting, wait);
    if (atomic_xchg(&nvfp->posted, 0))
        return EPOLLIN | EPOLLPRI;
    if (nvfp->has_event)
        nv_interrupt_soon();
    return 0;
}

NV_STATUS nv_add_mapping_context_to_file(nv_state_t *nv, void *nvuap, u32 prot, void *alloc, u64 index, u32 fd)
{
    struct file *file;
    nv_file_private_t *nvfp = nv_file_of((int)fd, &file);
    NV_STATUS status = NV_OK;
    HERE;
    if (!nvfp)
        return NV_ERR_INVALID_ARGUMENT;
    if (!nvfp->mapping) {
        nvfp->mapping_bytes = PAGE_ALIGN(*(u64 *)nvuap);
        nvfp->mapping = vmalloc_user(nvfp->mapping_bytes);
        if (!nvfp->mapping)
            status = NV_ERR_NO_MEMORY;
    }
    fput(file);
    return status;
}

void nv_each_waiting(void (*visit)(nv_file_private_t *))
{
    nv_file_private_t *nvfp;
    mutex_lock(&files_lock);
    list_for_each_entry(nvfp, &files, files)
        if (nvfp->has_event)
            visit(nvfp);
    mutex_unlock(&files_lock);
}

static const struct file_operations operations = {
    .owner = THIS_MODULE,
    .open = nvidia_open,
    .release = nvidia_close,
    .unlocked_ioctl = IOCTL,
    .mmap = nvidia_mmap,
    .poll = nvidia_poll,
};

/* The caller puts the file when done. */
nv_file_private_t *nv_file_of(int fd, struct file **file)
{
    *file = fget(fd);
    if (!*file)
        return NULL;
    if ((*file)->f_op == &operations)
        return (*file)->private_data;
    fput(*file);
    return NULL;
}

static struct cdev gpu_device, ctl_device;

static int add(struct cdev *device, unsigned int minor, unsigned int count, const char *name)
{
    dev_t number = MKDEV(NV_MAJOR, minor);
    int result = register_chrdev_region(number, count, name);
    if (result)
        return result;
    cdev_init(device, &operations);
    device->owner = THIS_MODULE;
    result = cdev_add(device, number, count);
    if (result)
        unregister_chrdev_region(number, count);
    return result;
}

static void take_away(struct cdev *device, unsigned int minor, unsigned int count)
{
    cdev_del(device);
    unregister_chrdev_region(MKDEV(NV_MAJOR, minor), count);
}

int nv_files_init(void)
{
    int result = add(&gpu_device, 0, NV_MINOR_MODESET, "nvidia");
    if (result)
        return result;
    result = add(&ctl_device, NV_MINOR_CTL, 1, "nvidiactl");
    if (result)
        take_away(&gpu_device, 0, NV_MINOR_MODESET);
    return result;
}

void nv_files_exit(void)
{
    take_away(&ctl_device, NV_MINOR_CTL, 1);
    take_away(&gpu_device, 0, NV_MINOR_MODESET);
}

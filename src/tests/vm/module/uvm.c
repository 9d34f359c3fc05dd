// SPDX-License-Identifier: GPL-2.0
/* Stands in for nvidia-uvm.ko: its device file and its requests. A request is a plain number, its payload's size
 * follows from the number, and its result is the last word of the payload. */
#include "uvm.h"

#include <linux/cdev.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("stand-in for a driver of unified memory, for tests");

struct standin_functions standin_here = {.list = LLIST_HEAD_INIT(standin_here.list), .module = "nvidia_uvm"};

static struct standin_uvm_ops ops = {.isr_top_half = uvm_isr_top_half_entry, .gpu_fault = uvm_gpu_fault};
static dev_t first;
static struct cdev device, tools;

/* --- requests: (parameters in kernel memory, file) --- */

/* As in the real module, another function of this name is in another file. */
static FN void uvm_page_mask_set(u32 *mask, u32 bit)
{
    HERE;
    *mask |= 1u << bit;
}

static uvm_va_space_t *space_of(struct file *file)
{
    return file->private_data;
}

static FN NV_STATUS uvm_api_initialize(void *params, struct file *file)
{
    HERE;
    space_of(file)->initialized = true;
    return NV_OK;
}

static FN NV_STATUS uvm_api_mm_initialize(void *params, struct file *file)
{
    HERE;
    return get32(params, 0) > 1u << 20 ? NV_ERR_INVALID_ARGUMENT : NV_OK;
}

static FN NV_STATUS uvm_api_pageable_mem_access(void *params, struct file *file)
{
    u32 mask = 0;
    HERE;
    uvm_page_mask_set(&mask, 0);
    put32(params, 0, 0);
    return NV_OK;
}

static FN NV_STATUS uvm_api_register_gpu(void *params, struct file *file)
{
    HERE;
    return memcmp(params, "stand-in device!", 16) ? NV_ERR_INVALID_DEVICE : NV_OK;
}

static FN NV_STATUS uvm_api_unregister_gpu(void *params, struct file *file)
{
    HERE;
    return NV_OK;
}

FN NV_STATUS uvm_api_register_gpu_va_space(void *params, struct file *file);
FN NV_STATUS uvm_api_register_gpu_va_space(void *params, struct file *file)
{
    HERE;
    return nvUvmInterfaceDupAddressSpace(NULL, get32(params, 20), get32(params, 24), NULL, NULL);
}

static FN NV_STATUS uvm_api_unregister_gpu_va_space(void *params, struct file *file)
{
    HERE;
    return NV_OK;
}

FN NV_STATUS uvm_api_register_channel(void *params, struct file *file);
FN NV_STATUS uvm_api_register_channel(void *params, struct file *file)
{
    HERE;
    return nvUvmInterfaceRetainChannel(NULL, get32(params, 20), get32(params, 24), NULL, NULL);
}

static FN NV_STATUS uvm_api_unregister_channel(void *params, struct file *file)
{
    HERE;
    nvUvmInterfaceStopChannel(NULL, 0);
    nvUvmInterfaceReleaseChannel(NULL);
    return NV_OK;
}

static bool aligned(void *params)
{
    return get64(params, 8) && !((get64(params, 0) | get64(params, 8)) & ~PAGE_MASK);
}

FN NV_STATUS uvm_api_create_external_range(void *params, struct file *file);
FN NV_STATUS uvm_api_create_external_range(void *params, struct file *file)
{
    HERE;
    return aligned(params) ? NV_OK : NV_ERR_INVALID_ADDRESS;
}

FN NV_STATUS uvm_api_map_external_allocation(void *params, struct file *file);
FN NV_STATUS uvm_api_map_external_allocation(void *params, struct file *file)
{
    bool wide = standin_layout >= 550;
    NV_STATUS status;
    HERE;
    if (!aligned(params))
        return NV_ERR_INVALID_ADDRESS;
    status = nvUvmInterfaceDupMemory(NULL, get32(params, wide ? 9252 : 1188), get32(params, wide ? 9256 : 1192),
                                     NULL, NULL);
    if (status == NV_OK)
        uvm_push_end(params);
    return status;
}

static FN NV_STATUS uvm_api_unmap_external(void *params, struct file *file)
{
    HERE;
    return NV_OK;
}

FN NV_STATUS uvm_api_free(void *params, struct file *file);
FN NV_STATUS uvm_api_free(void *params, struct file *file)
{
    HERE;
    return get64(params, 0) & ~PAGE_MASK ? NV_ERR_INVALID_ADDRESS : NV_OK;
}

FN NV_STATUS uvm_api_migrate(void *params, struct file *file);
FN NV_STATUS uvm_api_migrate(void *params, struct file *file)
{
    HERE;
    return uvm_migrate(space_of(file), current->mm, get64(params, 0), get64(params, 8), 1, -1, get32(params, 32),
                       NULL, NULL, NULL);
}

static FN NV_STATUS uvm_api_set_preferred_location(void *params, struct file *file)
{
    HERE;
    return NV_OK;
}

static FN NV_STATUS uvm_api_validate_va_range(void *params, struct file *file)
{
    HERE;
    return NV_ERR_INVALID_ADDRESS;
}

/* --- dispatch --- */

struct request {
    u32 number;
    u16 size, status; /* with the layouts of 580 */
    NV_STATUS (*run)(void *params, struct file *file);
};
static const struct request requests[] = {
    {0x30000001, 16, 8, uvm_api_initialize},
    {75, 8, 4, uvm_api_mm_initialize},
    {39, 8, 4, uvm_api_pageable_mem_access},
    {37, 40, 36, uvm_api_register_gpu},
    {38, 20, 16, uvm_api_unregister_gpu},
    {25, 32, 28, uvm_api_register_gpu_va_space},
    {26, 20, 16, uvm_api_unregister_gpu_va_space},
    {27, 56, 48, uvm_api_register_channel},
    {28, 28, 24, uvm_api_unregister_channel},
    {73, 24, 16, uvm_api_create_external_range},
    {33, 9264, 9260, uvm_api_map_external_allocation},
    {66, 40, 32, uvm_api_unmap_external},
    {34, 24, 16, uvm_api_free},
    {51, 80, 72, uvm_api_migrate},
    {42, 40, 36, uvm_api_set_preferred_location},
    {72, 24, 16, uvm_api_validate_va_range},
};

/* What other versions have differently. */
static struct request by_layout(struct request request)
{
    if (request.number == 33 && standin_layout < 550)
        request.size = 1200, request.status = 1196;
    if (request.number == 42 && standin_layout < 550)
        request.status = 32;
    if (request.number == 34 && standin_layout >= 590)
        request.size = 16, request.status = 8;
    if (request.number == 28 && standin_layout >= 590)
        request.size = 12, request.status = 8;
    return request;
}

static long run(struct request request, struct file *file, unsigned long user, struct standin_ioctl *ioctl)
{
    long result = 0;
    void *params = kmalloc(request.size, GFP_KERNEL);
    if (!params)
        return -ENOMEM;
    if (copy_from_user(params, (void __user *)user, request.size)) {
        result = -EFAULT;
    } else {
        bool early = !space_of(file)->initialized && request.number != 0x30000001 && request.number != 75;
        put32(params, request.status, early ? NV_ERR_ILLEGAL_ACTION : request.run(params, file));
        ioctl->has_status = true;
        ioctl->status = get32(params, request.status);
        if (copy_to_user((void __user *)user, params, request.size))
            result = -EFAULT;
    }
    kfree(params);
    return result;
}

static long dispatch(struct file *file, unsigned int cmd, unsigned long arg)
{
    struct standin_ioctl ioctl = {.device = iminor(file_inode(file)) ? "nvidia-uvm-tools" : "nvidia-uvm",
                                  .minor = NO_NUMBER, .nr = cmd, .returned = -EINVAL};
    size_t i;
    if (cmd == 0x30000002)
        ioctl.returned = 0;
    for (i = 0; i < ARRAY_SIZE(requests); i++)
        if (requests[i].number == cmd)
            ioctl.returned = run(by_layout(requests[i]), file, arg, &ioctl);
    standin_count_ioctl(&ioctl);
    return ioctl.returned;
}

static FN long uvm_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
    HERE;
    return dispatch(file, cmd, arg);
}

FN long uvm_unlocked_ioctl_entry(struct file *file, unsigned int cmd, unsigned long arg);
FN long uvm_unlocked_ioctl_entry(struct file *file, unsigned int cmd, unsigned long arg)
{
    HERE;
    return uvm_ioctl(file, cmd, arg);
}

/* The second device has entries of its own. */
static FN long uvm_tools_unlocked_ioctl_entry(struct file *file, unsigned int cmd, unsigned long arg)
{
    HERE;
    return dispatch(file, cmd, arg);
}

/* --- the file --- */

static FN int uvm_open_entry(struct inode *inode, struct file *file)
{
    uvm_va_space_t *space;
    HERE;
    space = kzalloc(sizeof(*space), GFP_KERNEL);
    if (!space)
        return -ENOMEM;
    mutex_init(&space->lock);
    xa_init(&space->pages);
    /* Each file has its own address space, as each has its own managed memory. */
    space->mapping = &inode->i_data;
    file->private_data = space;
    standin_count_file(iminor(inode) ? "nvidia-uvm-tools" : "nvidia-uvm", NO_NUMBER, "open");
    return 0;
}

/* The compiler dropped an argument of the real one: the symbol has a suffix. */
static FN void uvm_release(struct file *file) asm("uvm_release.isra.0");
static FN void uvm_release(struct file *file)
{
    HERE_AS("uvm_release.isra.0");
    uvm_va_space_destroy(space_of(file));
}

static FN int uvm_release_entry(struct inode *inode, struct file *file)
{
    HERE;
    standin_count_file(iminor(inode) ? "nvidia-uvm-tools" : "nvidia-uvm", NO_NUMBER, "close");
    uvm_release(file);
    return 0;
}

static const struct file_operations operations = {
    .owner = THIS_MODULE,
    .open = uvm_open_entry,
    .release = uvm_release_entry,
    .unlocked_ioctl = uvm_unlocked_ioctl_entry,
    .mmap = uvm_mmap_entry,
};

static const struct file_operations tools_operations = {
    .owner = THIS_MODULE,
    .open = uvm_open_entry,
    .release = uvm_release_entry,
    .unlocked_ioctl = uvm_tools_unlocked_ioctl_entry,
};

static int __init standin_uvm_init(void)
{
    int result = alloc_chrdev_region(&first, 0, 2, "nvidia-uvm");
    if (result)
        return result;
    cdev_init(&device, &operations);
    cdev_init(&tools, &tools_operations);
    device.owner = tools.owner = THIS_MODULE;
    result = cdev_add(&device, first, 1);
    if (result)
        goto no_device;
    result = cdev_add(&tools, first + 1, 1);
    if (result)
        goto no_tools;
    standin_functions_add(&standin_here);
    nvUvmInterfaceRegisterUvmOps(&ops);
    return 0;
no_tools:
    cdev_del(&device);
no_device:
    unregister_chrdev_region(first, 2);
    return result;
}

static void __exit standin_uvm_exit(void)
{
    cdev_del(&tools);
    cdev_del(&device);
    unregister_chrdev_region(first, 2);
    nvUvmInterfaceDeRegisterUvmOps();
    standin_functions_remove(&standin_here);
}

module_init(standin_uvm_init);
module_exit(standin_uvm_exit);
